// Follows a run's metrics.jsonl while the run writes it (docs/formats/metrics.md). Not thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/files/file.h"

namespace primus::cli {

struct MetricsPoint {
  std::int64_t iteration = 0;
  double loss = 0, tokens_per_second = 0;
};

class MetricsTail {
 public:
  explicit MetricsTail(Path file) : path_(std::move(file)) {}
  // Returns the points written since the last call; empty if the file does not exist yet. Skips lines that
  // are not points.
  std::vector<MetricsPoint> read();

 private:
  Path path_;
  std::uint64_t offset_ = 0;
  std::string partial_;  // the start of a line whose end is not written yet
};

}  // namespace primus::cli
