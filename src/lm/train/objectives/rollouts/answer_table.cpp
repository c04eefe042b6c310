#include "lm/train/objectives/rollouts/answer_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace primus {

AnswerTable::AnswerTable(engine::Rank& rank, const Settings& settings)
    : settings_(settings), table_(rank, settings.answers, columns(), settings.writes) {}

void AnswerTable::exchange(TrainingSession& session, Column column, std::span<const std::int64_t> numbers,
                           std::span<const double> values) {
  std::vector<double> table = table_.values();  // the other columns are complete, and must not be added again
  clear();
  for (std::size_t i = 0; i < numbers.size(); ++i) at(numbers[i], column) = values[i];
  exchange(session);
  for (std::int64_t a = 0; a < settings_.answers; ++a)
    table[static_cast<std::size_t>(a * columns() + column)] = at(a, column);
  table_.values() = std::move(table);
}

std::int64_t AnswerTable::first_too_long(std::int64_t most) {
  for (std::int64_t a = 0; a < settings_.answers; ++a) {
    const double prompt = at(a, kPrompt), answer = at(a, kLength);
    if (!(prompt >= 1 && answer >= 1 && prompt + answer <= static_cast<double>(most))) return a;
  }
  return -1;
}

AnswerTable::Results AnswerTable::results() {
  Results all;
  all.without.resize(static_cast<std::size_t>(settings_.functions));
  for (std::int64_t a = 0; a < settings_.answers; ++a) {
    bool any = false;
    for (std::int64_t f = 0; f < settings_.functions; ++f) {
      const bool has = at(a, f, kHasReward) != 0;
      all.rewards.push_back(has ? std::optional(at(a, f, kReward)) : std::nullopt);
      if (!has) ++all.without[static_cast<std::size_t>(f)];
      any = any || has;
    }
    if (!any) ++all.unrewarded;
  }
  return all;
}

std::vector<std::pair<std::string, double>> AnswerTable::metrics(const Advantages& advantages,
                                                                 const Results& all,
                                                                 const std::vector<std::string>& names) {
  std::vector<std::pair<std::string, double>> metrics;
  // A mean or deviation of too few values is not a number, and is left out.
  const auto add = [&](std::string name, double value) {
    if (std::isfinite(value)) metrics.emplace_back(std::move(name), value);
  };
  add("reward", advantages.reward.mean);
  add("reward_std", advantages.reward.deviation);
  for (std::size_t f = 0; f < advantages.functions.size(); ++f) {
    const std::string name = fmt::format("rewards/{}", names[f]);
    add(name + "/mean", advantages.functions[f].mean);
    add(name + "/std", advantages.functions[f].deviation);
    add(name + "/without", static_cast<double>(all.without[f]) / static_cast<double>(settings_.answers));
  }
  add("frac_reward_zero_std", advantages.zero_deviation);
  std::vector<double> lengths;
  double cut = 0;
  for (std::int64_t a = 0; a < settings_.answers; ++a) {
    lengths.push_back(settings_.episodes ? at(a, kGenerated) : at(a, kLength));
    cut += 1 - at(a, kFinished);
  }
  const auto answers = static_cast<double>(settings_.answers);
  for (auto& metric : length_metrics(lengths, cut)) metrics.push_back(std::move(metric));
  add("completions/without_reward", static_cast<double>(all.unrewarded) / answers);
  if (!settings_.episodes) return metrics;
  constexpr std::array<std::pair<const char*, EpisodeColumn>, 4> kMeans = {
      {{"turns", kTurns},
       {"tool_calls", kCalls},
       {"invalid_tool_calls", kInvalidCalls},
       {"failed", kFailed}}};
  for (const auto& [name, column] : kMeans) {
    double total = 0;
    for (std::int64_t a = 0; a < settings_.answers; ++a) total += at(a, column);
    add(fmt::format("episodes/{}", name), total / answers);
  }
  return metrics;
}

}  // namespace primus
