// Recomputes the attention weights of the forward pass from scores, in the backward pass of attention by
// warpgroups (gpu_warpgroups_backward.h).
#pragma once

#include <limits>

#include "turbo/attention/gpu_scores.h"
#include "turbo/attention/gpu_visibility.h"
#include "turbo/gpu/warpgroup_products.h"

namespace primus::turbo::PRIMUS_GPU {

// The queries of one head of a sequence: the visible keys, and the results of the forward pass.
struct HeadStatistics {
  const Visibility& visibility;
  const float *lse, *delta;
  std::int64_t first;  // index in lse and delta of the head's first query in this sequence
  int sequence;

  // Returns the log-sum-exp of query i in base 2. A query without visible keys has lse = -infinity. Any
  // finite number may replace this lse, because all weights of the query are zero.
  PRIMUS_DEVICE float log_sum(std::int64_t i) const {
    return lse[first + i] == -infinity() ? 0.0F : lse[first + i] * kLog2E;
  }
};

// Passing queries: the queries that a block iterates over, in shared memory. Entries after the last query are
// 0 and see no keys.
template <int kPassing>
struct PassingQueries {
  using Scores = WarpgroupSums<kPassing>;
  float log_sums[kPassing], deltas[kPassing];
  int begin[kPassing], end[kPassing];  // the range of keys that each query sees

  // One warp of the block calls this function. Its threads have few registers, so the loop is not unrolled.
  PRIMUS_DEVICE void fill(const HeadStatistics& head, int row) {
    PRIMUS_UNROLL_BY(1)
    for (int c = lane(); c < kPassing; c += kWarp) {
      const std::int64_t i = row + c;
      const bool there = i < head.visibility.seq_q;
      const KeyRange seen = there ? head.visibility.keys(head.sequence, i) : KeyRange{0, 0};
      begin[c] = there ? static_cast<int>(seen.begin) : std::numeric_limits<int>::max();
      end[c] = static_cast<int>(seen.end);
      log_sums[c] = there ? head.log_sum(i) : 0.0F;
      deltas[c] = there ? head.delta[head.first + i] : 0.0F;
    }
  }

  // Turns scores into the weights of the forward pass. `key` and `count`: the first key that the block keeps,
  // and the number of kept keys.
  PRIMUS_DEVICE void weigh(Scores& scores, float scale, int key, int count) const {
    const bool whole = begin[kPassing - 1] <= key && end[0] >= key + count;
    PRIMUS_UNROLL
    for (int i = 0; i < Scores::kCount; ++i) {
      const int c = Scores::col(i);
      scores.at[i] = exp2_flushed(multiply_add(scores.at[i], scale * kLog2E, -log_sums[c]));
    }
    if (whole) return;
    PRIMUS_UNROLL
    for (int i = 0; i < Scores::kCount; ++i) {
      const int c = Scores::col(i), at = key + Scores::row(i);
      const int seen = begin[c], unseen = end[c];
      scores.at[i] = at >= seen && at < unseen ? scores.at[i] : 0.0F;
    }
  }
};

// Kept queries: the queries that a block keeps while it iterates over keys. This struct has the rows of one
// lane, and the range of keys that all rows of the warpgroup see. kPassing: keys per step.
template <int kPassing>
struct KeptQueries {
  static constexpr int kSlots = 2;  // rows per lane
  using Scores = WarpgroupSums<kPassing>;
  float log_sums[kSlots], deltas[kSlots];
  int begin[kSlots], end[kSlots];
  int whole_begin, whole_end;

  // `first_row`: the first of the warpgroup's `count` rows.
  PRIMUS_DEVICE void fill(const HeadStatistics& head, int first_row, int count) {
    PRIMUS_UNROLL
    for (int s = 0; s < kSlots; ++s) {
      const std::int64_t i = first_row + Scores::row(2 * s);
      const bool there = i < head.visibility.seq_q;
      const KeyRange seen = there ? head.visibility.keys(head.sequence, i) : KeyRange{0, 0};
      begin[s] = static_cast<int>(seen.begin);
      end[s] = static_cast<int>(seen.end);
      log_sums[s] = there ? head.log_sum(i) : 0.0F;
      deltas[s] = there ? head.delta[head.first + i] : 0.0F;
    }
    whole_begin = whole_end = 0;
    if (first_row + count <= head.visibility.seq_q) {
      whole_begin = static_cast<int>(head.visibility.keys(head.sequence, first_row + count - 1).begin);
      whole_end = static_cast<int>(head.visibility.keys(head.sequence, first_row).end);
    }
  }

  // Turns scores into the weights of the forward pass. The keys of this step begin at `first`.
  PRIMUS_DEVICE void weigh(Scores& scores, float scale, int first) const {
    PRIMUS_UNROLL
    for (int i = 0; i < Scores::kCount; ++i) {
      scores.at[i] = exp2_flushed(multiply_add(scores.at[i], scale * kLog2E, -log_sums[i / 2 % 2]));
    }
    if (first >= whole_begin && first + kPassing <= whole_end) return;
    PRIMUS_UNROLL
    for (int i = 0; i < Scores::kCount; ++i) {
      const int key = first + Scores::col(i), s = i / 2 % 2;
      if (key < begin[s] || key >= end[s]) scores.at[i] = 0;
    }
  }
};

}  // namespace primus::turbo::PRIMUS_GPU
