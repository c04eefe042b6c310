// What kernels over a paged cache share, how rows are appended to it, and attention over it.
#pragma once

#include <bit>

#include "turbo/attention/paged_attention.h"
#include "turbo/gpu/values.h"

namespace primus::turbo::PRIMUS_GPU {

// The tables of PagedSequences. Copies write them, no kernels, and no kernel begins before a copy in front of
// it is over: they may be read before wait_for_previous().
struct Pages {
  const std::int32_t *starts, *lengths, *table;
  std::int64_t batch, blocks;
  int page_bits;

  Pages(Context& context, const PagedSequences& s)
      : starts(context.data<std::int32_t>(s.query_starts)),
        lengths(context.data<std::int32_t>(s.key_lengths)),
        table(context.data<std::int32_t>(s.block_table)),
        batch(s.batch()),
        blocks(s.blocks()),
        page_bits(std::countr_zero(static_cast<std::uint64_t>(s.page_size))) {}

  // The sequence of a row before starts[batch].
  PRIMUS_DEVICE std::int64_t sequence_of(std::int64_t row) const {
    std::int64_t low = 0, high = batch;  // starts[low] <= row < starts[high]
    while (high - low > 1) {
      const std::int64_t middle = (low + high) / 2;
      (starts[middle] <= row ? low : high) = middle;
    }
    return low;
  }
};

// A row's sequence, and the keys it sees.
struct Query {
  int sequence, begin, end;
};
struct Queries {
  Pages pages;
  int window, chunk;

  PRIMUS_DEVICE bool has(int row) const { return row < pages.starts[pages.batch]; }
  PRIMUS_DEVICE Query at(int row) const {
    const int b = static_cast<int>(pages.sequence_of(row));
    const int position = pages.lengths[b] - pages.starts[b + 1] + row;
    Query query{b, 0, position + 1};
    if (chunk > 0) query.begin = position / chunk * chunk;
    if (window > 0 && position - window + 1 > query.begin) query.begin = position - window + 1;
    return query;
  }
};

void paged_append(Context& context, const PagedAppend& call);

void paged_attention(Context& context, const PagedAttention& call);
std::int64_t paged_workspace(Context& context, const PagedAttention& call);

// Decoding: few queries over many keys, where reading keys and values once is all that matters. Keys are cut
// into runs of fixed length with a block each, so that one sequence keeps a whole GPU busy, and the runs'
// results are merged in their order. Neither the other sequences of the pass nor the GPU change a bit.
//
// Enqueues it where rows are about as many as sequences and heads have a width that it can read in vectors,
// or share latents, and says whether it did.
bool paged_decode(Context& context, const PagedAttention& call);
// 0: it does not take the call.
std::int64_t paged_decode_workspace(const Context& context, const PagedAttention& call);

}  // namespace primus::turbo::PRIMUS_GPU
