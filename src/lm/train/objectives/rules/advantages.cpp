#include "lm/train/objectives/rules/advantages.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/error.h"

namespace primus {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();  // an answer without a reward
constexpr double kFloor = 1e-4;  // is added to deviations before a division by them

// Returns the mean and the unbiased standard deviation of the numbers that are not NaN.
RewardStatistics statistics(std::span<const double> values) {
  double sum = 0, count = 0;
  for (const double value : values) {
    if (std::isnan(value)) continue;
    sum += value;
    ++count;
  }
  RewardStatistics out{.mean = count > 0 ? sum / count : kNone, .deviation = kNone};
  if (count < 2) return out;
  double squares = 0;
  for (const double value : values) {
    if (!std::isnan(value)) squares += (value - out.mean) * (value - out.mean);
  }
  out.deviation = std::sqrt(squares / (count - 1));
  return out;
}

bool is_zero(double deviation) { return std::abs(deviation) <= 1e-8; }
// Returns whether the rewards of a group with this deviation differ; false for NaN.
bool differs(double deviation) { return std::abs(deviation) > 1e-8; }

class Groups {
 public:
  Groups(const AdvantageSettings& settings, std::size_t answers)
      : size_(static_cast<std::size_t>(settings.num_generations)), count_(answers / size_) {}

  std::size_t count() const { return count_; }
  std::size_t size() const { return size_; }
  template <class T>
  std::span<T> of(std::span<T> values, std::size_t group) const {
    return values.subspan(group * size_, size_);
  }
  // Returns the deviation of a group; 0 for groups of one answer.
  double deviation(std::span<const double> group) const {
    return size_ > 1 ? statistics(group).deviation : 0;
  }

 private:
  std::size_t size_, count_;
};

double weight_of(const AdvantageSettings& settings, std::size_t function) {
  return settings.reward_weights.empty() ? 1 : settings.reward_weights[function];
}

// Returns the rewards of one function, [answers].
std::vector<double> column(std::span<const std::optional<double>> rewards, std::size_t functions,
                           std::size_t function) {
  std::vector<double> values;
  for (std::size_t i = function; i < rewards.size(); i += functions)
    values.push_back(rewards[i].value_or(kNone));
  return values;
}

// Returns the weighted sum of the columns for each answer, without missing entries; NaN if all are missing.
std::vector<double> weighted_sum(const AdvantageSettings& settings,
                                 const std::vector<std::vector<double>>& columns) {
  std::vector<double> sums(columns.front().size(), kNone);
  for (std::size_t f = 0; f < columns.size(); ++f) {
    for (std::size_t a = 0; a < sums.size(); ++a) {
      if (!std::isnan(columns[f][a]))
        sums[a] = (std::isnan(sums[a]) ? 0 : sums[a]) + weight_of(settings, f) * columns[f][a];
    }
  }
  return sums;
}

// Subtracts the mean of all values, and divides by their deviation plus a floor.
void normalize(std::vector<double>& values) {
  const RewardStatistics all = statistics(values);
  const double deviation = values.size() > 1 ? all.deviation : 0;
  for (double& value : values) value = (value - all.mean) / (deviation + kFloor);
}

// Computes GRPO's advantages from the weighted sums of the rewards.
void normalize_sums(const AdvantageSettings& settings, const Groups& groups,
                    const std::vector<double>& rewards, Advantages& out) {
  const std::span<const double> all = rewards;
  const bool batch = settings.scale_rewards == "batch";
  const double of_batch = batch && rewards.size() > 1 ? statistics(all).deviation : 0;
  out.values = rewards;
  for (std::size_t g = 0; g < groups.count(); ++g) {
    const std::span<const double> group = groups.of(all, g);
    const double mean = statistics(group).mean;
    const double of_group = groups.deviation(group), deviation = batch ? of_batch : of_group;
    out.varied.push_back(differs(of_group));
    out.zero_deviation += is_zero(deviation) ? 1 : 0;
    const double divisor = settings.scale_rewards == "none" ? 1 : deviation + kFloor;
    for (double& value : groups.of(std::span<double>(out.values), g)) value = (value - mean) / divisor;
  }
  out.zero_deviation /= static_cast<double>(groups.count());
}

// Computes GRPO's advantages for reward functions that are normalized before the sum. `sums`: the sums
// without normalization; NaN for answers without any reward.
void normalize_functions(const AdvantageSettings& settings, const Groups& groups,
                         std::vector<std::vector<double>> columns, const std::vector<double>& sums,
                         Advantages& out) {
  out.varied.assign(groups.count(), false);
  for (std::vector<double>& values : columns) {
    for (std::size_t g = 0; g < groups.count(); ++g) {
      const std::span<double> group = groups.of(std::span<double>(values), g);
      const double mean = statistics(group).mean, deviation = groups.deviation(group);
      out.varied[g] = out.varied[g] || differs(deviation);
      for (double& value : group) value = (value - mean) / (deviation + kFloor);
    }
  }
  out.values = weighted_sum(settings, columns);
  // A reward without others in its group has no deviation, and counts as 0 in the sum.
  for (std::size_t a = 0; a < sums.size(); ++a)
    if (std::isnan(out.values[a]) && !std::isnan(sums[a])) out.values[a] = 0;
  out.zero_deviation = out.values.size() < 2 || is_zero(statistics(out.values).deviation) ? 1 : 0;
  normalize(out.values);
}

// Computes RLOO's advantages from the weighted sums of the rewards.
void leave_one_out(const AdvantageSettings& settings, const Groups& groups, std::vector<double> rewards,
                   std::span<const double> divergences, Advantages& out) {
  if (settings.reward_clip_range) {
    const auto [low, high] = *settings.reward_clip_range;
    for (double& reward : rewards)
      if (!std::isnan(reward)) reward = std::min(std::max(reward, low), high);
  }
  if (settings.beta != 0) {
    for (std::size_t a = 0; a < rewards.size(); ++a) rewards[a] -= settings.beta * divergences[a];
  }
  out.values = rewards;
  for (std::size_t g = 0; g < groups.count(); ++g) {
    const std::span<const double> group = groups.of(std::span<const double>(rewards), g);
    const double deviation = groups.deviation(group);
    out.varied.push_back(differs(deviation));
    out.zero_deviation += is_zero(deviation) ? 1 : 0;
    double sum = 0, count = 0;
    for (const double reward : group) {
      if (std::isnan(reward)) continue;
      sum += reward;
      ++count;
    }
    // An answer without others has no baseline, and its advantage becomes 0 below.
    for (double& value : groups.of(std::span<double>(out.values), g))
      value = count > 1 ? value - (sum - value) / (count - 1) : kNone;
  }
  out.zero_deviation /= static_cast<double>(groups.count());
  if (settings.normalize_advantages) normalize(out.values);
}

}  // namespace

