// Step times, waits for data and memory of each rank of a run, from the events of the ranks
// (docs/formats/events.md), as a table of ranks and groups of steps. The table follows the files while they
// grow. A group keeps the maximum of its steps, so a single slow step stays visible. Memory: about 4 KiB for
// a rank. Not thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/files/file.h"
#include "safe/dashboard/file_state.h"

namespace primus::dashboard {

class RankTimes {
 public:
  static constexpr std::size_t kColumns = 200;
  static constexpr std::size_t kMaxRanks =
      1024;  // further ranks are not read, and the JSON names their number

  explicit RankTimes(Path run_folder) : folder_(std::move(run_folder)) {}

  // Reads new events for about `budget`. Returns whether more are left.
  bool advance(std::chrono::milliseconds budget);
  // {"steps_per_column": 4, "ranks": [{"rank": 0, "seconds": [...], "wait": [...], "memory": [...]}, ...],
  // "left_out": 0}; null where a rank has no value. Column i has the steps after i * steps_per_column.
  nlohmann::ordered_json json() const;
  // A number that changes with the table.
  std::uint64_t version() const { return version_; }

  struct Cell {
    float seconds = 0, wait = 0, memory = 0;  // maximum step time, share of waiting, and bytes
    bool any = false;
    void add(const Cell& other);
  };

 private:
  struct Rank {
    FileState state = {};
    std::uint64_t offset = 0;
    std::int64_t width = 1;  // steps of a column
    std::vector<Cell> cells = {};
  };
  void find_ranks();
  static void take(std::string_view line, Rank& rank);
  static Cell& column_of(std::int64_t step, Rank& rank);

  Path folder_;
  std::map<int, Rank> ranks_;
  std::size_t left_out_ = 0;
  std::chrono::steady_clock::time_point searched_ = {};
  std::uint64_t version_ = 0;
};

}  // namespace primus::dashboard
