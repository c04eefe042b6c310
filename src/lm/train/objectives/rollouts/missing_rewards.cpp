#include "lm/train/objectives/rollouts/missing_rewards.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "base/text/counted.h"

namespace primus {

std::string MissingRewards::why() const {
  return problems_.empty() ? "" : fmt::format(" ({})", fmt::join(problems_, "; "));
}

bool MissingRewards::is_new(std::size_t function, const std::string& problem) {
  constexpr std::size_t kMax = 20;
  warned_.resize(std::max(warned_.size(), function + 1));
  std::set<std::string>& warned = warned_[function];
  return warned.size() < kMax && warned.insert(problem).second;
}

void MissingRewards::none(std::int64_t step, std::int64_t answers,
                          const std::function<void(const std::string&)>& warn) {
  constexpr int kMaxSteps = 3;
  ++steps_;
  if (step == 1 || steps_ == kMaxSteps) {
    throw invalid(step == 1 ? fmt::format("none of the {} of the first step has a reward{}",
                                          counted(answers, "answer"), why())
                            : fmt::format("no answer of the last {} steps has a reward{}", kMaxSteps, why()),
                  "correct the reward function or the data: 'primus data score' calls a reward function "
                  "for the records of a file");
  }
  if (!warn) return;
  warn(
      fmt::format("step {}: none of the {} has a reward{}. All advantages are 0. After {} such steps in "
                  "a row, the run ends",
                  step, counted(answers, "answer"), why(), kMaxSteps));
}

}  // namespace primus
