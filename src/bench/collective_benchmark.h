// Measures how fast the ranks of a job communicate: each operation of comm::Communicator over a range of
// message sizes.
//
// A sample is one call, from enqueueing until the host detects its completion; its time is the time of the
// slowest rank. A repetition starts with a barrier and then makes its calls back to back. Calls rotate
// through buffers that together exceed most caches.
//
// Algorithm bandwidth is the message size divided by the time. Bus bandwidth is the algorithm bandwidth times
// the ratio of the bytes on the busiest link to the message size, if all ranks exchange directly: 2(n-1)/n
// for all-reduce, (n-1)/n for all-gather, reduce-scatter and all-to-all, 1 for broadcast and send-receive.
// The message size is the size of the larger of a rank's two tensors.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "bench/report.h"
#include "comm/communicator.h"

namespace primus {

enum class CollectiveOp : std::uint8_t {
  kAllReduce,
  kBroadcast,
  kReduceScatter,
  kAllGather,
  kAllToAll,
  kSendReceive,  // sends to the next rank and receives from the previous rank, concurrently
  kBarrier,
};
const char* name_of(CollectiveOp op);  // "all_reduce"
// Parses a list of these names; also accepts AMD Primus's "alltoall", and "all". Throws Error(kInvalid) for
// other words.
std::vector<CollectiveOp> parse_collectives(const std::string& list);

// Returns `size` in bytes, rounded up to a whole number of elements per rank.
std::int64_t message_bytes(std::int64_t size, DType dtype, std::int64_t ranks);

// One timed call.
struct CollectiveSample {
  CollectiveOp op;
  std::int64_t bytes = 0;             // actual message size; 0: the operation has no message
  int repetition = 0, iteration = 0;  // both count from 0
  std::vector<double> seconds;        // indexed by rank
};

struct CollectivePlan {
  std::vector<CollectiveOp> ops;
  std::vector<std::int64_t> sizes;  // bytes; rounded up to a whole number of elements per rank
  DType dtype = DType::kF32;
  // Each of several repetitions gives a separate result ("all_reduce 1024, repetition 2"). If `aggregate` is
  // true, a further result, whose name has no number, covers all repetitions.
  int warmup = 20, iterations = 100, repetitions = 1;
  bool aggregate = false;
  bool check = false;       // verifies results before timing
  bool rank_times = false;  // fills in BenchmarkResult::rank_timings
  // Called on every rank before each case. The arguments are the finished and the total work, in bytes that
  // the calls exchange. May be empty.
  std::function<void(std::int64_t done, std::int64_t total)> progress = {};
  // Called on every rank for each sample.
  std::function<void(const CollectiveSample& sample)> trace = {};
};

// All ranks must call this function with the same plan, and all get the same results. Throws Error if a
// result is wrong, a rank is lost, or the tensors do not fit on the device.
std::vector<BenchmarkResult> measure_collectives(comm::Communicator& world, Device& device,
                                                 const CollectivePlan& plan);

struct StridedPlan {
  std::vector<std::int64_t> sizes;  // bytes that each rank contributes; rounded up to whole elements
  DType dtype = DType::kF32;
  int stride = 8;         // ranks r, r + stride, r + 2 stride ... form a group
  bool parallel = false;  // true: all groups concurrently; false: one after another
  int warmup = 10, iterations = 50;
  std::function<void(std::int64_t done, std::int64_t total)> progress = {};  // as in CollectivePlan
};
// Times all-gathers within strided groups, as tensor-parallel ranks use them. Otherwise like
// measure_collectives(). A result is the time of one group or, with `parallel`, of the slowest group.
std::vector<BenchmarkResult> measure_strided_all_gather(comm::Communicator& world, Device& device,
                                                        const StridedPlan& plan);

}  // namespace primus
