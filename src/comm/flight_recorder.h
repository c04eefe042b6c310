// The flight recorder of a rank: its last 2 000 collectives on all communicators, in fixed memory. Recording
// costs a few atomic stores per collective. Any thread may read it at any time, even while the rank hangs.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.h"

namespace primus::comm {

// A collective's parameters without addresses. The ranks of a group compare these parameters.
struct Signature {
  Kind kind = Kind::kBarrier;
  DType dtype = DType::kU8;
  Reduction reduction = Reduction::kSum;
  std::int32_t root = 0;
  std::int64_t count = 0;  // elements of `in` if equal on all ranks, else the elements that this rank sends

  bool operator==(const Signature&) const = default;
  std::string to_string() const;  // such as "all_reduce (sum of 1024 fp32)"
};

Signature signature_of(const Call& call);

class FlightRecorder {
 public:
  static constexpr std::size_t kRecords = 2000;
  enum class State : std::uint8_t { kEnqueued, kRunning, kDone, kFailed };

  // One collective, as returned by records().
  struct Record {
    std::uint64_t id = 0;  // number among the rank's collectives, from 1
    // number among the group's collectives, from 1; each rank counts its exchanges separately
    std::uint64_t sequence = 0;
    std::string group;
    int group_size = 0;
    Signature signature;
    State state = State::kEnqueued;
    double enqueued = 0, started = 0, ended = 0;  // seconds since 1970; 0: not yet
    int waiting_for = -1;                         // job rank for which this rank currently
                                                  // waits, or -1

    std::string to_string() const;  // such as "all_reduce #17 (sum of 1024 fp32) of group 'world'"
  };

  FlightRecorder();

  // Registers a group and returns its index for enqueued().
  int add_group(std::string name, int size);
  // Adds a record and returns its id, which the following calls need.
  std::uint64_t enqueued(int group, std::uint64_t sequence, const Signature& signature);
  void started(std::uint64_t id);
  void waiting_for(std::uint64_t id, int rank);  // -1: no longer waiting
  void ended(std::uint64_t id, bool failed);

  // Returns all records that were not overwritten, oldest first.
  std::vector<Record> records() const;
  // Returns {"records": [...]} with every field of a Record.
  nlohmann::ordered_json to_json() const;

 private:
  // The fields are atomic, so a reader may read a slot while a collective overwrites the slot. The reader
  // detects the overwrite, because `id` differs before and after reading.
  struct Slot {
    std::atomic<std::uint64_t> id{0}, sequence{0};
    std::atomic<std::int64_t> count{0}, enqueued{0}, started{0}, ended{0};  // times in ns since 1970
    std::atomic<std::int32_t> group{0}, root{0}, waiting_for{-1};
    std::atomic<std::uint8_t> kind{0}, dtype{0}, reduction{0}, state{0};
  };
  struct Group {
    std::string name;
    int size;
  };

  Slot& slot(std::uint64_t id) { return slots_[id % kRecords]; }

  std::unique_ptr<std::array<Slot, kRecords>> storage_;
  std::array<Slot, kRecords>& slots_;
  std::atomic<std::uint64_t> next_{1};
  mutable std::mutex groups_mutex_;
  std::vector<Group> groups_;
};

}  // namespace primus::comm
