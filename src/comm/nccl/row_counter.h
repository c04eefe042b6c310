// The counts of all_to_all_rows() on the host: copies from the device, in flight or arrived.
//
// The library needs sizes when it is called. The stream could instead wait for a flag, which another thread
// sets when it knows the sizes and has enqueued the transfer. But CUDA may then block: the first launch of a
// kernel, a kernel that needs more local memory, and the release of memory make all later work of the device
// wait for all earlier work, and so for the flag (measured; docs/performance-log.md). So the host waits for
// the counts.
//
// Thread-safety: belongs to the rank's thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "base/system/thread_pool.h"
#include "comm/communicator.h"
#include "device/device.h"

namespace primus::comm::nccl {

struct Context;

class RowCounter {
 public:
  // `ranks`: the number of counts in each list. `context` must outlive this object. Destroy this object only
  // after the streams have finished its copies.
  RowCounter(Context& context, int ranks) : context_(context), ranks_(ranks) {}
  RowCounter(const RowCounter&) = delete;
  RowCounter& operator=(const RowCounter&) = delete;

  // Starts to copy the counts. They replace earlier counts of this number, because a plan that is computed
  // again may differ from the first one.
  void begin(Stream& stream, const Tensor& sends, const Tensor& receives, std::uint64_t number);

  // The counts of a call, by rank.
  struct Counts {
    std::vector<std::int64_t> sends, receives;
  };
  // Returns the counts of this call. Blocks until they have arrived, and calls `waiting` meanwhile, which may
  // throw.
  Counts counts_of(Stream& stream, const Call& call, FunctionRef<void()> waiting);

 private:
  struct Copy {
    PinnedBuffer memory;  // sends, then receives
    std::unique_ptr<Event> arrived;
  };
  Copy start(Stream& stream, const Tensor& sends, const Tensor& receives);
  Counts finish(Copy copy, FunctionRef<void()> waiting);
  // Forgets old numbers, so that memory is limited. Calls with forgotten numbers copy their counts again.
  void forget_old();

  Context& context_;
  const int ranks_;
  std::map<std::uint64_t, Copy> in_flight_;
  std::map<std::uint64_t, Counts> known_;
  std::vector<Copy>
      free_;  // also copies in flight that were given up; the stream orders later copies after them
};

}  // namespace primus::comm::nccl
