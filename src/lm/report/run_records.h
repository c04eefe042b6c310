// Reads the records of a run from rank 0's events (docs/formats/events.md). Runs of older versions have no
// events; their records are read from metrics.jsonl and evaluations.jsonl. Free functions without state.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/files/file.h"

namespace primus {

// Returns the file of rank 0's events if they cover the run from its beginning, else nullopt.
std::optional<Path> events_of(const Path& run);
// Returns the file that contains the run's steps.
Path steps_file(const Path& run);

using RecordFn = std::function<void(std::string_view line)>;
// Calls step(line) for each step and evaluation(line) for each evaluation. Steps come in order, and
// evaluations come in order. `line` is in the format of metrics.jsonl or evaluations.jsonl. Calls
// damaged(name, lines) for a file with damaged lines. Throws FileError.
void read_records(const Path& run, const RecordFn& step, const RecordFn& evaluation,
                  const std::function<void(std::string_view name, std::int64_t lines)>& damaged = {});

// Returns the settings of the last process that trained, as in experiment.yaml; nullopt if none are recorded.
// Throws FileError, or Error(kInvalid) if the file is too large.
std::optional<std::string> recorded_experiment(const Path& run);

}  // namespace primus
