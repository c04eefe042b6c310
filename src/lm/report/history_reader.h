// Adds a run's records to its RunHistory one by one. 'primus report' reads all records at once; 'primus
// dashboard' adds the records that a running process appends. Not thread-safe.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lm/report/report.h"

namespace primus {

class HistoryReader {
 public:
  // `run` must outlive this object.
  explicit HistoryReader(RunHistory& run) : run_(run) {}

  // Leaves out other steps from now on.
  void only(std::int64_t from, std::int64_t to) {
    from_ = from;
    to_ = to;
  }

  // Adds a line of metrics.jsonl. Skips and counts a line that is damaged or not after the previous step.
  void step(std::string_view text);
  // Adds a line of evaluations.jsonl.
  void evaluation(std::string_view text);

  std::int64_t last_step() const { return steps_.last; }  // -1: none
  std::int64_t bad_steps() const { return steps_.bad; }
  std::int64_t bad_evaluations() const { return evaluations_.bad; }

  struct Line {
    std::int64_t iteration = 0;
    double samples = 0, milliseconds = 0;
    std::vector<std::pair<std::string, double>> numbers = {};
    std::string data_set = {};
  };

 private:
  struct Kind {
    std::int64_t bad = 0, last = -1;
  };
  const Line* next(std::string_view text, std::int64_t min_advance, Kind& kind);

  RunHistory& run_;
  Line line_;
  Kind steps_, evaluations_;
  std::int64_t from_ = 0, to_ = std::numeric_limits<std::int64_t>::max();
};

// Reads the settings of the run's experiment into run.settings. Adds a note if they cannot be read.
void read_settings(RunHistory& run);

}  // namespace primus
