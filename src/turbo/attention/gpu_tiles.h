// What the attention kernels share: which keys a query sees, tiles in shared memory, and the two kinds of
// products on them.
//
// A block works on kRows rows (queries, or keys in one backward kernel); each of its warps has 16 of them. It
// walks over the other side in steps of kCols. Scores are products over the head's dimension, which passes
// through shared memory in slices of kDepth, so that heads of any width fit; results are sums over the other
// side, of at most kWide columns: wider heads are cut into column panels, one block each.
#pragma once

#include "turbo/attention/attention.h"
#include "turbo/gpu/mma.h"
#include "turbo/gpu/reduce.h"

namespace primus::turbo::PRIMUS_GPU {

// Keys [begin, end).
struct KeyRange {
  std::int64_t begin, end;
};

// Which keys the queries of one sequence see. Both ends never move back from one query to the next.
struct Visibility {
  std::int64_t seq_q, seq_k, q_first, k_first, window, chunk;
  bool causal;
  const std::int32_t* first_key;  // of all sequences, or null

  Visibility(const AttentionShape& s, const std::int32_t* documents)
      : seq_q(s.seq_q),
        seq_k(s.seq_k),
        q_first(s.q_first),
        k_first(s.k_first),
        window(s.window),
        chunk(s.chunk),
        causal(s.causal),
        first_key(documents) {}

  // Of the query with index i < seq_q of the sequence: indices of the call's keys.
  PRIMUS_DEVICE KeyRange keys(std::int64_t sequence, std::int64_t i) const {
    const std::int64_t position = q_first + i;
    KeyRange seen{0, causal ? position + 1 : k_first + seq_k};
    if (chunk > 0) {
      seen.begin = position / chunk * chunk;
      seen.end = smaller(seen.end, seen.begin + chunk);
    }
    if (window > 0) seen.begin = larger(seen.begin, position - window + 1);
    if (first_key) seen.begin = larger(seen.begin, smaller(first_key[sequence * seq_q + i], position));
    return {inside(seen.begin - k_first), inside(seen.end - k_first)};
  }

