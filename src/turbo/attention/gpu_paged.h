// Helpers of the kernels that append rows to a paged cache or compute attention over it.
#pragma once

#include <bit>

#include "turbo/attention/paged_attention.h"
#include "turbo/gpu/values.h"

namespace primus::turbo::PRIMUS_GPU {

// The query offsets, key lengths and block table of PagedSequences, for kernels. Only copies write these
// tensors, and no kernel starts before the end of all preceding copies. Therefore kernels may read these
// tensors before wait_for_previous().
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

  // Returns the sequence of a row; the row must be less than starts[batch].
  PRIMUS_DEVICE std::int64_t sequence_of(std::int64_t row) const {
    std::int64_t low = 0, high = batch;  // starts[low] <= row < starts[high]
    while (high - low > 1) {
      const std::int64_t middle = (low + high) / 2;
      (starts[middle] <= row ? low : high) = middle;
    }
    return low;
  }
};

// The sequence of a row, and the range of keys that the row's query sees.
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
std::int64_t paged_append_workspace(Context& context, const PagedAppend& call);

void paged_attention(Context& context, const PagedAttention& call);
std::int64_t paged_workspace(Context& context, const PagedAttention& call);

// Computes attention on a batch-invariant device: tiles and runs of keys (gpu_runs.h) begin at the first
// token of each sequence. In decoding of few tokens, each run has a block; the workspace holds the results of
// the runs. check_paged_order() throws Error(kUnsupported) if there is no kernel for the call.
void paged_in_order(Context& context, const PagedAttention& call);
std::int64_t paged_order_workspace(Context& context, const PagedAttention& call);
void check_paged_order(Context& context, const PagedAttention& call);

// If the GPU has warpgroups and the kernel of paged_in_order() supports the call, enqueues that kernel, with
// tiles of 128 new tokens of a sequence, and returns true; otherwise returns false. For passes that read
// prompts.
bool paged_by_warpgroups(Context& context, const PagedAttention& call);

// Computes attention of few queries over many keys (decoding). The time is mainly that of reading keys and
// values once. One block processes one run (a range of consecutive keys), so that one sequence can keep a GPU
// busy. The results of the runs are merged in order. The result depends neither on the other sequences of the
// pass nor on the GPU.
//
// If the kernel supports the call, enqueues the kernel and returns true; otherwise returns false. The number
// of rows must be about the number of sequences. The heads must share latents, or have a width that can be
// read in vectors.
bool paged_decode(Context& context, const PagedAttention& call);
// Returns 0 if paged_decode() does not support the call.
std::int64_t paged_decode_workspace(const Context& context, const PagedAttention& call);

}  // namespace primus::turbo::PRIMUS_GPU
