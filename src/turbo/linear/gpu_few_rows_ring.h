// Products of one or two rows (gpu_few_rows.h) that load weights into a ring buffer in shared memory with
// Hopper's TMA. For long rows of W, the ring was measured to be faster than loading into registers. The ring
// is not used if a block first normalises the rows of x, because the ring would be full before the norm is
// complete (measurements: docs/performance.md).
#pragma once

#include "turbo/gpu/box_copy.h"
#include "turbo/linear/gpu_few_rows_parts.h"

namespace primus::turbo::PRIMUS_GPU {

// A block uses so much shared memory that a multiprocessor holds only one block. A smaller block could start
// while another kernel still reads memory. Filling the ring would then cost the other kernel more time than
// the early start saves.
template <class Rows, class Results>
struct FewRowRing : FewRowTiles<Rows, Results> {
  using Tiles = FewRowTiles<Rows, Results>;
  using Tiles::kStep, Tiles::rows, Tiles::in, Tiles::tiles;
  // kSlice is the number of columns of each row of a tile in one entry of the ring. kPitch puts consecutive
  // rows half a line of banks apart, so that the lanes of a load have no bank conflicts.
  static constexpr int kSlice = 8 * kStep, kPitch = kSlice + 32;
  static constexpr int kPlaceBytes = kStripeRows * kPitch * static_cast<int>(sizeof(BFloat16));
  static constexpr int kPlaces = 3;
  // Min. number of columns. With fewer columns, a Hopper multiprocessor, which has 227 KiB of shared memory,
  // would hold two blocks instead of one (see above).
  static constexpr int kLongRow = 8192;
  static_assert(2 * (StagedRows::shared_bytes(1, kLongRow) + kPlaces * kPlaceBytes) > 227 << 10);
  static constexpr int kThreads = kFewRowThreads + kWarp;

  int offset;  // bytes of shared memory before the ring

  struct Gates {
    Gate full[kPlaces], empty[kPlaces];
  };

  PRIMUS_DEVICE BFloat16* place(int i) const {
    return reinterpret_cast<BFloat16*>(dynamic_shared() + offset + i * kPlaceBytes);
  }

  // An entry of the ring, and the phase parity of the mbarriers of this entry.
  struct At {
    int place = 0;
    std::uint32_t parity = 0;
    PRIMUS_DEVICE void next() {
      if (++place == kPlaces) place = 0, parity ^= 1;
    }
  };

  PRIMUS_DEVICE void operator()() const {
    Gates& gates = shared<Gates>();
    if (thread() == 0) {
      for (int i = 0; i < kPlaces; ++i) {
        gates.full[i].init(1);
        gates.empty[i].init(kFewRowWarps);
      }
      show_gates();
    }
    barrier();
    let_next_begin();
    if (warp() == kFewRowWarps) {
      fill(gates);
    } else {
      multiply_all(gates);
    }
  }

  // Fills the ring. Runs in a separate warp, in which kStripeRows lanes copy one row each.
  PRIMUS_DEVICE void fill(Gates& gates) const {
    At at;
    for (int tile = static_cast<int>(block()); tile < tiles; tile += static_cast<int>(blocks())) {
      const BFloat16* from = this->row_of(tile, lane() % kStripeRows);
      for (int first = 0; first < in; first += kSlice) {
        const int left = in - first;
        const int bytes = (left < kSlice ? left : kSlice) * static_cast<int>(sizeof(BFloat16));
        if (lane() == 0) {
          gates.empty[at.place].wait(at.parity ^ 1);
          gates.full[at.place].arrive_and_expect(kStripeRows * bytes);
        }
        warp_barrier();
        if (lane() < kStripeRows)
          copy_run(place(at.place) + lane() * kPitch, from + first, bytes, gates.full[at.place]);
        at.next();
      }
    }
    wait_for_previous();
  }

  PRIMUS_DEVICE void multiply_all(Gates& gates) const {
    const auto meet = [] { barrier_among(1, kFewRowThreads); };
    this->rows_of_x.prepare(meet);
    const int own_row = Stripe::row(0), column = warp() * Stripe::kCols + Stripe::col();
    const bool there = own_row < rows;
    At at;
    int parity = 0;
    for (int tile = static_cast<int>(block()); tile < tiles; tile += static_cast<int>(blocks())) {
      Accumulator sum;
      sum.clear();
      for (int first = 0; first < in; first += kSlice) {
        const BFloat16* weights = place(at.place) + own_row * kPitch + column;
        gates.full[at.place].wait(at.parity);
        PRIMUS_UNROLL
        for (int j = 0; j < kSlice; j += kStep) {
          const int here = first + column + j;
          Stripe left{}, right{};
          if (here < in) {
            right.of_row[0] = load_line(weights + j);
            if (there) left.of_row[0] = this->rows_of_x.line(own_row, here);
          }
          PRIMUS_UNROLL
          for (int product = 0; product < Stripe::kProducts; ++product)
            multiply<1>(sum, left.left(product), right.right(product));
        }
        warp_barrier();
        if (lane() == 0) gates.empty[at.place].arrive();
        at.next();
      }
      this->finish(tile, parity, sum, meet);
      parity ^= 1;
    }
  }
};

}  // namespace primus::turbo::PRIMUS_GPU
