// Context parallelism: the ranks of a group hold different tokens of the same sequences, and attention brings
// keys and values to the queries (ring attention, Liu et al. 2023; the layout is Megatron-LM's).
//
// A sequence is cut into 2 C slices for C ranks, and rank c holds the slices c and 2 C - 1 - c, so that all
// ranks have the same share of the causal work. Everything but attention works on the rank's own tokens,
// whose positions are explicit.
//
//   kRing:      keys and values go round from neighbour to neighbour, each step beside the attention of the
//   one
//               before; in the backward pass their gradients travel along. (cp_comm_type: p2p)
//   kAllGather: every rank gathers all of them first. (cp_comm_type: all_gather)
//   kAllToAll:  every rank gets all tokens of its share of the heads, which the ranks must divide, and gives
//   the
//               results back (DeepSpeed-Ulysses). (cp_comm_type: a2a)
//
// Sums do not depend on timing. Not thread-safe; one per rank.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/operators.h"
#include "engine/rank.h"

namespace primus::engine {

class ContextParallel {
 public:
  enum class Exchange : std::uint8_t { kRing, kAllGather, kAllToAll };

  // The rank's mesh has context ranks; `rank` must outlive this.
  ContextParallel(Rank& rank, Exchange exchange);

  int ranks() const { return group_.size(); }
  int rank() const { return group_.rank(); }
  // The number of slice `half` (0 or 1) of a rank, counted along the sequence.
  std::int64_t slice(int of_rank, int half) const {
    return half == 0 ? of_rank : 2 * std::int64_t{ranks()} - 1 - of_rank;
  }
  Exchange exchange() const { return exchange_; }

  // For the operator: collectives run beside the compute stream, which waits for them where it must.
  // The neighbour's `from` arrives in `into`, once what is enqueued on the compute stream so far is over.
  void pass_on(const Tensor& from, const Tensor& into, Event& arrived);
  void all_gather(const Tensor& own, const Tensor& all);
  void reduce_scatter(const Tensor& all, const Tensor& own);
  // What values_arrived() marks.
  void exchange(std::span<const comm::Transfer> transfers);
  void wait(Event& arrived) { rank_.compute().wait(arrived); }
  // Two things travel in the backward pass, keys and values, and their gradients.
  Event& values_arrived() { return *values_arrived_; }
  Event& gradients_arrived() { return *gradients_arrived_; }

 private:
  void follow_compute();

  Rank& rank_;
  comm::Communicator& group_;
  Exchange exchange_;
  std::unique_ptr<Event> computed_, values_arrived_, gradients_arrived_;
};

// The positions within its sequence of the tokens that a rank holds, in their order; `sequence` is a multiple
// of 2 * ranks.
std::vector<std::int64_t> context_positions(std::int64_t sequence, int ranks, int rank);

// attention() with AttentionOptions::context: `shape.seq_q` tokens of each sequence are here, in the order of
// context_positions(). Without a cache.
Value context_attention(const Value& qkv, const turbo::AttentionShape& shape,
                        const AttentionOptions& options);

// The same by Exchange::kAllToAll (context_all_to_all.cpp).
Value attention_by_heads(const Value& qkv, turbo::AttentionShape shape, const AttentionOptions& options);

}  // namespace primus::engine
