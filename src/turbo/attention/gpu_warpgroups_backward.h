// The backward pass of attention in bf16 by warpgroups (turbo/gpu/warpgroup.h). As in gpu_tiles_backward.h,
// there are two kernels. A block of the first kernel keeps 128 keys and values, 64 for each of two
// warpgroups. The block iterates over queries and d_out (passing operands) in steps of 64. In the second
// kernel, a block keeps queries and d_out, and iterates over keys and values. The last warpgroup fetches
// passing operands:
//
//   scores = kept · passingᵀ, d_weights = kept' · passing'ᵀ, then
//   d_v += weightsᵀ · d_out and d_k += d_scoresᵀ · q (or d_q += d_scores · k)
//
// Weights are left operands in registers. A passing tile is the right operand of both kinds of products.
#pragma once

#include "turbo/attention/gpu_query_weights.h"
#include "turbo/gpu/box_copy.h"
#include "turbo/gpu/warpgroup_products.h"
#include "turbo/gpu/warpgroup_results.h"

namespace primus::turbo::PRIMUS_GPU {

// If kOfKeys, the kernel computes d_k and d_v; otherwise it computes d_q.
template <class Gradient, int kHeadDim, bool kOfKeys>
struct BackwardWarpgroups {
  static constexpr bool kAlone = true;
  static constexpr int kGroups = 2, kMultiplying = kGroups * kWarpgroup;
  static constexpr int kThreads = kMultiplying + kWarpgroup;
  static constexpr int kGroupRows = 64, kRows = kGroups * kGroupRows, kPassing = kPanelLine, kStages = 3;
  using Queries = PassingQueries<kPassing>;
  using Rows = KeptQueries<kPassing>;
  using Scores = WarpgroupSums<kPassing>;
  static constexpr int kSlots = Rows::kSlots;
  using Sums = WarpgroupSums<kHeadDim>;

  struct Stage {
    BFloat16 scored[kPassing * kHeadDim], weighed[kPassing * kHeadDim];
  };
  struct Memory {
    BFloat16 scored[kRows * kHeadDim], weighed[kRows * kHeadDim];
    Stage stages[kStages];
    Queries queries[kOfKeys ? kStages : 1];
    Gate kept, full[kStages], empty[kStages];
  };
  static constexpr std::size_t kSharedBytes = sizeof(Memory) + kPanelAlignment;

  Visibility visibility;
  BoxMap q, k, v, d_out;
  const float *lse, *delta;
  Gradient *d_first, *d_second;  // gradients of the kept operands: d_k and d_v, or d_q and null
  std::int64_t d_first_stride, d_second_stride;
  int batch, heads, group, tiles;
  std::int64_t kept_capacity;  // rows between the starts of consecutive sequences
  float scale;
  bool accumulate;
  const std::int32_t* unless_zero;  // if not null and the value is 0, the kernel does nothing

  struct Tile {
    int sequence, head, row;  // head: key head if keys are kept, else query head
    int begin, steps;         // first row and number of tiles of the passing operands, per query head
  };

  PRIMUS_DEVICE void operator()() const {
#if PRIMUS_WARPGROUPS
    if (unless_zero && *unless_zero == 0) return;
    Memory& memory = shared_panels<Memory>();
    if (thread() == 0) {
      memory.kept.init(1);
      for (int i = 0; i < kStages; ++i) {
        memory.full[i].init(kWarp);
        memory.empty[i].init(kMultiplying / kWarp);
      }
      show_gates();
    }
    barrier();
    const Tile tile = of_block();
    if (thread() < kMultiplying) {
      acquire_registers<240>();
      multiply_tiles(memory, tile);
    } else {
      release_registers<24>();
      if (thread() < kMultiplying + kWarp) fetch(memory, tile);
    }
#endif
  }

  PRIMUS_DEVICE int kept_heads() const { return kOfKeys ? heads / group : heads; }
  PRIMUS_DEVICE int passes() const { return kOfKeys ? group : 1; }

