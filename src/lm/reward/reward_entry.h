// The table of kinds of reward functions. Each kind is one file in this folder, which ends with its entry.
// The build collects the entries (primus_entry_list in cmake/PrimusBuild.cmake).
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "lm/reward/reward.h"

namespace primus {

// A reward function as the user writes it: "number:answer" has the kind "number" and the argument "answer".
struct RewardText {
  std::string text;      // the entire text, for error messages
  std::string argument;  // the part after the first ':'
};

//   extern const RewardEntry kExactReward{"exact", "exact:COLUMN", "...", make_exact};
struct RewardEntry {
  std::string_view kind;   // the part of a reward's text before the first ':'
  std::string_view form;   // how users write it: "exact:COLUMN"
  std::string_view title;  // one line for help
  // Throws Error(kInvalid) for an invalid argument.
  std::unique_ptr<RewardFunction> (*make)(const RewardText& text, const RewardSettings& settings);
};

// Returns all kinds, sorted by name.
std::span<const RewardEntry> reward_kinds();

}  // namespace primus