  // The first query from `from` on whose range ends behind `key`, and the first whose range begins behind it.
  PRIMUS_DEVICE std::int64_t first_to_end_behind(std::int64_t sequence, std::int64_t key) const {
    std::int64_t low = 0, high = seq_q;
    while (low < high) {
      const std::int64_t middle = (low + high) / 2;
      if (keys(sequence, middle).end > key) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return low;
  }
  PRIMUS_DEVICE std::int64_t first_to_begin_behind(std::int64_t sequence, std::int64_t key) const {
    std::int64_t low = 0, high = seq_q;
    while (low < high) {
      const std::int64_t middle = (low + high) / 2;
      if (keys(sequence, middle).begin > key) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return low;
  }
  PRIMUS_DEVICE std::int64_t inside(std::int64_t key) const { return larger(smaller(key, seq_k), 0); }
};

// Rows of one head: row r begins at data + r * stride; there are `rows` of them with `cols` elements.
template <class T>
struct HeadRows {
  using Element = T;
  const T* data;
  std::int64_t stride, rows, cols;
  PRIMUS_DEVICE const T* at(std::int64_t row) const { return data + row * stride; }
};

// The same in pages of a cache, which `table` names one after the other.
template <class T>
struct PagedRows {
  using Element = T;
  const T* data;
  std::int64_t stride, rows, cols;
  const std::int32_t* table;
  int page_bits;  // log2 of a page's rows
  PRIMUS_DEVICE const T* at(std::int64_t row) const {
    const std::int64_t page = table[row >> page_bits];
    return data + ((page << page_bits) + (row & ((std::int64_t{1} << page_bits) - 1))) * stride;
  }
};

template <class T>
struct AttentionTiles {
  static constexpr bool kHalf = sizeof(T) == 2;
  static constexpr int kWarps = 4, kThreads = kWarps * kWarp;
  static constexpr int kRows = kWarps * kTile;
  static constexpr int kCols = kHalf ? 64 : 32;
  static constexpr int kDepth = kHalf ? 128 : 64;
  static constexpr int kWide = kHalf ? 128 : 64;
  static constexpr int kPad = kVector<T>;  // rows stay aligned to 16 bytes, and start in different banks

  // Sums become operands of the next product without a way through memory.
  static constexpr bool kDirect = kHalf && kWarp == 32;
  // Left operands that stay in memory while a block walks over the other side. AMD's 64 KiB hold one.
  static constexpr int kLefts = kDirect ? 2 : 1;

  struct Memory {
    T left[kLefts][kRows][kDepth + kPad];
    T right[kCols][kDepth + kPad];
    T wide[kCols][kWide + kPad];
    T weights[kDirect ? 1 : kRows]
             [kCols + kPad];  // what the second product takes; a warp has its own 16 rows
  };

  using Scores = Accumulator[kCols / kTile];
  using Sums = Accumulator[kWide / kTile];

  template <int kN>
  PRIMUS_DEVICE static void clear(Accumulator (&tiles)[kN]) {
    PRIMUS_UNROLL
    for (int j = 0; j < kN; ++j) tiles[j].clear();
  }

  // 16 bytes from global to shared memory, on NVIDIA without waiting for them.
  PRIMUS_DEVICE static void copy_line(T* to, const T* from) {
#if PRIMUS_CUDA_ARCH >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                     static_cast<std::uint32_t>(__cvta_generic_to_shared(to))),
                 "l"(from)
                 : "memory");
#else
    *reinterpret_cast<Pack<T, kVector<T>>*>(to) = *reinterpret_cast<const Pack<T, kVector<T>>*>(from);
#endif
  }
  PRIMUS_DEVICE static void wait_for_fetches() {
#if PRIMUS_CUDA_ARCH >= 800
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
  }

  // Whether a row is there: some sources have empty places.
  template <class Rows>
  PRIMUS_DEVICE static bool holds(const Rows& from, std::int64_t row) {
    if constexpr (requires { from.holds(row); }) return row < from.rows && from.holds(row);
    return row < from.rows;
  }

  // to[r][c] = from(row + r, col + c), zero outside; there after wait_for_fetches() and a barrier.
  template <int kTileRows, int kTileCols, class Rows>
  PRIMUS_DEVICE static void fetch(T (&to)[kTileRows][kTileCols], const Rows& from, std::int64_t row,
                                  std::int64_t col) {
    constexpr int kCount = kVector<T>;
    constexpr int kPacks = (kTileCols - kPad) / kCount;
    const bool whole = reinterpret_cast<std::uintptr_t>(from.data) % 16 == 0 && from.stride % kCount == 0 &&
                       from.cols % kCount == 0;
    // Products stop at whole tiles: what lies behind is never read.
    const std::int64_t needed = (from.cols - col + kTile - 1) / kTile * kTile;
    using Line = Pack<T, kCount>;
    for (int i = thread(); i < kTileRows * kPacks; i += kThreads) {
      const int r = i / kPacks, c = i % kPacks * kCount;
      if (c >= needed) continue;
      Line line{};
      if (holds(from, row + r)) {
        const T* source = from.at(row + r) + col + c;
        if (whole) {
          if (col + c < from.cols) {
            copy_line(&to[r][c], source);
            continue;
          }
        } else {
          PRIMUS_UNROLL
          for (int k = 0; k < kCount; ++k) {
            if (col + c + k < from.cols) line.at[k] = source[k];
          }
        }
      }
      *reinterpret_cast<Line*>(&to[r][c]) = line;
    }
  }

  // scores = left rows · right rowsᵀ over all columns of both. Left rows number `left_index` stay in shared
  // memory if they have no more than kDepth columns and there is a place for each of them; `loaded`
  // remembers. also() fetches what the caller needs next. On return, all of that is there.
  template <class Left, class Rows, class Also>
  PRIMUS_DEVICE static void multiply_rows(Memory& m, Scores& scores, int left_index, const Left& left,
                                          std::int64_t row, const Rows& right, std::int64_t col, bool& loaded,
                                          Also also) {
    clear(scores);
    const int place = left_index < kLefts ? left_index : 0;
    for (std::int64_t depth = 0; depth < left.cols; depth += kDepth) {
      barrier();
      if (!loaded) fetch(m.left[place], left, row, depth);
      fetch(m.right, right, col, depth);
      if (depth == 0) also();
      wait_for_fetches();
      barrier();
      PRIMUS_UNROLL
      for (int d = 0; d < kDepth; d += kTile) {
        if (depth + d >= left.cols) break;
        const auto x = load_left<false>(&m.left[place][warp() * kTile][d], kDepth + kPad);
        PRIMUS_UNROLL
        for (int j = 0; j < kCols / kTile; ++j) {
          multiply(scores[j], x, load_right<false>(&m.right[j * kTile][d], kDepth + kPad));
        }
      }
    }
    loaded = left.cols <= kDepth && left_index < kLefts;
  }

  // sums += weights · wide, of which columns [col, col + kWide) are in shared memory; `cols` there are.
  PRIMUS_DEVICE static void add_weighted(Memory& m, Sums& sums, const Scores& weights, std::int64_t col,
                                         std::int64_t cols) {
    if constexpr (!kDirect) {
      PRIMUS_UNROLL
      for (int j = 0; j < kCols / kTile; ++j) {
        PRIMUS_UNROLL
        for (int i = 0; i < kPerLane; ++i) {
          m.weights[warp() * kTile + Accumulator::row(i)][j * kTile + Accumulator::col(i)] =
              from_float<T>(weights[j].at[i]);
        }
      }
      warp_barrier();  // a warp reads nobody else's rows
    }
    PRIMUS_UNROLL
    for (int d = 0; d < kCols; d += kTile) {
      const auto x = left_weights(m, weights, d);
      PRIMUS_UNROLL
      for (int j = 0; j < kWide / kTile; ++j) {
        if (col + j * kTile >= cols) break;
        multiply(sums[j], x, load_right<true>(&m.wide[d][j * kTile], kWide + kPad));
      }
    }
  }
  PRIMUS_DEVICE static Operand<T> left_weights(Memory& m, const Scores& weights, int d) {
    if constexpr (kDirect) {
      return to_left<T>(weights[d / kTile]);
    } else {
      return load_left<false>(&m.weights[warp() * kTile][d], kCols + kPad);
    }
  }

  // to(row + r, col + c) = sums * factor[slot], inside of [rows, cols); or += that.
  template <class Out>
  PRIMUS_DEVICE static void store(const Sums& sums, Out* to, std::int64_t stride, std::int64_t row,
                                  std::int64_t col, std::int64_t rows, std::int64_t cols,
                                  const float (&factor)[Accumulator::kRows], bool accumulate = false) {
    PRIMUS_UNROLL
    for (int j = 0; j < kWide / kTile; ++j) {
      PRIMUS_UNROLL
      for (int i = 0; i < kPerLane; ++i) {
        const std::int64_t r = row + warp() * kTile + Accumulator::row(i),
                           c = col + j * kTile + Accumulator::col(i);
        if (r >= rows || c >= cols) continue;
        const float value = sums[j].at[i] * factor[Accumulator::slot(i)];
        Out& element = to[r * stride + c];
        element = from_float<Out>(accumulate ? to_float(element) + value : value);
      }
    }
  }
};

// 2^x within 2 units of the last place, 0 where it is denormal: one instruction on a GPU. For softmax, whose
// arguments are not positive.
PRIMUS_DEVICE float exp2_flushed(float x) {
#if PRIMUS_CUDA_ARCH >= 800
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
#else
  return ::exp2f(x);
#endif
}

constexpr float kLog2E = 1.44269504088896341F, kLn2 = 0.693147180559945309F;

// Factor of scores, and their soft cap (AttentionShape::score_cap).
struct ScoreScale {
  float scale, cap;  // cap 0: none

