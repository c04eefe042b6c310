// The sums of attention by warpgroups (gpu_attending.h) after the last product: the sums over runs of keys
// (gpu_runs.h), and the results of a tile of queries.
#pragma once

#include <bit>
#include <cstdint>

#include "turbo/attention/gpu_runs.h"
#include "turbo/gpu/warpgroup_products.h"
#include "turbo/gpu/warpgroup_results.h"

namespace primus::turbo::PRIMUS_GPU {

// A thread's sums over the runs before the current run. The sums over values are in shared memory:
// memory.merged[i][thread], if kListed.
template <bool kListed, int kValueDim, int kSlots>
struct AttendingRuns {
  using Sums = WarpgroupSums<kValueDim>;
  MergedRuns rows[kSlots];
  MergedRuns::Factors factors[kSlots];  // of the last addition
  bool any = false;                     // whether a run is complete

  // Adds the maxima and totals of a complete run.
  PRIMUS_DEVICE void add(const float (&maximum)[kSlots], const float (&total)[kSlots]) {
    PRIMUS_UNROLL
    for (int s = 0; s < kSlots; ++s) factors[s] = rows[s].add(maximum[s], total[s]);
  }
  // Adds the run's sums over values to `sums`.
  template <class Memory>
  PRIMUS_DEVICE void add(const Memory& memory, Sums& sums) const {
    PRIMUS_UNROLL
    for (int i = 0; i < Sums::kCount; ++i)
      sums.at[i] = factors[i / 2 % 2].sum(any ? memory.merged[i][thread()] : 0.0F, sums.at[i]);
  }
  // Adds the run whose maxima and totals were added, and begins the sums of the next run.
  template <class Memory>
  PRIMUS_DEVICE void keep(Memory& memory, Sums& sums) {
    if constexpr (kListed) {
      add(memory, sums);
      PRIMUS_UNROLL
      for (int i = 0; i < Sums::kCount; ++i) memory.merged[i][thread()] = sums.at[i];
      any = true;
      sums.clear();
    }
  }
  // Adds the last run. Sets the sums, maxima and totals of all runs.
  template <class Memory>
  PRIMUS_DEVICE void close(const Memory& memory, Sums& sums, float (&maximum)[kSlots],
                           float (&total)[kSlots]) {
    add(maximum, total);
    add(memory, sums);
    PRIMUS_UNROLL
    for (int s = 0; s < kSlots; ++s) maximum[s] = rows[s].maximum, total[s] = rows[s].total;
  }
};

// Where the results of a tile of queries go, and its sinks. Computed only at the end, so that it takes no
// registers before. Queries `first_row + row` of the warpgroup's threads are written, if before `end_row`.
template <int kKeys, int kValueDim>
struct AttendingResults {
  using Sums = WarpgroupSums<kValueDim>;
  using Scores = WarpgroupSums<kKeys>;
  float* part = nullptr;       // not null: write_part() writes the result of a run here
  std::int64_t part_step = 0;  // elements between the parts of consecutive queries
  BFloat16* out;
  std::int64_t out_step;  // elements between the results of consecutive queries
  float* lse;             // may be null
  const BFloat16* sinks;  // of the first query's head; may be null
  int sink_step;          // 1: each query is of the next head

  template <int kSlots>
  PRIMUS_DEVICE void write(const Sums& sums, const float (&maximum)[kSlots], const float (&total)[kSlots],
                           int first_row, int end_row) const {
    PRIMUS_UNROLL
    for (int s = 0; s < kSlots; ++s) {
      const int i = first_row + Scores::row(2 * s);
      const bool there = i < end_row;
      const float sink = sinks && there ? to_float(sinks[i * sink_step]) * kLog2E : -infinity();
      const JoinedSink joined(maximum[s], total[s], sink, sinks != nullptr);
      if (lse && there && lane() % 4 == 0) lse[i] = joined.log_sum();
      // Each of four lanes has a word of two columns. After the exchange, one lane has all eight columns.
      PRIMUS_UNROLL
      for (int j = 2 * s; j < Sums::kCount; j += 16) {
        std::uint32_t words[4];
        PRIMUS_UNROLL
        for (int w = 0; w < 4; ++w) {
          const Pack<BFloat16, 2> pair{from_float<BFloat16>(sums.at[j + 4 * w] * joined.share),
                                       from_float<BFloat16>(sums.at[j + 4 * w + 1] * joined.share)};
          words[w] = std::bit_cast<std::uint32_t>(pair);
        }
        transpose_among_four(words);
        if (!there) continue;
        BFloat16* const to = out + i * out_step + j / 16 * 32 + lane() % 4 * 8;
        *reinterpret_cast<Pack<std::uint32_t, 4>*>(to) = {words[0], words[1], words[2], words[3]};
      }
    }
  }

  // Writes the maximum, the total and the sums over values of a run.
  template <int kSlots>
  PRIMUS_DEVICE void write_part(const Sums& sums, const float (&maximum)[kSlots],
                                const float (&total)[kSlots], int first_row, int end_row) const {
    PRIMUS_UNROLL
    for (int s = 0; s < kSlots; ++s) {
      const int i = first_row + Scores::row(2 * s);
      if (i >= end_row) continue;
      float* const to = part + i * part_step;
      if (lane() % 4 == 0) to[0] = maximum[s], to[1] = total[s];
      PRIMUS_UNROLL
      for (int j = 2 * s; j < Sums::kCount; j += 4) {
        const float pair[2] = {sums.at[j], sums.at[j + 1]};
        store(to + 2 + Sums::col(j), pair);
      }
    }
  }
};

}  // namespace primus::turbo::PRIMUS_GPU
