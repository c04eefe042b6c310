// All-to-all between context ranks (DeepSpeed-Ulysses, Jacobs et al. 2023): converts rows of all heads of
// this rank's tokens to rows of this rank's heads of all tokens, and back. Operators that need every token of
// a sequence, in order, use it. Contiguous tokens are sent directly from the input, and are received directly
// at their final address. This rank's own part is copied during the transfers.
#pragma once

#include <span>

#include "engine/parallel/context_attention.h"
#include "tensor/scratch_tensor.h"
#include "turbo/context.h"

namespace primus::engine {

class HeadExchange {
 public:
  // The columns of each rank: `count` columns starting at `first + rank * count`.
  struct Columns {
    std::int64_t first, count;
  };
  using AllColumns = std::span<const Columns>;

  // `sequence`: the length of each of the `batch` sequences, counting the tokens of all ranks.
  HeadExchange(turbo::Context& context, ContextParallel& group, std::int64_t batch, std::int64_t sequence)
      : context_(context), group_(group), batch_(batch), sequence_(sequence) {}

  std::int64_t all_tokens() const { return batch_ * sequence_; }
  std::int64_t own_tokens() const { return all_tokens() / group_.ranks(); }

  // Converts `own`, rows of all heads for this rank's tokens, to `all`, rows of this rank's heads for all
  // tokens, in sequence order.
  void to_heads(const Tensor& own, const Tensor& all, AllColumns columns) const;
  // Reverses to_heads().
  void to_tokens(const Tensor& all, const Tensor& own, AllColumns columns) const;
  // Gathers first_key of all tokens, [tokens] int32, from each rank's values for its own tokens.
  void gather_first_keys(const Tensor& own, const Tensor& all) const;

 private:
  // Tokens of one slice; a rank holds two slices of every sequence.
  std::int64_t slice_tokens() const { return sequence_ / (2 * group_.ranks()); }
  // Calls visit(peer, offset) for every other rank. `offset` is the position at which the peer's rows begin
  // among the rows of all peers.
  template <class Visit>
  void for_each_peer(Visit visit) const;
  // Calls visit(sequence, half) in the order of a rank's rows.
  template <class Visit>
  void for_each_piece(Visit visit) const;
  // piece() returns a slice of a rank's rows. place() returns the memory of a rank's slice within complete
  // sequences.
  Tensor piece(const Tensor& of_rank, std::int64_t sequence, int half) const;
  Tensor place(const Tensor& all, int rank, std::int64_t sequence, int half) const;

  turbo::Context& context_;
  ContextParallel& group_;
  std::int64_t batch_, sequence_;
};

}  // namespace primus::engine
