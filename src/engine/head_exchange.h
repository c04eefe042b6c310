// All-to-all between context ranks (DeepSpeed-Ulysses, Jacobs et al. 2023): from rows of all heads of this
// rank's tokens to rows of this rank's heads of all tokens, and back. For operators that need every token of
// a sequence, in order. Runs of tokens are sent and received where they belong, and what stays on this rank
// is copied there meanwhile.
#pragma once

#include <span>

#include "engine/context_attention.h"
#include "tensor/scratch_tensor.h"
#include "turbo/context.h"

namespace primus::engine {

class HeadExchange {
 public:
  // Runs of columns that go to each rank: `count` columns from `first + rank * count` on.
  struct Columns {
    std::int64_t first, count;
  };
  using AllColumns = std::span<const Columns>;

  // `sequence`: tokens of each of the `batch` sequences, on all ranks together.
  HeadExchange(turbo::Context& context, ContextParallel& group, std::int64_t batch, std::int64_t sequence)
      : context_(context), group_(group), batch_(batch), sequence_(sequence) {}

  std::int64_t all_tokens() const { return batch_ * sequence_; }
  std::int64_t own_tokens() const { return all_tokens() / group_.ranks(); }

  // `own`: rows of all heads, of this rank's tokens. `all`: rows of this rank's heads, of all tokens, in the
  // order of the sequences.
  void to_heads(const Tensor& own, const Tensor& all, AllColumns columns) const;
  // The reverse.
  void to_tokens(const Tensor& all, const Tensor& own, AllColumns columns) const;
  // The first keys of all tokens, from those of this rank's: [tokens] int32.
  void gather_first_keys(const Tensor& own, const Tensor& all) const;

 private:
  // A rank holds two slices of every sequence.
  std::int64_t slice_tokens() const { return sequence_ / (2 * group_.ranks()); }
  // visit(another rank, where its part begins in rows of all the others').
  template <class Visit>
  void for_each_peer(Visit visit) const;
  // visit(sequence, half), in the order of the rows that a rank holds.
  template <class Visit>
  void for_each_piece(Visit visit) const;
  // A slice of what a rank holds; and the place of a rank's slice among whole sequences.
  Tensor piece(const Tensor& of_rank, std::int64_t sequence, int half) const;
  Tensor place(const Tensor& all, int rank, std::int64_t sequence, int half) const;

  turbo::Context& context_;
  ContextParallel& group_;
  std::int64_t batch_, sequence_;
};

}  // namespace primus::engine
