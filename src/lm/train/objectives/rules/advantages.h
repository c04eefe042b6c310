// Advantages of generated answers from their rewards, as TRL 1.10 computes them for GRPO and RLOO. Host
// functions in fp64; the results depend only on the arguments, so all ranks of a mesh get equal results.
//
// Answers are in order of their prompts: answers i * num_generations to (i + 1) * num_generations - 1 belong
// to prompt i and form a group. A reward without a value (a function that could not score the answer) is left
// out of all sums and means. An answer without any value has the advantage 0 and no part in its group's
// baseline.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace primus {

struct AdvantageSettings {
  std::int64_t num_generations = 8;         // answers per prompt
  std::vector<double> reward_weights = {};  // one for each function; empty: 1
  bool leave_one_out = false;               // RLOO; else GRPO
  // PPO: the values are the weighted sums of the rewards, NaN for answers without any. The settings below
  // must have their defaults.
  bool sums = false;

  // GRPO. The reward minus the mean of its group is divided by the (unbiased) standard deviation of the
  // "group" or of the "batch", plus 1e-4, or not divided ("none").
  std::string scale_rewards = "group";
  // "sum_then_normalize": the weighted sum of the functions is normalized. "normalize_then_sum": each
  // function is normalized in its group, the weighted sum is normalized in the batch, and scale_rewards is
  // not used.
  std::string multi_objective_aggregation = "sum_then_normalize";

  // RLOO. The baseline of an answer is the mean reward of the other answers of its group.
  double beta = 0;  // weight of the divergences that are subtracted from the rewards
  std::optional<std::array<double, 2>> reward_clip_range = {};  // applied before the divergence is subtracted
  bool normalize_advantages = false;                            // to mean 0 and deviation 1 in the batch
};

// Mean and unbiased standard deviation over the answers with a value; NaN if there are too few.
struct RewardStatistics {
  double mean = 0, deviation = 0;
};

struct Advantages {
  std::vector<double> values;               // [answers]
  std::vector<RewardStatistics> functions;  // [functions], metrics rewards/NAME/mean and rewards/NAME/std
  RewardStatistics reward;                  // of the weighted sums, metrics reward and reward_std
  double zero_deviation = 0;                // share of groups with equal rewards, metric frac_reward_zero_std
  // [groups] Whether a group has different rewards. With normalize_then_sum, the rewards of one function must
  // differ. A group with fewer than two rewards has none that differ.
  std::vector<bool> varied;
};

// Throws Error(kInvalid) for invalid values, and for settings that have no effect.
void check_advantages(const AdvantageSettings& settings);

// `rewards`: [answers, functions], row-major; the number of answers is a multiple of num_generations.
// `divergences`: [answers], the sum of ln p(current) - ln p(reference) over the tokens of each answer;
// required if beta is not 0, else empty.
Advantages compute_advantages(const AdvantageSettings& settings,
                              std::span<const std::optional<double>> rewards, std::int64_t functions,
                              std::span<const double> divergences = {});

}  // namespace primus
