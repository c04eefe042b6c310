// The events of a run that are not steps: starts, checkpoints, evaluations, warnings, faults, ends, and what
// a supervisor did (docs/formats/events.md). Free functions without state.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "base/files/file.h"

namespace primus::dashboard {

inline constexpr std::size_t kMaxEvents = 400;

// Returns the newest events of rank 0 and of the supervisor, the newest first, at most `count` of each file:
// [{"time": ..., "step": 3, "kind": "warning", "cause": "...", "text": "...", "void": false}, ...]. An event
// is void if a restart repeats its step. "text" is the event in one line. Files that cannot be read have no
// events.
nlohmann::ordered_json events_json(const Path& run, std::size_t count = kMaxEvents);

// The newest event of rank 0 in a few words: "checkpoint 400", "warning loss_growth". Empty without events.
std::string newest_event(const Path& run);

}  // namespace primus::dashboard
