// How fast the ranks of a job exchange: every operation of the communicators' contract over sizes of
// messages.
//
// A sample is one call, from its enqueueing until the host has seen its end, and counts as the slowest
// rank's. Every call of a repetition follows the one before; a barrier stands before each repetition. Calls
// take turns with buffers that together are more than caches hold.
//
// Algorithm bandwidth is the message's size over the time; bus bandwidth weighs it with what the operation
// must move over the busiest link when everybody exchanges directly (all-reduce 2(n-1)/n, all-gather,
// reduce-scatter and all-to-all (n-1)/n, broadcast and send-receive 1). The size is that of the larger of a
// rank's two tensors.
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
  kSendReceive,  // to the next rank and from the one before, at once
  kBarrier,
};
const char* name_of(CollectiveOp op);  // "all_reduce"
// By those names, and Primus's "alltoall"; "all" for all. Throws Error(kInvalid) for other words.
std::vector<CollectiveOp> parse_collectives(const std::string& list);

// Bytes of the message that `size` bytes become: rounded up to whole elements for each rank.
std::int64_t message_bytes(std::int64_t size, DType dtype, std::int64_t ranks);

// One call.
struct CollectiveSample {
  CollectiveOp op;
  std::int64_t bytes = 0;             // as they were exchanged; 0: the operation has no message
  int repetition = 0, iteration = 0;  // from 0
  std::vector<double> seconds;        // by rank
};

struct CollectivePlan {
  std::vector<CollectiveOp> ops;
  std::vector<std::int64_t> sizes;  // bytes; rounded up to whole elements for each rank
  DType dtype = DType::kF32;
  // Of several repetitions each is a result of its own ("all_reduce 1024, repetition 2"); with `aggregate`
  // all of them together are one more, by the plain name.
  int warmup = 20, iterations = 100, repetitions = 1;
  bool aggregate = false;
  bool check = false;       // compare results with what they must be, before they are timed
  bool rank_times = false;  // BenchmarkResult::rank_timings
  // Called on every rank before each case, with the work that is done and all of it, in bytes that calls
  // exchange. May be empty.
  std::function<void(std::int64_t done, std::int64_t total)> progress = {};
  // Called on every rank with each sample.
  std::function<void(const CollectiveSample& sample)> trace = {};
};

// Every rank calls it with the same plan; all get the same results. Throws Error where a result is wrong, a
// rank is lost, or the tensors do not fit the device.
std::vector<BenchmarkResult> measure_collectives(comm::Communicator& world, Device& device,
                                                 const CollectivePlan& plan);

struct StridedPlan {
  std::vector<std::int64_t> sizes;  // bytes that each rank gives; rounded up to whole elements
  DType dtype = DType::kF32;
  int stride = 8;         // ranks r, r + stride, r + 2 stride ... are a group
  bool parallel = false;  // all groups at once, else one after the other
  int warmup = 10, iterations = 50;
  std::function<void(std::int64_t done, std::int64_t total)> progress = {};  // as above
};
// All-gathers within such groups, as tensor-parallel neighbours have them. As above; a result is of
// one group, or with `parallel` of the slowest.
std::vector<BenchmarkResult> measure_strided_all_gather(comm::Communicator& world, Device& device,
                                                        const StridedPlan& plan);

}  // namespace primus
