// Products of up to a few hundred rows, y = x · Wᵀ, with one chain of additions per element
// (gpu_ordered.h). Tiles are 64 rows of x by kColumns rows of W, so that also a product of one row has tiles
// for most multiprocessors. The instructions are as in the tiles of large products
// (grouped_linear/gpu_warpgroups.h), with fewer columns, and the order of additions is the same.
#pragma once

#include "turbo/gpu/box_copy.h"
#include "turbo/gpu/warpgroup_products.h"

namespace primus::turbo::PRIMUS_GPU {

// A block computes one tile at a time. Its last warp fetches operands into a ring of stages, across tiles;
// the first stages of W are fetched while the previous kernel still computes x. A stage has kPanels panels of
// x and of W. Panels after the end of a row are zero, which changes no sum. Lines of x after the last row of
// a box are other data of the ring: their products are not stored.
template <class C, int kColumns, int kPanels>
struct OrderedRows {
  static constexpr bool kAlone = true;
  using StartsEarly = void;
  using Sums = WarpgroupSums<kColumns>;
  static constexpr int kThreads = kWarpgroup + kWarp, kFetching = kWarpgroup / kWarp;
  static constexpr int kRows = Sums::kRows, kMaxStages = 16;
  static constexpr int kLineBytes = 2 * kPanelLine;

  BoxMap x_map, w_map;
  C* y;
  int rows, out, in;
  int lines;  // of a box of x: a multiple of 8
  int stages;

  // Sizes of a stage in bytes.
  static constexpr int kWeightBytes = kPanels * kColumns * kLineBytes;
  static constexpr int input_bytes(int lines) { return kPanels * lines * kLineBytes; }
  // Returns the bytes of shared memory of a block. A product reads kRows lines from the start of a box of x,
  // so data must follow the last box.
  static constexpr std::size_t shared_bytes(int lines, int stages) {
    const int all = stages * (input_bytes(lines) + kWeightBytes);
    const int read = stages * input_bytes(lines) + (kRows - lines) * kLineBytes;
    return static_cast<std::size_t>(kPanelAlignment + (all > read ? all : read));
  }

  struct Gates {
    Gate full[kMaxStages], empty[kMaxStages];
  };
  // A stage of a tile of this block.
  struct Place {
    int tile, panel;
  };

  PRIMUS_DEVICE int panels() const { return (in + kPanelLine - 1) / kPanelLine; }
  PRIMUS_DEVICE int row_tiles() const { return (rows + kRows - 1) / kRows; }
  PRIMUS_DEVICE int tiles() const { return (out + kColumns - 1) / kColumns * row_tiles(); }
  // Consecutive tiles read the same weights.
  PRIMUS_DEVICE int row_of(int tile) const { return tile % row_tiles() * kRows; }
  PRIMUS_DEVICE int column_of(int tile) const { return tile / row_tiles() * kColumns; }
  PRIMUS_DEVICE void next(Place& place) const {
    place.panel += kPanels;
    if (place.panel < panels()) return;
    place.panel = 0;
    place.tile += static_cast<int>(blocks());
  }

  PRIMUS_DEVICE BFloat16* ring() const { return &shared_panels<BFloat16>(); }
  PRIMUS_DEVICE BFloat16* inputs(int slot) const { return ring() + slot * (input_bytes(lines) / 2); }
  PRIMUS_DEVICE BFloat16* weights(int slot) const {
    return ring() + (stages * input_bytes(lines) + slot * kWeightBytes) / 2;
  }

  PRIMUS_DEVICE void operator()() const {
#if PRIMUS_WARPGROUPS
    Gates& gates = shared<Gates>();
    if (thread() == 0) {
      for (int i = 0; i < stages; ++i) {
        gates.full[i].init(1);
        gates.empty[i].init(kWarpgroup / kWarp);
      }
      show_gates();
    }
    barrier();
    let_next_begin();
    if (warp() == kFetching) {
      fetch(gates);
    } else {
      wait_for_previous();
      multiply_tiles(gates);
    }
#else
    wait_for_previous();
#endif
  }

