// For a launcher: the end of a run whose rank 0 could not record it, because its process was lost.
//
// Free function without state.
#pragma once

#include <string>

#include "base/files/file.h"

namespace primus {

// Adds a fault of `rank` and the run's end to rank 0's events, and writes ending.json. `text`: what happened,
// in one sentence. Does nothing where rank 0 recorded an end, or no training had begun. Never throws: the
// launcher's own message matters more.
void record_lost_rank(const Path& run, int rank, const std::string& text) noexcept;

}  // namespace primus