  // Tiles with the most visible pairs start first.
  PRIMUS_DEVICE Tile of_block() const {
    Tile tile;
    const int index = static_cast<int>(block()), after_heads = index / kept_heads();
    tile.head = index % kept_heads();
    tile.sequence = after_heads % batch;
    const int number = after_heads / batch;
    tile.row = (kOfKeys ? number : tiles - 1 - number) * kRows;
    std::int64_t begin, end;
    if constexpr (kOfKeys) {
      const std::int64_t last = smaller(tile.row + kRows, visibility.seq_k) - 1;
      begin = visibility.first_to_end_behind(tile.sequence, tile.row);
      end = visibility.first_to_begin_behind(tile.sequence, last);
    } else {
      const std::int64_t last = smaller(tile.row + kRows, visibility.seq_q) - 1;
      begin = visibility.keys(tile.sequence, tile.row).begin;
      end = visibility.keys(tile.sequence, last).end;
    }
    begin = begin / kPassing * kPassing;
    tile.begin = static_cast<int>(begin);
    tile.steps = end > begin ? static_cast<int>((end - begin + kPassing - 1) / kPassing) : 0;
    return tile;
  }

  PRIMUS_DEVICE HeadStatistics statistics(int sequence, int head) const {
    const std::int64_t first = (static_cast<std::int64_t>(head) * batch + sequence) * visibility.seq_q;
    return {visibility, lse, delta, first, sequence};
  }

  // ---- Operands ---------------------------------------------------------------------------------

  // Called by one warp of the last warpgroup. The first two warpgroups wait for every copy.
  PRIMUS_DEVICE void fetch(Memory& memory, const Tile& tile) const {
    if (tile.steps == 0) return;
    const bool first = lane() == 0;
    if (first) {
      memory.kept.arrive_and_expect(sizeof(memory.scored) + sizeof(memory.weighed));
      PRIMUS_UNROLL
      for (int i = 0; i < kHeadDim; i += kPanelLine) {
        const int col = tile.head * kHeadDim + i;
        PRIMUS_UNROLL
        for (int line = 0; line < kRows; line += kPassing) {
          const int at = i * kRows + line * kPanelLine, row = tile.row + line;
          copy_box(memory.scored + at, kOfKeys ? k : q, col, row, tile.sequence, memory.kept);
          copy_box(memory.weighed + at, kOfKeys ? v : d_out, col, row, tile.sequence, memory.kept);
        }
      }
    }
    int count = 0;
    for (int pass = 0; pass < passes(); ++pass) {
      const int passing_head = kOfKeys ? tile.head * group + pass : tile.head / group;
      for (int step = 0; step < tile.steps; ++step, ++count) {
        const int slot = count % kStages, row = tile.begin + step * kPassing;
        Gate& full = memory.full[slot];
        memory.empty[slot].wait(count / kStages % 2 ^ 1);
        if (first) {
          Stage& stage = memory.stages[slot];
          full.expect(sizeof(Stage));
          PRIMUS_UNROLL
          for (int i = 0; i < kHeadDim; i += kPanelLine) {
            const int col = passing_head * kHeadDim + i, at = i * kPassing;
            copy_box(stage.scored + at, kOfKeys ? q : k, col, row, tile.sequence, full);
            copy_box(stage.weighed + at, kOfKeys ? d_out : v, col, row, tile.sequence, full);
          }
        }
        if constexpr (kOfKeys) memory.queries[slot].fill(statistics(tile.sequence, passing_head), row);
        full.arrive();
      }
    }
  }

  // ---- Gradients --------------------------------------------------------------------------------

