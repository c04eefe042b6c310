// Makes reward functions from their texts.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "base/entries.h"
#include "base/error.h"
#include "base/terminal/terminal.h"
#include "base/text/suggest.h"
#include "lm/reward/reward_entry.h"

namespace primus {

#include "lm/reward/rewards.def"  // generated: kAllRewardEntry

namespace {

std::string all_forms() {
  std::string forms;
  for (const RewardEntry& entry : reward_kinds()) {
    forms += (forms.empty() ? "" : ", ") + std::string(entry.form);
  }
  return forms;
}

const RewardEntry& entry_of(const std::string& text) {
  const std::string kind = text.substr(0, text.find(':'));
  std::vector<std::string_view> kinds;
  for (const RewardEntry& entry : reward_kinds()) {
    if (entry.kind == kind) return entry;
    kinds.push_back(entry.kind);
  }
  if (kind == "https") {
    throw unsupported(fmt::format("reward '{}': https is not supported", printable(text)),
                      "run the server on this machine or behind a proxy that accepts http");
  }
  const std::string meant = did_you_mean(kind, kinds);
  throw invalid(fmt::format("reward '{}' names no kind of reward function", printable(text)),
                (meant.empty() ? std::string() : meant + " ") + "the kinds are " + all_forms());
}

}  // namespace

std::span<const RewardEntry> reward_kinds() {
  static const auto all = [] {
    auto entries = copies_of(kAllRewardEntry);
    std::ranges::sort(entries, {}, &RewardEntry::kind);
    return entries;
  }();
  return all;
}

std::vector<std::unique_ptr<RewardFunction>> make_rewards(const RewardSettings& settings) {
  if (settings.functions.empty())
    throw invalid("no reward function is given", "the kinds are " + all_forms());
  if (!settings.weights.empty() && settings.weights.size() != settings.functions.size()) {
    throw invalid(fmt::format("{} reward functions have {} weights", settings.functions.size(),
                              settings.weights.size()),
                  "give one weight for each function, or no weights");
  }
  for (const double weight : settings.weights) {
    if (!std::isfinite(weight)) throw invalid(fmt::format("the reward weight {} is not finite", weight));
  }
  if (!(settings.timeout_seconds > 0 && settings.timeout_seconds <= kMaxRewardSeconds)) {
    throw invalid(fmt::format("the max time for a reward is {} s", settings.timeout_seconds),
                  fmt::format("set a number above 0 and up to {}", kMaxRewardSeconds));
  }
  if (settings.workers < 0 || settings.workers > kMaxRewardWorkers) {
    throw invalid(fmt::format("{} reward workers are given", settings.workers),
                  fmt::format("set a number from 0 (one per core) to {}", kMaxRewardWorkers));
  }
  std::vector<std::unique_ptr<RewardFunction>> functions;
  for (const std::string& text : settings.functions) {
    const RewardEntry& entry = entry_of(text);
    const std::size_t colon = text.find(':');
    const std::string argument = colon == std::string::npos ? std::string() : text.substr(colon + 1);
    if (argument.empty()) {
      throw invalid(fmt::format("reward '{}' has no argument", printable(text)),
                    fmt::format("write {}", entry.form));
    }
    functions.push_back(entry.make({text, argument}, settings));
  }
  return functions;
}

std::vector<std::string> distinct_names(std::span<const std::unique_ptr<RewardFunction>> functions) {
  std::map<std::string, int> counts;
  for (const auto& function : functions) ++counts[std::string(function->name())];
  std::map<std::string, int> numbers;
  std::vector<std::string> names;
  for (const auto& function : functions) {
    std::string name(function->name());
    if (counts[name] > 1) {
      int& number = numbers[name];
      std::string numbered;
      do numbered = fmt::format("{}-{}", name, ++number);
      while (counts.contains(numbered));  // another function may have this name
      name = std::move(numbered);
    }
    names.push_back(std::move(name));
  }
  return names;
}

}  // namespace primus