void check_advantages(const AdvantageSettings& s) {
  const auto choose = [](const std::string& value, std::string_view setting,
                         std::initializer_list<std::string_view> all) {
    for (const std::string_view one : all)
      if (value == one) return;
    throw invalid(fmt::format("{} '{}' does not exist", setting, value),
                  fmt::format("choose {}", fmt::join(all, ", ")));
  };
  if (s.num_generations < 1)
    throw invalid(fmt::format("num_generations is {}, but must be above 0", s.num_generations));
  if (s.leave_one_out && s.num_generations < 2) {
    throw invalid("num_generations is 1, but a leave-one-out baseline needs other answers to the prompt",
                  "set num_generations to 2 or more");
  }
  choose(s.scale_rewards, "scale_rewards", {"group", "batch", "none"});
  choose(s.multi_objective_aggregation, "multi_objective_aggregation",
         {"sum_then_normalize", "normalize_then_sum"});
  for (const double weight : s.reward_weights) {
    if (!std::isfinite(weight)) throw invalid(fmt::format("a reward weight is {}", weight));
  }
  if (!s.reward_weights.empty() && std::ranges::all_of(s.reward_weights, [](double w) { return w == 0; }))
    throw invalid("reward_weights has only zeros, so no reward would count", "set a weight other than 0");
  if (!std::isfinite(s.beta)) throw invalid(fmt::format("beta is {}, but must be a number", s.beta));
  const auto refuse = [](bool used, std::string_view setting, std::string_view method) {
    if (used)
      throw invalid(fmt::format("{} is a setting of {}", setting, method), fmt::format("remove {}", setting));
  };
  refuse(!s.leave_one_out && s.beta != 0, "beta in rewards", "RLOO");
  refuse(!s.leave_one_out && s.reward_clip_range, "reward_clip_range", "RLOO");
  refuse(!s.leave_one_out && s.normalize_advantages, "normalize_advantages", "RLOO");
  refuse(s.leave_one_out && s.scale_rewards != "group", "scale_rewards", "GRPO");
  refuse(s.leave_one_out && s.multi_objective_aggregation != "sum_then_normalize",
         "multi_objective_aggregation", "GRPO");
  if (s.multi_objective_aggregation == "normalize_then_sum" && s.scale_rewards != "group") {
    throw invalid("scale_rewards has no effect with normalize_then_sum", "remove scale_rewards");
  }
  if (s.reward_clip_range && !((*s.reward_clip_range)[0] < (*s.reward_clip_range)[1])) {
    throw invalid(fmt::format("reward_clip_range is [{}, {}], but its first number must be below the second",
                              (*s.reward_clip_range)[0], (*s.reward_clip_range)[1]));
  }
}

Advantages compute_advantages(const AdvantageSettings& settings,
                              std::span<const std::optional<double>> rewards, std::int64_t functions,
                              std::span<const double> divergences) {
  check_advantages(settings);
  const auto count = static_cast<std::size_t>(functions);
  PRIMUS_CHECK("compute_advantages", functions > 0 && !rewards.empty() && rewards.size() % count == 0);
  const std::size_t answers = rewards.size() / count;
  if (!settings.reward_weights.empty() && settings.reward_weights.size() != count) {
    throw invalid(fmt::format("{} reward functions have {} weights", count, settings.reward_weights.size()),
                  "give one weight for each function");
  }
  if (answers % static_cast<std::size_t>(settings.num_generations) != 0) {
    throw invalid(
        fmt::format("{} answers are no multiple of num_generations {}", answers, settings.num_generations));
  }
  PRIMUS_CHECK("compute_advantages", divergences.size() == (settings.beta != 0 ? answers : 0));
  const Groups groups(settings, answers);
  Advantages out;
  std::vector<std::vector<double>> columns;
  for (std::size_t f = 0; f < count; ++f) {
    columns.push_back(column(rewards, count, f));
    out.functions.push_back(statistics(columns.back()));
  }
  const std::vector<double> sums = weighted_sum(settings, columns);
  out.reward = statistics(sums);
  if (settings.sums) {
    out.values = sums;
    return out;
  }
  if (settings.leave_one_out) {
    leave_one_out(settings, groups, sums, divergences, out);
  } else if (settings.multi_objective_aggregation == "normalize_then_sum") {
    normalize_functions(settings, groups, std::move(columns), sums, out);
  } else {
    normalize_sums(settings, groups, sums, out);
  }
  // With equal rewards, advantages are rounding errors, whose signs must not count as clipped tokens.
  constexpr double kRounding = 1e-12;
  for (double& value : out.values)
    if (std::isnan(value) || std::abs(value) < kRounding) value = 0;
  return out;
}

}  // namespace primus