  // Under a cap, turns products into what the cap multiplies; before they are masked.
  template <int kN>
  PRIMUS_DEVICE void apply_cap(Accumulator (&scores)[kN]) const {
    if (cap == 0) return;
    const float factor = scale / cap;
    PRIMUS_UNROLL
    for (int j = 0; j < kN; ++j) {
      PRIMUS_UNROLL
      for (int i = 0; i < kPerLane; ++i) scores[j].at[i] = ::tanhf(scores[j].at[i] * factor);
    }
  }
  // Their factor then.
  PRIMUS_DEVICE float factor() const { return cap > 0 ? cap : scale; }
  // By how much a score rises with its product, where apply_cap() made it `score`.
  PRIMUS_DEVICE float slope(float score) const {
    return cap > 0 ? scale * ((1.0F - score) * (1.0F + score)) : scale;
  }
};

// A kernel on tiles with what all of them read of a call: what the kernel adds is left empty. `s`: the call's
// shape, and `documents` its first_key or null.
template <template <class> class Kernel, class T, class Call>
Kernel<T> on_tiles(Context& context, const Call& call, const AttentionShape& s, const std::int32_t* documents,
                   const std::int32_t* unless_zero) {
  return {.visibility = Visibility(s, documents),
          .q = context.data<T>(call.q),
          .k = context.data<T>(call.k),
          .v = context.data<T>(call.v),
          .q_stride = call.q_stride,
          .k_stride = call.k_stride,
          .v_stride = call.v_stride,
          .batch = s.batch,
          .capacity_k = s.capacity_k,
          .heads = s.heads,
          .group = s.heads / s.kv_heads,
          .head_dim = s.head_dim,
          .value_dim = s.value_dim,
          .scale = {s.scale, s.score_cap},
          .unless_zero = unless_zero};
}

}  // namespace primus::turbo::PRIMUS_GPU
