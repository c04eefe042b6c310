// Lets the launcher record the end of a run if the process of rank 0 was lost before recording the end.
//
// Free function without state.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/files/file.h"

namespace primus {

// The reason of an end (RunEnding::reason) if another rank was lost.
inline constexpr std::string_view kLostRank = "a rank was lost";

// Appends a fault of `rank` and the run's end to rank 0's events, and writes ending.json. `text`: one
// sentence that says what happened. Does nothing if rank 0 has recorded an end, or if training had not begun.
// Rank 0 sees only that a peer was lost, and not why. If it has recorded this after `since` (seconds since
// 1970; the start of the job), and `text` names the signal that killed the peer, both are appended, too.
// Never throws, because the launcher's own message is more important.
void record_lost_rank(const Path& run, int rank, const std::string& text,
                      std::optional<double> since = {}) noexcept;

}  // namespace primus
