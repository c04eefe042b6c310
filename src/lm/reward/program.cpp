// program:PATH: a program of the user that reads answers as JSON lines and writes rewards.
#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <utility>

#include "base/terminal/terminal.h"
#include "base/text/excerpt.h"
#include "base/text/json_text.h"
#include "lm/reward/parallel_answers.h"
#include "lm/reward/program_command.h"
#include "lm/reward/reward_entry.h"
#include "lm/reward/reward_json.h"
#include "lm/reward/worker_program.h"

namespace primus {
namespace {

class ProgramReward final : public RewardFunction {
 public:
  ProgramReward(std::string name, std::vector<std::string> command, const RewardSettings& settings)
      : name_(std::move(name)),
        timeout_(static_cast<std::int64_t>(settings.timeout_seconds * 1000) + 1),
        folder_(settings.folder),
        command_(std::move(command)),
        workers_(worker_count(settings)) {}

  std::string_view name() const override { return name_; }
  void interrupt() override { interrupted_ = true; }

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
    if (interrupted_) return {.value = {}, .problem = "the run ended"};
    if (worker == nullptr) worker = std::make_unique<WorkerProgram>(command_, folder_);
    const WorkerProgram::Reply reply =
        worker->exchange(json_text(answer_json(answer), -1), timeout_, &interrupted_);
    switch (reply.outcome) {
      case WorkerProgram::Outcome::kLine:
        break;
      case WorkerProgram::Outcome::kEnded:
        if (++ends_in_a_row_ >= kMaxEnds) {
          throw broken_program(
              "reward program", name_, kMaxEnds,
              fmt::format("{}, last for an answer to '{}'", reply.problem, printable(excerpt(answer.prompt))),
              worker->error_text(),
              "test the program with 'primus data score FILE.jsonl --reward program:PATH'");
        }
        return {.value = {}, .problem = ended_program(reply.problem, worker->error_text())};
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

  std::string name_;
  std::chrono::milliseconds timeout_;
  std::string folder_;
  std::vector<std::string> command_;
  std::vector<std::unique_ptr<WorkerProgram>> workers_;
  std::atomic<int> ends_in_a_row_{0};
  std::atomic<bool> interrupted_{false};
};

std::unique_ptr<RewardFunction> make_program(const RewardText& text, const RewardSettings& settings) {
  ProgramCommand command = program_command(text.argument, fmt::format("reward '{}'", printable(text.text)),
                                           "program:PATH [ARG ...]", settings.folder);
  return std::make_unique<ProgramReward>(std::move(command.name), std::move(command.words), settings);
}

}  // namespace

extern const RewardEntry kProgramReward{"program", "program:PATH [ARG ...]",
                                        "rewards of a program that reads answers as JSON lines",
                                        make_program};

}  // namespace primus
