// How a warpgroup writes its sums of an expert's product (gpu_warpgroups.h) from its registers to C.
#pragma once

#include "turbo/gpu/warpgroup_products.h"
#include "turbo/gpu/warpgroup_results.h"

namespace primus::turbo::PRIMUS_GPU {

// Lines of C in memory.
template <class C>
struct GroupResults {
  C* to;              // the first element of the sums
  std::int64_t step;  // elements from one line to the next
  int rows, cols;     // that are there; the other sums are not written

  // Eight neighbours at a time: C in 16 bits.
  template <class Sums>
  PRIMUS_DEVICE void write_eights(const Sums& sums) const {
    PRIMUS_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int row = Sums::row(2 * half);
      C* const line = to + row * step;
      // Four lanes have eight neighbours in two words each; one of them gets all of eight.
      PRIMUS_UNROLL
      for (int i = 2 * half; i < Sums::kCount; i += 16) {
        std::uint32_t words[4];
        PRIMUS_UNROLL
        for (int j = 0; j < 4; ++j) {
          const Pack<C, 2> pair{from_float<C>(sums.at[i + 4 * j]), from_float<C>(sums.at[i + 4 * j + 1])};
          words[j] = std::bit_cast<std::uint32_t>(pair);
        }
        transpose_among_four(words);
        const int col = i / 16 * 32 + lane() % 4 * 8;
        if (row >= rows || col >= cols) continue;
        *reinterpret_cast<Pack<std::uint32_t, 4>*>(line + col) = {words[0], words[1], words[2], words[3]};
      }
    }
  }

  // Four neighbours at a time, added to what is there where `add` says so.
  template <class Sums>
  PRIMUS_DEVICE void write_fours(const Sums& sums, bool add) const {
    // What is read to be added to is read several places ahead.
    constexpr int kFours = Sums::kCount / 8, kAhead = kFours % 6 == 0 ? 6 : 4;
    static_assert(kFours % kAhead == 0);
    PRIMUS_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int row = Sums::row(2 * half), first_col = lane() % 2 * 8 + lane() % 4 / 2 * 4;
      C* const line = to + row * step + first_col;
      const auto inside = [&](int four) { return row < rows && first_col + 16 * four < cols; };
      PRIMUS_UNROLL
      for (int begin = 0; begin < kFours; begin += kAhead) {
        [[maybe_unused]] Pack<C, 4> old[kAhead];
        if constexpr (!kAddsInMemory<C>) {
          PRIMUS_UNROLL
          for (int i = 0; i < kAhead; ++i) {
            old[i] = add && inside(begin + i) ? *reinterpret_cast<const Pack<C, 4>*>(line + 16 * (begin + i))
                                              : Pack<C, 4>{};
          }
        }
        PRIMUS_UNROLL
        for (int i = 0; i < kAhead; ++i) {
          // Two lanes have four neighbours in two groups of eight each; each of them gets four of one group.
          const int at = 8 * (begin + i) + 2 * half;
          float four[4] = {sums.at[at], sums.at[at + 1], sums.at[at + 4], sums.at[at + 5]};
          join_pairs(four);
          if (!inside(begin + i)) continue;
          C* const place = line + 16 * (begin + i);
          if constexpr (kAddsInMemory<C>) {
            if (add) {
              add_four(place, four);
              continue;
            }
          } else {
            PRIMUS_UNROLL
            for (int j = 0; j < 4; ++j) four[j] += to_float(old[i].at[j]);
          }
          store(place, four);
        }
      }
    }
  }
};

}  // namespace primus::turbo::PRIMUS_GPU
