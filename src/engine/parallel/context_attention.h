// Context parallelism: the ranks of a group hold different tokens of the same sequences, and attention
// transfers keys and values to the queries (ring attention, Liu et al. 2023; the layout is Megatron-LM's).
//
// Each sequence is cut into 2 C slices for C ranks. Rank c holds the slices c and 2 C - 1 - c, which balances
// the causal work. All operators except attention work on the rank's own tokens, whose positions are
// explicit.
//
//   kRing       keys and values are sent around the ring. Each transfer overlaps the attention over
//               the previous step's keys. In the backward pass their gradients are sent with them.
//               (cp_comm_type: p2p)
//   kAllGather  every rank first gathers all keys and values. (cp_comm_type: all_gather)
//   kAllToAll   every rank gets all tokens for its share of the heads, and sends the results back
//               (DeepSpeed-Ulysses). The ranks must divide the heads. (cp_comm_type: a2a)
//
// The order of every sum is independent of timing. Not thread-safe; one per rank.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/operators/operators.h"
#include "engine/runtime/rank.h"

namespace primus::engine {

class ContextParallel {
 public:
  enum class Exchange : std::uint8_t { kRing, kAllGather, kAllToAll };

  // The mesh of `rank` must have more than one context rank. `rank` must outlive this object.
  ContextParallel(Rank& rank, Exchange exchange);

  int ranks() const { return group_.size(); }
  int rank() const { return group_.rank(); }
  // Returns the position of a rank's slice `half` (0 or 1) among the slices of a sequence.
  std::int64_t slice(int of_rank, int half) const {
    return half == 0 ? of_rank : 2 * std::int64_t{ranks()} - 1 - of_rank;
  }
  Exchange exchange() const { return exchange_; }

  // The following functions are for the attention operator. Collectives overlap the compute stream, which
  // waits for a collective before it uses the results. pass_on() sends `from` to the next rank and receives
  // the previous rank's `from` in `into`. The transfer starts after the work enqueued on the compute stream
  // up to now.
  void pass_on(const Tensor& from, const Tensor& into, Event& arrived);
  void all_gather(const Tensor& own, const Tensor& all);
  void reduce_scatter(const Tensor& all, const Tensor& own);
  // Runs the transfers; values_arrived() marks the end of the transfers.
  void exchange(std::span<const comm::Transfer> transfers);
  void wait(Event& arrived) { rank_.compute().wait(arrived); }
  // The backward pass has two transfers in flight: keys and values, and their gradients.
  Event& values_arrived() { return *values_arrived_; }
  Event& gradients_arrived() { return *gradients_arrived_; }

 private:
  void follow_compute();

  Rank& rank_;
  comm::Communicator& group_;
  Exchange exchange_;
  std::unique_ptr<Event> computed_, values_arrived_, gradients_arrived_;
};

// Returns, for each token of a rank in the order of the rank's rows, its position within the complete
// sequence. `sequence` is a multiple of 2 * ranks.
std::vector<std::int64_t> context_positions(std::int64_t sequence, int ranks, int rank);

// Implements attention() with AttentionOptions::context: this rank holds `shape.seq_q` tokens of each
// sequence, in the order of context_positions(). Does not support a cache.
Value context_attention(const Value& qkv, const turbo::AttentionShape& shape,
                        const AttentionOptions& options);

// Implements context_attention() for Exchange::kAllToAll (context_all_to_all.cpp).
Value attention_by_heads(const Value& qkv, turbo::AttentionShape shape, const AttentionOptions& options);

}  // namespace primus::engine
