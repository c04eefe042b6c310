// Makes reward functions from their texts.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
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
  if (kind.ends_with(".py") || kind.ends_with(".sh")) {
    throw invalid(fmt::format("reward '{}' names a file, but no kind of reward function", printable(text)),
                  fmt::format("write reward='program:{} {}' (docs/rewards.md)",
                              kind.ends_with(".py") ? "python3" : "sh", printable(text)));
  }
  std::error_code none;
  if (std::filesystem::is_directory(text, none)) {
    throw invalid(fmt::format("reward '{}' names a folder, but no kind of reward function", printable(text)),
                  fmt::format("if the folder has a reward model, write reward=model:{} (docs/rewards.md)",
                              printable(text)));
  }
  const std::string meant = did_you_mean(kind, kinds);
  throw invalid(fmt::format("reward '{}' names no kind of reward function", printable(text)),
                (meant.empty() ? std::string() : meant + " ") + "the kinds are " + all_forms());
}

// Refuses two functions in one text, such as "exact:answer,number:answer".
void refuse_joined(const std::string& text) {
  if (!column_of(text)) return;
  for (const RewardEntry& other : reward_kinds()) {
    const std::size_t comma = text.find(fmt::format(",{}:", other.kind));
    if (comma == std::string::npos) continue;
    throw invalid(fmt::format("reward '{}' has two functions in one text", printable(text)),
                  fmt::format("write a list: reward='[{}, {}]'; for 'data score', --reward {} {}",
                              printable(text.substr(0, comma)), printable(text.substr(comma + 1)),
                              printable(text.substr(0, comma)), printable(text.substr(comma + 1))));
  }
}

}  // namespace

std::optional<std::string> column_of(const std::string& text) {
  const std::size_t colon = text.find(':');
  if (colon == std::string::npos) return std::nullopt;
  const std::string kind = text.substr(0, colon), column = text.substr(colon + 1);
  const bool reads = std::ranges::any_of(reward_kinds(), [&](const RewardEntry& entry) {
    return entry.kind == kind && entry.form.starts_with(kind + ":COLUMN");
  });
  return reads && !column.ends_with(".json") ? std::optional(column) : std::nullopt;
}

std::optional<std::string> reward_model_of(const std::string& text) {
  constexpr std::string_view kPrefix = "model:";
  return text.starts_with(kPrefix) ? std::optional(text.substr(kPrefix.size())) : std::nullopt;
}

void require_column(const std::string& text, std::span<const std::string_view> columns) {
  const std::optional<std::string> column = column_of(text);
  if (!column || std::ranges::find(columns, *column) != columns.end()) return;
  const std::string near = did_you_mean(*column, columns);
  throw invalid(
      fmt::format("reward '{}': no record has the column '{}'", printable(text), printable(*column)),
      !near.empty()     ? near
      : columns.empty() ? "the records have only prompts: add the column to the data"
                        : fmt::format("the columns are {}", fmt::join(columns, ", ")));
}

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
    refuse_joined(text);
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