  PRIMUS_DEVICE void multiply_tiles(Memory& memory, const Tile& tile) const {
    const int me = thread() / kWarpgroup, first_row = tile.row + me * kGroupRows;
    Rows rows;
    if constexpr (!kOfKeys) rows.fill(statistics(tile.sequence, tile.head), first_row, kGroupRows);
    Sums first, second;  // d_k (or d_q), d_v
    first.clear();
    if constexpr (kOfKeys) second.clear();
    if (tile.steps > 0) memory.kept.wait(0);
    const int all = passes() * tile.steps;
    for (int count = 0, col = tile.begin, step = 0; count < all; ++count) {
      const int slot = count % kStages;
      const Stage& stage = memory.stages[slot];
      Scores scores, d_weights;
      memory.full[slot].wait(count / kStages % 2);
      begin_products();
      multiply_sides(scores, memory.scored, stage.scored, me);
      end_group_of_products();
      multiply_sides(d_weights, memory.weighed, stage.weighed, me);
      end_group_of_products();
      wait_for_sums<1>(scores);
      LeftInRegisters left[kPassing / 16];
      if constexpr (kOfKeys) {
        const Queries& queries = memory.queries[slot];
        queries.weigh(scores, scale, first_row, kGroupRows);
        PRIMUS_UNROLL
        for (int d = 0; d < kPassing / 16; ++d) left[d] = to_left(scores, d);
        add_weighed(second, left, stage.weighed);
        wait_for_sums<1>(d_weights);
        PRIMUS_UNROLL
        for (int i = 0; i < Scores::kCount; ++i) {
          scores.at[i] *= (d_weights.at[i] - queries.deltas[Scores::col(i)]) * scale;
        }
      } else {
        rows.weigh(scores, scale, col);
        wait_for_sums(d_weights);
        PRIMUS_UNROLL
        for (int i = 0; i < Scores::kCount; ++i) {
          scores.at[i] *= (d_weights.at[i] - rows.deltas[i / 2 % 2]) * scale;
        }
      }
      LeftInRegisters d_left[kPassing / 16];
      PRIMUS_UNROLL
      for (int d = 0; d < kPassing / 16; ++d) d_left[d] = to_left(scores, d);
      add_weighed(first, d_left, stage.scored);
      if constexpr (kOfKeys) wait_for_sums(second);
      wait_for_sums(first);
      if (lane() == 0) memory.empty[slot].arrive();
      col += kPassing;
      if (++step == tile.steps) step = 0, col = tile.begin;
    }
    write(first, d_first, d_first_stride, tile, first_row);
    if constexpr (kOfKeys) write(second, d_second, d_second_stride, tile, first_row);
  }

  PRIMUS_DEVICE static void multiply_sides(Scores& scores, const BFloat16* kept, const BFloat16* passing,
                                           int me) {
    PRIMUS_UNROLL
    for (int i = 0; i < kHeadDim; i += kPanelLine) {
      const BFloat16* const left = kept + i * kRows + me * kGroupRows * kPanelLine;
      PRIMUS_UNROLL
      for (int d = 0; d < kPanelLine / 16; ++d) {
        multiply<false, false>(scores, at_depth<false>(left, d), at_depth<false>(passing + i * kPassing, d),
                               i + d > 0);
      }
    }
  }
  PRIMUS_DEVICE static void add_weighed(Sums& sums, LeftInRegisters (&left)[kPassing / 16],
                                        const BFloat16* passing) {
    settle(sums);
    PRIMUS_UNROLL
    for (LeftInRegisters& one : left) settle(one);
    begin_products();
    PRIMUS_UNROLL
    for (int d = 0; d < kPassing / 16; ++d) multiply<true>(sums, left[d], at_depth<true>(passing, d));
    end_group_of_products();
  }

  PRIMUS_DEVICE void write(const Sums& sums, Gradient* to, std::int64_t stride, const Tile& tile,
                           int first_row) const {
    const std::int64_t rows = kOfKeys ? visibility.seq_k : visibility.seq_q;
    Gradient* const head = to + tile.sequence * kept_capacity * stride + tile.head * kHeadDim;
    PRIMUS_UNROLL
    for (int s = 0; s < kSlots; ++s) {
      const std::int64_t row = first_row + Scores::row(2 * s);
      if (row >= rows) continue;
      write_pairs(sums, s, head + row * stride, accumulate);
    }
  }
};

}  // namespace primus::turbo::PRIMUS_GPU
