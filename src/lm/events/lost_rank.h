// Lets the launcher record the end of a run if no process of the run has recorded it: rank 0 was lost, or a
// rank ended before training began.
//
// Free functions without state.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/files/file.h"

namespace primus {

// The reason of an end (RunEnding::reason) if another rank was lost.
inline constexpr std::string_view kLostRank = "a rank was lost";

// Appends a fault of `rank` and the run's end to rank 0's events, and writes ending.json. `text`: one
// sentence that says what happened. Does nothing if rank 0 has recorded an end, or if no start of the run has
// begun. Rank 0 sees only that a peer was lost, and not why. If it has recorded this after `since` (seconds
// since 1970; the start of the job), and `text` names the signal that killed the peer, both are appended,
// too. Never throws, because the launcher's own message is more important.
void record_lost_rank(const Path& run, int rank, const std::string& text,
                      std::optional<double> since = {}) noexcept;

// The reason of an end before the first step, with exit code 1 or 2: the same command would end again.
inline constexpr std::string_view kRefused = "refused";

// Records the end of a run that has a folder with logs, but whose training never began, because a rank ended
// before that. Replaces the end of an earlier start, which was recorded before `since` (seconds since 1970;
// the start of the job). Does nothing for other runs. Never throws.
void record_early_end(const Path& run, int rank, std::string_view reason, const std::string& text,
                      double since) noexcept;

}  // namespace primus
