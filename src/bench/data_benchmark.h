// How fast the data path of an experiment is: opening it, and batches as training takes them. One thread, and
// those of the loader.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "bench/report.h"
#include "config/experiment.h"

namespace primus {

struct DataBenchmarkOptions {
  double seconds = 2;  // for each measurement
  // Called with the present phase and its progress: bytes of text that are tokenized, or 0 of 0 for a phase
  // whose length is not known. Calls come from one thread at a time. May be empty.
  std::function<void(std::string_view what, std::int64_t done, std::int64_t total)> progress = {};
};

// Cases: `open` (tokenising what is not yet, sample orders), `read`: each batch in the training thread, and
// `read ahead`: as training does, with a consumer that wants batches without pause. Samples of the training
// set in training's order; those that the data set has are read again from its start where it is too small.
BenchmarkReport benchmark_data(const config::Experiment& experiment, const DataBenchmarkOptions& options);

}  // namespace primus
