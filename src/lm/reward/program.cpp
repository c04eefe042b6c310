// program:PATH: a program of the user that reads answers as JSON lines and writes rewards.
#include <fmt/format.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <utility>

#include "base/error.h"
#include "base/system/subprocess.h"
#include "base/terminal/terminal.h"
#include "base/text/json_text.h"
#include "lm/reward/parallel_answers.h"
#include "lm/reward/reward_entry.h"
#include "lm/reward/reward_json.h"
#include "lm/reward/worker_program.h"

namespace primus {
namespace {

// Splits a command into words at spaces and tabs. Text in single or double quotes is not split.
std::vector<std::string> words_of(const RewardText& text) {
  std::vector<std::string> words;
  bool in_word = false;
  char quote = 0;
  for (const char c : text.argument) {
    const bool space = quote == 0 && (c == ' ' || c == '\t');
    if (space) {
      in_word = false;
      continue;
    }
    if (!in_word) words.emplace_back();
    in_word = true;
    if (quote == 0 && (c == '\'' || c == '"')) {
      quote = c;
    } else if (quote != 0 && c == quote) {
      quote = 0;
    } else {
      words.back() += c;
    }
  }
  if (quote != 0) throw invalid(fmt::format("reward '{}': a quote is not closed", printable(text.text)));
  if (words.empty() || words.front().empty()) {
    throw invalid(fmt::format("reward '{}' names no program", printable(text.text)),
                  "write program:PATH [ARG ...]");
  }
  return words;
}

// Returns the program's file: relative to the folder, or in the folders of PATH if the name has no '/'.
std::string file_of(const std::string& name, const RewardText& text, const std::string& folder) {
  const auto local = std::filesystem::absolute(std::filesystem::path(folder) / name).lexically_normal();
  if (const std::string found = find_program(local.string(), {}); !found.empty()) return found;
  if (std::filesystem::is_regular_file(local)) {
    throw invalid(
        fmt::format("reward '{}': '{}' is not executable", printable(text.text), printable(local.string())),
        fmt::format("run 'chmod +x {}', or name the interpreter: program:python3 {}", name, name));
  }
  if (name.find('/') == std::string::npos) {
    const char* const path = std::getenv("PATH");
    if (const std::string found = find_program(name, path == nullptr ? "" : path); !found.empty())
      return found;
  }
  throw invalid(fmt::format("reward '{}': the program '{}' does not exist", printable(text.text),
                            printable(local.string())),
                "paths are relative to the current folder");
}

class ProgramReward final : public RewardFunction {
 public:
  ProgramReward(std::string name, std::vector<std::string> command, const RewardSettings& settings)
      : name_(std::move(name)),
        timeout_(static_cast<std::int64_t>(settings.timeout_seconds * 1000) + 1),
        folder_(settings.folder),
        command_(std::move(command)),
        workers_(worker_count(settings)) {}

  std::string_view name() const override { return name_; }

  std::vector<Reward> score(std::span<const ScoredAnswer> answers) override {
    return score_in_parallel(answers, workers_.size(),
                             [this](const ScoredAnswer& answer, std::size_t worker) {
                               return score_one(answer, workers_[worker]);
                             });
  }

 private:
  // A program that ends this number of times in a row, without a reply between them, is broken.
  static constexpr int kMaxEnds = 5;

  Reward score_one(const ScoredAnswer& answer, std::unique_ptr<WorkerProgram>& worker) {
    if (worker == nullptr) worker = std::make_unique<WorkerProgram>(command_, folder_);
    const WorkerProgram::Reply reply = worker->exchange(json_text(answer_json(answer), -1), timeout_);
    switch (reply.outcome) {
      case WorkerProgram::Outcome::kLine:
        break;
      case WorkerProgram::Outcome::kEnded:
        if (++ends_in_a_row_ >= kMaxEnds) throw broken(reply.problem, worker->error_text());
        return {.value = {}, .problem = reply.problem};
      case WorkerProgram::Outcome::kTimeout:
      case WorkerProgram::Outcome::kWrong:
        return {.value = {}, .problem = reply.problem};
    }
    ends_in_a_row_ = 0;
    bool is_reward = false;
    Reward reward = reward_of_text(reply.line, is_reward);
    if (!is_reward) {
      reward.problem += "; the program must write only rewards to its standard output";
      worker.reset();  // ends the program, because its next line may belong to this answer
    }
    return reward;
  }

  Error broken(const std::string& problem, const std::string& errors) const {
    const std::string_view text = errors;
    const std::size_t end = text.find_last_not_of('\n') + 1;
    std::string lines;
    std::size_t begin = end;
    for (int line = 0; line < 8 && begin > 0; ++line) {
      const std::size_t before = text.rfind('\n', begin - 1);
      begin = before == std::string_view::npos ? 0 : before;
    }
    for (const char c : text.substr(begin, end - begin))
      lines += c == '\n' ? std::string("\n  ") : printable(std::string(1, c));
    return invalid(fmt::format("the reward program '{}' failed {} times in a row: {}", printable(name_),
                               kMaxEnds, problem) +
                       (lines.empty() ? std::string(". It wrote nothing to its standard error")
                                      : ". The end of its standard error:\n  " + lines),
                   "test the program with 'primus data score FILE.jsonl --reward program:PATH'");
  }

  std::string name_;
  std::chrono::milliseconds timeout_;
  std::string folder_;
  std::vector<std::string> command_;
  std::vector<std::unique_ptr<WorkerProgram>> workers_;
  std::atomic<int> ends_in_a_row_{0};
};

std::unique_ptr<RewardFunction> make_program(const RewardText& text, const RewardSettings& settings) {
  std::vector<std::string> command = words_of(text);
  // The name for metrics: the last word that names a file, as in "python3 reward.py".
  std::string name = std::filesystem::path(command.front()).filename();
  for (std::size_t i = 1; i < command.size(); ++i) {
    std::error_code ignored;
    if (!std::filesystem::is_regular_file(std::filesystem::path(settings.folder) / command[i], ignored))
      continue;
    name = std::filesystem::path(command[i]).filename();
    break;
  }
  command.front() = file_of(command.front(), text, settings.folder);
  return std::make_unique<ProgramReward>(std::move(name), std::move(command), settings);
}

}  // namespace

extern const RewardEntry kProgramReward{"program", "program:PATH [ARG ...]",
                                        "rewards of a program that reads answers as JSON lines",
                                        make_program};

}  // namespace primus
