// Collectives that bring tokens to experts of other ranks and back, beside what the rank computes meanwhile:
// its shared experts (engine/expert_dispatch.h, which has the operators).
//
// A collective is begun by one operator and waited for by a later one. What was begun last is waited for
// first: a replay (engine/tape.h) may bring other tokens to their experts while gradients are on their way.
//
// Not thread-safe; one per rank. All ranks of the group make the same calls in the same order.
#pragma once

#include <memory>
#include <vector>

#include "base/system/thread_pool.h"
#include "engine/rank.h"

namespace primus::engine {

class ExpertParallel {
 public:
  // `group`: the ranks that share experts. It and `rank` must outlive this. `overlap` false: nothing runs
  // beside anything.
  ExpertParallel(Rank& rank, comm::Communicator& group, bool overlap);

  comm::Communicator& group() { return group_; }
  bool overlaps() const { return overlap_; }
  // Memory of the stash for what is on its way.
  Buffer allocate(std::int64_t bytes) { return rank_.stash().allocate(bytes); }

  // Calls `collective` with the stream that it is to run on, behind what the compute stream has so far.
  // `beside`: a stream of its own, beside what the compute stream gets from now on. The operators' inputs and
  // outputs must stay until finish(); `buffer` does.
  using Collective = FunctionRef<void(comm::Communicator& group, Stream& stream)>;
  void start(bool beside, Collective collective, Buffer buffer);
  // The compute stream waits for the collective that was started last. Returns its buffer.
  Buffer finish();
  // Leaves a step half-way, after an error: the compute stream waits for what is on its way, whose memory
  // then returns to the stash.
  void abandon() noexcept;

 private:
  struct Flight {
    std::unique_ptr<Event> arrived;  // null: it runs on the compute stream
    Buffer buffer;
  };
  // Products leave multiprocessors to what runs beside them.
  void spare_processors();

  Rank& rank_;
  comm::Communicator& group_;
  bool overlap_;
  // A stream of its own: what is sharded over data ranks travels on the rank's, and must not hold this up.
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Event> computed_;
  std::vector<Flight> flights_;
  std::vector<std::unique_ptr<Event>> events_;  // to be used again
};

}  // namespace primus::engine
