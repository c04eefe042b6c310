// Collectives that send tokens to experts of other ranks and return the results. These collectives overlap
// other work of the rank, such as its shared experts. engine/parallel/expert_dispatch.h has the operators.
//
// One operator begins a collective, and a later operator waits for it. Collectives are waited for in reverse
// order, because a replay (engine/runtime/tape.h) may dispatch other tokens while gradients are in flight.
//
// If microbatches alternate (Strands), another microbatch continues after each begin. Then each microbatch
// waits for its own collectives in reverse order.
//
// Not thread-safe; one per rank. All ranks of the group make the same calls in the same order.
#pragma once

#include <memory>
#include <vector>

#include "base/system/strands.h"
#include "base/system/thread_pool.h"
#include "engine/runtime/rank.h"

namespace primus::engine {

class ExpertParallel {
 public:
  struct Options {
    bool shared_experts = true;  // collectives overlap shared experts
    bool microbatches = false;   // collectives overlap the computation of another microbatch
  };

  // `group`: the ranks over which experts are distributed. `group`, `hosts` and `rank` must outlive this
  // object. `hosts`: for all-to-all in two hops (engine/parallel/expert_hops.h); empty: in one hop.
  ExpertParallel(Rank& rank, comm::Communicator& group, const Options& options,
                 const ExpertHosts& hosts = {});

  comm::Communicator& group() { return group_; }
  const ExpertHosts& hosts() const { return hosts_; }
  // Returns whether collectives overlap other work. `shared`: the model has shared experts.
  bool overlaps(bool shared) const { return options_.microbatches || (options_.shared_experts && shared); }
  // Alternates between two microbatches; null without Options::microbatches.
  Strands* strands() { return options_.microbatches ? &strands_ : nullptr; }
  // Allocates stash memory for a transfer.
  Buffer allocate(std::int64_t bytes) { return rank_.stash().allocate(bytes); }

  // Calls `collective` with a stream. The collective runs on this stream, after the work enqueued on the
  // compute stream up to now. `overlap`: uses a separate stream, so the collective overlaps later work of the
  // compute stream. Then another microbatch continues, if microbatches alternate. The operators' inputs and
  // outputs must live until finish(); `buffer` and `working` are held until then.
  using Collective = FunctionRef<void(comm::Communicator& group, Stream& stream)>;
  void start(bool overlap, Collective collective, Buffer buffer, std::vector<Buffer> working = {});
  // Makes the compute stream wait for the most recent collective, and returns the buffer of that collective.
  Buffer finish();
  // Abandons a step half-way, after an error: the compute stream waits for the transfers in flight, and their
  // memory returns to the stash.
  void abandon() noexcept;

 private:
  struct Flight {
    std::unique_ptr<Event> arrived;  // null: the collective runs on the compute stream
    Buffer buffer;
    std::vector<Buffer> working;
  };
  Buffer finish(std::vector<Flight>& flights);
  // Makes products leave some multiprocessors free for the collectives that overlap them.
  void spare_processors();

  Rank& rank_;
  comm::Communicator& group_;
  Options options_;
  ExpertHosts hosts_;
  Strands strands_;
  // The stream of transfers that overlap. It is not the rank's communication stream, because the transfers of
  // data-parallel shards on that stream would delay the experts.
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Event> computed_;
  std::vector<Flight> flights_[2];              // of each of two alternating microbatches
  std::vector<std::unique_ptr<Event>> events_;  // unused events, for reuse
};

}  // namespace primus::engine
