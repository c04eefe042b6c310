// Follows the records of one run while they grow (docs/formats/metrics.md). A long file is first sampled, so
// that curves appear at once, and then read completely, a slice at a time. Memory does not grow with the run:
// curves have at most kReportBuckets points, and a table of offsets makes it possible to read a range of
// steps again.
//
// Files that are damaged, replaced or truncated result in notes or in a new start, never in an error. Not
// thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lm/report/history_reader.h"
#include "lm/report/report.h"
#include "safe/dashboard/file_state.h"

namespace primus::dashboard {

class RunIndex {
 public:
  explicit RunIndex(const Path& folder);
  RunIndex(const RunIndex&) = delete;
  RunIndex& operator=(const RunIndex&) = delete;

  // Reads new records for about `budget`. Returns whether more are left.
  bool advance(std::chrono::milliseconds budget);

  // The history, without RunHistory::status. While a long file is read for the first time, its curves are
  // samples of the complete run.
  RunHistory history() const;
  // The share of the records that has been read, 0..1.
  double progress() const;
  // A number that changes with the history.
  std::uint64_t version() const { return version_; }
  std::int64_t last_step() const { return reader_->last_step(); }

  // Reads the steps from..to again, with more points than the history has for them.
  static constexpr std::uint64_t kMaxRange = 16 << 20;
  struct Range {
    std::optional<RunHistory> run = {};  // only these steps; nullopt: see `problem`
    std::string problem = {};            // they take more than kMaxRange bytes, or cannot be read
  };
  Range range(std::int64_t from, std::int64_t to) const;

 private:
  struct Mark {
    std::int64_t step;
    std::uint64_t offset;
  };
  void restart();
  void sample();
  void read_others();
  bool same_file();
  void take(std::string_view text);

  Path folder_, metrics_;
  RunHistory run_;
  std::optional<HistoryReader> reader_;
  std::optional<Curves> samples_;
  FileState state_, evaluations_state_, texts_state_, settings_state_;
  std::uint64_t offset_ = 0;  // end of the last complete line that was read
  std::string tail_;          // the last bytes before offset_, to recognize a file that was truncated
  std::vector<Mark> marks_;   // offsets of steps, in order
  std::uint64_t mark_distance_;
  std::vector<std::string> notes_;
  std::string buffer_;
  std::uint64_t version_ = 0;
};

}  // namespace primus::dashboard
