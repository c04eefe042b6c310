// Measures the speed of an experiment's data path: opening the data, and reading batches as training does.
// Runs in one thread plus the loader's threads.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "bench/report.h"
#include "config/experiment.h"

namespace primus {

struct DataBenchmarkOptions {
  double seconds = 2;  // per measurement
  // Called with the current phase and its progress in bytes of tokenized text; 0 of 0 for a phase of unknown
  // length. Calls come from one thread at a time. May be empty.
  std::function<void(std::string_view what, std::int64_t done, std::int64_t total)> progress = {};
};

// Cases: `open` (tokenizes what is not tokenized yet, computes sample orders); `read` (reads each batch in
// the training thread); `read ahead` (prefetches as training does, with a consumer that never pauses). Reads
// samples of the training set in training order, and starts over if the data set is too small.
BenchmarkReport benchmark_data(const config::Experiment& experiment, const DataBenchmarkOptions& options);

}  // namespace primus