  PRIMUS_DEVICE void fetch(Gates& gates) const {
    const Place first{static_cast<int>(block()), 0};
    const int all = tiles();
    int early = 0;  // stages whose weights are requested
    if (lane() == 0) {
      for (Place at = first; early < stages && at.tile < all; next(at), ++early) {
        fetch_weights(gates, at, early);
      }
    }
    wait_for_previous();
    if (lane() != 0) return;
    int count = 0;
    for (Place at = first; at.tile < all; next(at), ++count) {
      const int slot = count % stages;
      if (count >= early) {
        gates.empty[slot].wait(static_cast<std::uint32_t>(count / stages % 2) ^ 1U);
        fetch_weights(gates, at, slot);
      }
      for (int i = 0; i < kPanels; ++i) {
        copy_box(inputs(slot) + i * lines * kPanelLine, x_map, (at.panel + i) * kPanelLine, row_of(at.tile),
                 0, gates.full[slot]);
      }
    }
  }
  PRIMUS_DEVICE void fetch_weights(Gates& gates, const Place& at, int slot) const {
    gates.full[slot].arrive_and_expect(kPanels * (lines + kColumns) * kLineBytes);
    for (int i = 0; i < kPanels; ++i) {
      copy_box(weights(slot) + i * kColumns * kPanelLine, w_map, (at.panel + i) * kPanelLine,
               column_of(at.tile), 0, gates.full[slot]);
    }
  }

  PRIMUS_DEVICE void multiply_tiles(Gates& gates) const {
    const int all = tiles();
    int count = 0;
    Place at{static_cast<int>(block()), 0};
    while (at.tile < all) {
      const int tile = at.tile;
      Sums sums;
      for (; at.tile == tile; next(at), ++count) {
        const int slot = count % stages;
        gates.full[slot].wait(static_cast<std::uint32_t>(count / stages % 2));
        begin_products();
        PRIMUS_UNROLL
        for (int i = 0; i < kPanels; ++i) multiply_panel(sums, slot, i, at.panel + i > 0);
        end_group_of_products();
        if (at.panel > 0) {
          wait_for_products<1>();
          release(gates, count - 1);
        }
      }
      wait_for_sums(sums);
      release(gates, count - 1);
      write(sums, row_of(tile), column_of(tile));
    }
  }
  PRIMUS_DEVICE void multiply_panel(Sums& sums, int slot, int i, bool add) const {
    const BFloat16* const left = inputs(slot) + i * lines * kPanelLine;
    const BFloat16* const right = weights(slot) + i * kColumns * kPanelLine;
    PRIMUS_UNROLL
    for (int d = 0; d < kPanelLine / 16; ++d)
      multiply<false, false>(sums, at_depth<false>(left, d), at_depth<false>(right, d), add || d > 0);
  }
  PRIMUS_DEVICE void release(Gates& gates, int count) const {
    if (lane() == 0) gates.empty[count % stages].arrive();
  }

  PRIMUS_DEVICE void write(const Sums& sums, int first_row, int first_column) const {
    PRIMUS_UNROLL
    for (int i = 0; i < Sums::kCount; i += 2) {
      const int row = first_row + Sums::row(i), column = first_column + Sums::col(i);
      if (row >= rows || column >= out) continue;
      C* const to = y + static_cast<std::int64_t>(row) * out + column;
      const float pair[2] = {sums.at[i], sums.at[i + 1]};
      if (out % 2 == 0) {
        store(to, pair);
      } else {
        to[0] = from_float<C>(pair[0]);
        if (column + 1 < out) to[1] = from_float<C>(pair[1]);
      }
    }
  }
};

}  // namespace primus::turbo::PRIMUS_GPU
