// The softmax in the forward kernel that computes attention with warpgroups (gpu_warpgroups.h).
#pragma once

#include <concepts>

#include "turbo/attention/gpu_runs.h"
#include "turbo/attention/gpu_scores.h"
#include "turbo/attention/gpu_visibility.h"
#include "turbo/gpu/warpgroup_products.h"

namespace primus::turbo::PRIMUS_GPU {

// The state of a lane's query rows: the running maxima and sums, and the visible keys, relative to the tile's
// first key. kKeys: keys per step.
template <int kKeys>
struct AttendedRows {
  static constexpr int kSlots = 2;  // rows per lane
  using Scores = WarpgroupSums<kKeys>;

  int begin[kSlots], end[kSlots];
  int whole_begin, whole_end;  // the keys that all rows of the warpgroup see
  float maximum[kSlots], total[kSlots], shrink[kSlots];

  // seen_of(i) returns the keys that row i of the tile sees. The warpgroup has the rows [first_row, end_row).
  // `first_key`: the key to which the ranges are relative.
  template <class SeenOf>
  PRIMUS_DEVICE AttendedRows(const SeenOf& seen_of, int first_key, int first_row, int end_row) {
    PRIMUS_UNROLL
    for (int s = 0; s < kSlots; ++s) {
      const int i = first_row + Scores::row(2 * s);
      const KeyRange seen = i < end_row ? seen_of(i) : KeyRange{0, 0};
      begin[s] = static_cast<int>(seen.begin) - first_key;
      end[s] = static_cast<int>(seen.end) - first_key;
      maximum[s] = -infinity();
      total[s] = 0;
    }
    whole_begin = whole_end = 0;
    if (first_row < end_row) {
      whole_begin = static_cast<int>(seen_of(end_row - 1).begin) - first_key;
      whole_end = static_cast<int>(seen_of(first_row).end) - first_key;
    }
  }

  // Turns the scores of the keys from `first` on into weights. `first` is relative to the tile's first key.
  // Updates the running maxima and sums, and the factors for earlier sums. Keys from `last` on, if given, are
  // masked. A default value instead of a pack would cost a comparison per score.
  PRIMUS_DEVICE void softmax(Scores& scores, float scale, int first, std::same_as<int> auto... last) {
    if (first < whole_begin || first + kKeys > whole_end) {
      PRIMUS_UNROLL
      for (int i = 0; i < Scores::kCount; ++i) {
        const int key = first + Scores::col(i), s = i / 2 % 2;
        if (key < begin[s] || key >= end[s] || (... || (key >= last))) scores.at[i] = -infinity();
      }
    }
    const float factor = scale * kLog2E;
    float largest[kSlots] = {-infinity(), -infinity()};
    PRIMUS_UNROLL
    for (int i = 0; i < Scores::kCount; ++i) largest[i / 2 % 2] = ::fmaxf(largest[i / 2 % 2], scores.at[i]);
    PRIMUS_UNROLL
    for (int s = 0; s < kSlots; ++s) {
      largest[s] = ::fmaxf(largest[s], from_lane_xor(largest[s], 1));
      largest[s] = ::fmaxf(largest[s], from_lane_xor(largest[s], 2));
      const float next = ::fmaxf(maximum[s], largest[s] * factor);
      // If no key is visible yet, all exponentials are zero, and any finite base works.
      largest[s] = next == -infinity() ? 0.0F : next;
      shrink[s] = exp2_flushed(maximum[s] - largest[s]);
      maximum[s] = next;
      total[s] *= shrink[s];  // the sum covers only this lane's columns; of_lanes() adds the sums of the
                              // other lanes
    }
    PRIMUS_UNROLL
    for (int i = 0; i < Scores::kCount; ++i) {
      const int s = i / 2 % 2;
      scores.at[i] = exp2_flushed(multiply_add(scores.at[i], factor, -largest[s]));
      total[s] += scores.at[i];
    }
  }

  // Begins a new run (gpu_runs.h).
  PRIMUS_DEVICE void restart() {
    PRIMUS_UNROLL
    for (int s = 0; s < kSlots; ++s) maximum[s] = -infinity(), total[s] = 0;
  }

  // Returns the sum of the row over all lanes that share it.
  PRIMUS_DEVICE static float of_lanes(float sum) {
    sum += from_lane_xor(sum, 1);
    sum += from_lane_xor(sum, 2);
    return sum;
  }
};

}  // namespace primus::turbo::PRIMUS_GPU
