// Reads the texts that a model wrote in training (samples.jsonl, docs/formats/metrics.md). Free functions
// without state.
#pragma once

#include <cstdint>
#include <vector>

#include "base/files/file.h"
#include "lm/events/iteration.h"

namespace primus {

inline constexpr std::size_t kReportTexts = 64;  // max number of texts of a run in a report
// Max size of a prompt and of a text; the rest is cut.
inline constexpr std::size_t kReportTextBytes = 1 << 14;

// Returns the newest texts of a run, in the order of the file; empty without the file. Skips damaged lines
// and adds their number to `damaged`. Throws FileError.
std::vector<SampleRecord> newest_texts(const Path& file, std::int64_t& damaged,
                                       std::size_t count = kReportTexts);

}  // namespace primus
