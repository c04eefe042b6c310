// Differences between the clocks of a run's nodes. Pure functions; thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "safe/postmortem/evidence.h"

namespace primus::postmortem {

// The times at which one rank completed its newest steps, in seconds since 1970 of its own clock.
using StepTimes = std::map<std::int64_t, double>;

// Ranks complete a step at nearly the same moment, because they wait for each other. So the median difference
// between the times of common steps is the difference between the clocks. Sets RankRecord::ahead relative to
// the lowest rank, and corrects the times of the records and of their evidence. `steps`: by rank. Ignores
// differences below 2 s, and ranks whose last process began at another time.
void align_clocks(const std::map<int, StepTimes>& steps, CaseFile& file);

// Corrects the times of evidence that ranks or the kernels of their nodes dated, and that was added to
// `file.evidence` at `first` or later.
void align_evidence(std::size_t first, CaseFile& file);

}  // namespace primus::postmortem
