// code:COLUMN: the answer's Python code passes the tests in a column.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <string>

#include "base/error.h"
#include "base/terminal/terminal.h"
#include "lm/reward/answer_text.h"
#include "lm/reward/parallel_answers.h"
#include "lm/reward/reward_entry.h"
#include "lm/reward/sandbox.h"

namespace primus {
namespace {

// Python code whose assertions check the answer's functions, or pairs of input and output.
struct CodeTests {
  std::string checks;
  std::vector<std::pair<std::string, std::string>> cases;
};

std::optional<CodeTests> tests_of(const nlohmann::json& column) {
  CodeTests tests;
  if (column.is_string()) {
    tests.checks = column.get<std::string>();
  } else if (column.is_array() && !column.empty()) {
    for (const nlohmann::json& test : column) {
      if (test.is_string()) {
        tests.checks += test.get<std::string>() + "\n";
        continue;
      }
      const auto text_of = [&test](const char* key) {
        const auto found = test.is_object() ? test.find(key) : test.end();
        return found != test.end() && found->is_string() ? &found->get_ref<const std::string&>() : nullptr;
      };
      const std::string* const input = text_of("input");
      const std::string* const output = text_of("output");
      if (input == nullptr || output == nullptr) return std::nullopt;
      tests.cases.emplace_back(*input, *output);
    }
  } else {
    return std::nullopt;
  }
  const bool has_checks = !trimmed(tests.checks).empty();
  if (has_checks == !tests.cases.empty()) return std::nullopt;
  return tests;
}

// Returns whether the texts are equal, ignoring white space at the ends of lines and of the text.
bool equal_output(std::string_view a, std::string_view b) {
  a = trimmed(a);
  b = trimmed(b);
  while (!a.empty() || !b.empty()) {
    const std::size_t end_a = std::min(a.find('\n'), a.size()), end_b = std::min(b.find('\n'), b.size());
    const std::string_view line_a = a.substr(0, end_a), line_b = b.substr(0, end_b);
    const auto kept = [](std::string_view line) {
      return line.substr(0, line.find_last_not_of(" \t\r") + 1);
    };
    if (kept(line_a) != kept(line_b)) return false;
    a.remove_prefix(std::min(end_a + 1, a.size()));
    b.remove_prefix(std::min(end_b + 1, b.size()));
  }
  return true;
}

class CodeReward final : public RewardFunction {
 public:
  CodeReward(std::string column, const RewardSettings& settings)
      : column_(std::move(column)), workers_(worker_count(settings)) {
    limits_.seconds = settings.timeout_seconds;
  }
  std::string_view name() const override { return "code"; }
  void interrupt() override { interrupted_ = true; }
  void check() override {
    if (const std::string& problem = sandbox_problem(); !problem.empty()) {
      throw invalid(fmt::format("reward 'code:{}': {}", printable(column_), problem),
                    "code of a model runs only in a sandbox; 'primus data score FILE.jsonl --reward "
                    "code:COLUMN' tries it (docs/rewards.md)");
    }
  }
  std::vector<Reward> score(std::span<const ScoredAnswer> answers) override {
    // Without a sandbox, the answers without code would be the only ones with a reward.
    if (const std::string& problem = sandbox_problem(); !problem.empty())
      return {answers.size(), Reward{.value = {}, .problem = problem}};
    return score_in_parallel(answers, workers_,
                             [this](const ScoredAnswer& answer, std::size_t) { return score_one(answer); });
  }

 private:
  Reward score_one(const ScoredAnswer& answer) const {
    if (interrupted_) return {.value = {}, .problem = "the run ended"};
    std::string problem;
    const nlohmann::json* const column = find_column(answer, column_, problem);
    if (column == nullptr) return {.value = {}, .problem = problem};
    const std::optional<CodeTests> tests = tests_of(*column);
    if (!tests) {
      return {.value = {},
              .problem = fmt::format("the column '{}' has no tests: it must be Python code, a list of Python "
                                     "statements, or a list of objects with 'input' and 'output'",
                                     printable(column_))};
    }
    const auto block = last_code_block(after_thoughts(answer.completion));
    if (!block) return {.value = 0};
    SandboxRun run{.code = std::string(*block), .checks = tests->checks, .input = {}};
    if (tests->cases.empty()) return reward_of(run_in_sandbox(run, limits_, &interrupted_));
    for (const auto& [input, output] : tests->cases) {
      run.input = input;
      const SandboxResult result = run_in_sandbox(run, limits_, &interrupted_);
      Reward reward = reward_of(result);
      if (reward.value != 1) return reward;
      if (!equal_output(result.output, output)) return {.value = 0};
    }
    return {.value = 1};
  }

  // Returns why no code can run in a sandbox; empty if it can. Tries it once.
  const std::string& sandbox_problem() {
    if (!sandbox_problem_) {
      const SandboxResult trial =
          run_in_sandbox({.code = "pass", .checks = {}, .input = {}}, {}, &interrupted_);
      sandbox_problem_ = trial.started ? "" : trial.problem;
    }
    return *sandbox_problem_;
  }

  static Reward reward_of(const SandboxResult& result) {
    if (!result.started) return {.value = {}, .problem = result.problem};
    return {.value = result.passed ? 1.0 : 0.0};
  }

  std::string column_;
  std::size_t workers_;
  SandboxLimits limits_;
  std::optional<std::string> sandbox_problem_;
  std::atomic<bool> interrupted_{false};
};

std::unique_ptr<RewardFunction> make_code(const RewardText& text, const RewardSettings& settings) {
  return std::make_unique<CodeReward>(text.argument, settings);
}

}  // namespace

extern const RewardEntry kCodeReward{
    "code", "code:COLUMN", "1 if the answer's Python code passes the column's tests in a sandbox", make_code};

}  // namespace primus
