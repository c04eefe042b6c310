// primus model verify-objective
#include "lm/verify/verify_objective.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/text/json_text.h"
#include "cli/command.h"
#include "turbo/cpu/cpu_kernels.h"

namespace primus::cli {
namespace {

// Writes null for NaN and infinity, which JSON does not have.
nlohmann::json finite_or_null(double value) {
  return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json(nullptr);
}

nlohmann::json json_of(const ObjectiveReport& report) {
  nlohmann::json json{{"passed", report.passed()}, {"cases", nlohmann::json::array()}};
  for (const ObjectiveCase& c : report.cases) {
    nlohmann::json of{{"file", c.file},       {"objective", c.objective},
                      {"name", c.name},       {"built", c.why_not_built.empty()},
                      {"passed", c.passed()}, {"checks", nlohmann::json::array()}};
    if (!c.why_not_built.empty()) of["why_not_built"] = c.why_not_built;
    for (const ObjectiveCheck& check : c.checks) {
      of["checks"].push_back({{"name", check.name},
                              {"value", finite_or_null(check.value)},
                              {"reference", finite_or_null(check.reference)},
                              {"error", finite_or_null(check.error)},
                              {"limit", check.limit},
                              {"passed", check.passed()}});
    }
    json["cases"].push_back(std::move(of));
  }
  return json;
}

// Returns the check with the largest ratio of error to limit.
const ObjectiveCheck& worst_of(const ObjectiveCase& c) {
  const auto badness = [](const ObjectiveCheck& check) {
    return std::isnan(check.error) ? HUGE_VAL : check.error / check.limit;
  };
  return *std::ranges::max_element(c.checks, {}, badness);
}

class ModelVerifyObjective final : public Command {
 public:
  void declare(Arguments& args) override {
    args.positional("FOLDER", &folder_, "folder with models, batches and references of post-training").reads =
        all_of_them;
    args.option("--case", "NAME", &options_.cases, "run only this case; may be repeated (default: all)");
    args.option("--objective", "NAME", &options_.objectives,
                "run only cases of dpo, kto, orpo, cpo, sft, reward, grpo, rloo or ppo; may be repeated "
                "(default: all)");
    args.flag("--all", all_, "show every number of each case, not only the worst");
    args.flag("--json", json_, "print the report as JSON");
  }

  int run(Console& console) override {
    options_.folder = folder_;
    const ObjectiveReport report = verify_objectives(
        options_, builtin_families(), [] { return turbo::make_cpu_device(0); },
        [&](const ObjectiveCase& c) { console.note(fmt::format("{}: {} {}", c.file, c.objective, c.name)); });
    json_ ? console.write(json_text(json_of(report)) + "\n") : print_table(report, console);
    constexpr int kNotVerified = 3;
    return report.passed() ? 0 : kNotVerified;
  }

 private:
  void print_table(const ObjectiveReport& report, const Console& console) const {
    console.print(fmt::format("{:<8}{:<22}{:>7}{:>11}{:>9}  {}\n", "", "case", "numbers", "error", "limit",
                              "largest error"));
    int passed = 0, not_built = 0;
    const auto line = [&](std::string_view objective, std::string_view name, std::size_t numbers,
                          const ObjectiveCheck& check, bool good) {
      console.print(fmt::format("{:<8}{:<22}{:>7}{:>11.2e}{:>9.0e}  {}  ", objective, name, numbers,
                                check.error, check.limit, check.name));
      console.print(good ? Color::kGreen : Color::kRed, good ? "ok" : "FAILED");
      console.print("\n");
    };
    for (const ObjectiveCase& c : report.cases) {
      passed += c.passed() ? 1 : 0;
      if (c.checks.empty()) {
        ++not_built;
        console.print(fmt::format("{:<8}{:<22}  ", c.objective, c.name));
        console.print(Color::kRed, "not built");
        console.print(fmt::format(": {}\n", c.why_not_built));
        continue;
      }
      line(c.objective, c.name, c.checks.size(), worst_of(c), c.passed());
      for (const ObjectiveCheck& check : c.checks) {
        if (all_ || !check.passed()) {
          console.print(fmt::format("  {}: {:.9g}, reference {:.9g}, error {:.2e}{}\n", check.name,
                                    check.value, check.reference, check.error,
                                    check.passed() ? "" : ", above its limit"));
        }
      }
    }
    console.print(fmt::format("\n{} of {} cases hold", passed, report.cases.size()));
    if (not_built > 0) console.print(fmt::format(", {} are not built", not_built));
    console.print("\n");
    console.print(report.passed() ? Color::kGreen : Color::kRed,
                  report.passed() ? "verified" : "not verified");
    console.print("\n");
  }

  std::string folder_;
  VerifyObjectiveOptions options_;
  bool all_ = false, json_ = false;
};

}  // namespace

extern const CommandEntry kModelVerifyObjective{
    "model verify-objective",
    "Compares the losses of post-training with those of a reference",
    "Runs every case of a folder in fp32 on the CPU: the loss, its metrics, log-probabilities, gradients and "
    "AdamW steps. Errors of losses and metrics are relative to the larger of 1 and the reference, errors of "
    "norms to the reference, and errors of tensors to the reference's largest element. The limit is 1e-5, "
    "and "
    "1e-4 along the AdamW steps. Cases that Primus cannot run are listed as not built, and count as not "
    "verified. The exit code is 0 if every chosen case is within its limits, and 3 otherwise.",
    "primus model verify-objective tests/golden/posttrain\n"
    "primus model verify-objective FOLDER --objective dpo --objective kto --json",
    make_command<ModelVerifyObjective>,
    {Section::kModel, 5}};

}  // namespace primus::cli
