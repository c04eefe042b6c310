// Detects reinforcement learning that learns nothing, because the answers to each prompt get equal rewards.
// Usual causes are a reward that never gives points, or prompts that the model never solves.
#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "lm/events/detectors/detector.h"

namespace primus {
namespace {

constexpr std::string_view kName = "equal_rewards";
constexpr int kInARow = 20;

class EqualRewards final : public Detector {
 public:
  std::optional<RunWarning> iteration(const IterationRecord& record) override {
    const double* const equal = find(record, "frac_reward_zero_std");
    if (!equal) return std::nullopt;
    ++seen_;
    steps_ = *equal == 1 ? steps_ + 1 : 0;
    const bool never_unequal = record.iteration == record.train_iters && steps_ == seen_ && steps_ < kInARow;
    if (steps_ != kInARow && !never_unequal) return std::nullopt;
    const double* const reward = find(record, "reward");
    return RunWarning{
        .iteration = record.iteration,
        .value = 1,
        .usual = 0,
        .limit = 1,
        .text = fmt::format(
            "in {}, all answers to a prompt had equal rewards{}, so the model learns nothing "
            "from them",
            never_unequal ? "all steps of this process" : fmt::format("{} steps in a row", steps_),
            reward ? fmt::format(" (mean reward {:.3g})", *reward) : ""),
        .advice =
            "look at the answers ('primus generate', or sample_interval) and at what the reward expects: "
            "easier prompts, a reward with partial points, more num_generations, or first fine-tuning on "
            "examples gives unequal rewards"};
  }

 private:
  static const double* find(const IterationRecord& record, std::string_view name) {
    const auto found =
        std::ranges::find(record.other_losses, name, [](const auto& one) { return one.first; });
    return found == record.other_losses.end() ? nullptr : &found->second;
  }

  int seen_ = 0;   // number of steps of this process
  int steps_ = 0;  // number of consecutive steps with equal rewards
};

}  // namespace

extern const DetectorEntry kEqualRewards{kName, [] { return std::unique_ptr<Detector>(new EqualRewards); }};

}  // namespace primus
