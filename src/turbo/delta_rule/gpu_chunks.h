// The delta rule's forward pass on matrix units, for bf16 and warps of 32. It has three kernels:
//
// - DeltaPrepare, all chunks at once: P (queries with keys), and the solution of the chunk's triangular
//   system for values (U0) and, negated, for keys (W).
// - DeltaAdvance, chunk after chunk: U = U0 + W S, and the next state S; two warps keep 16 value columns of a
//   state in registers.
// - DeltaOutput, all chunks at once: the product of queries with S, plus P U.
//
// The system is (I + L) X = B with L strictly lower triangular, in blocks of 16 tokens. T[i] is the inverse
// of I + L[i][i], by substitution in fp32; then X[i] = T[i] B[i] - sum over j < i of (T[i] L[i][j]) X[j].
// Transposed, the result X[j] of one product has the layout of an operand of the next one, so it stays in
// registers.
//
// With gates per channel, the decay between two blocks is a product of two factors <= 1: from the earlier
// token to the start of the later token's block, and from there to the later token. Pairs of tokens of one
// block are summed one by one.
#pragma once

#include "turbo/delta_rule/gpu_delta_rule.h"
#include "turbo/gpu/async_copy.h"
#include "turbo/gpu/mma.h"

namespace primus::turbo::PRIMUS_GPU {

constexpr int kStrip = kTile;           // value columns per warp
constexpr int kBlocks = kRows / kTile;  // token blocks per chunk
constexpr int kPart = 128;              // value columns per block of DeltaPrepare and DeltaOutput
constexpr int kPartStrips = kPart / kStrip;
constexpr int kPad = 8;  // padding of rows in shared memory against bank conflicts of columns

// Intermediate results of the kernels, per item. `strips`: ceil(value_dim / kStrip).
template <class T>
struct DeltaChunks {
  T* w;             // [kRows, keys]: minus W
  T* p;             // [kRows, kRows]
  Bytes16* u;       // [strips, kBlocks, kWarp] left operands [columns, tokens]: U0, then U
  Bytes16* states;  // [strips, keys / kTile, kWarp] left operands [columns, keys]: S before the chunk
  float* write;  // gate per head: [kRows + 4], each key's decay to the chunk's end, and the decay of S; per
                 // channel: [keys], the decay of S
  float* read;   // gate per head: [kRows], the factors of queries
  T *q, *k;      // gates per channel: [kRows, keys], queries and keys with decays (keys: to the chunk's end)
  T* back;  // [kRows, kRows], optional: the diagonal blocks of the inverse, and - L[i][j] T[j] below them
  std::int64_t strips;
};

// Addressing and copies that the kernels share.
template <class T, int kKeys, bool kByChannel>
struct DeltaChunkKernel {
  DeltaItems<T> in;
  DeltaChunks<T> to;

  static constexpr int kFactors = kByChannel ? kKeys : kRows + 4;
  static constexpr int kKeyTiles = kKeys / kTile;
  // Copies rows in 16-byte pieces from global memory, with zeros outside [rows, cols). kCompact: with few
  // instructions, for long kernels that would otherwise wait for instructions.
  template <int kThreads, int kCols, bool kCompact = false, int kStep>
  PRIMUS_DEVICE static void copy_rows(const T* from, std::int64_t stride, int rows, std::int64_t cols,
                                      T (*to)[kStep]) {
    constexpr int kPieces = kCols / 8;
    [[maybe_unused]] constexpr int kUnrolled = kCompact ? 1 : kRows * kPieces / kThreads;
    PRIMUS_UNROLL_BY(kUnrolled)
    for (int at = thread(); at < kRows * kPieces; at += kThreads) {
      const int i = at / kPieces, c = at % kPieces * 8;
      const bool there = i < rows && c < cols;
      copy_async(&to[i][c], there ? from + i * stride + c : from, there);
    }
  }
  // Computes sums [kRows] of a head's gates, in the block's first warp: two tokens per lane.
  PRIMUS_DEVICE static void sum_gates_of_head(const DeltaItems<T>& in, std::int64_t item, int tokens,
                                              double* sums) {
    const std::int64_t stride = in.all_heads;
    const float* const g = in.g + in.row(item) * in.all_heads + in.head(item);
    if (warp() != 0) return;
    const int i = 2 * lane();
    const double first = i < tokens ? static_cast<double>(g[i * stride]) : 0.0;
    const double second = i + 1 < tokens ? static_cast<double>(g[(i + 1) * stride]) : 0.0;
    double sum = first + second;
    PRIMUS_UNROLL
    for (int distance = 1; distance < kWarp; distance *= 2) {
      const double before = from_lane_before(sum, distance);
      if (lane() >= distance) sum += before;
    }
    const double before = from_lane_before(sum, 1), start = lane() > 0 ? before : 0.0;
    sums[i] = start + first;
    sums[i + 1] = start + first + second;
  }
  PRIMUS_DEVICE const T* queries(std::int64_t item) const {
    return in.qkv + in.row(item) * in.width + in.head(item) / in.group * in.key_dim;
  }
  PRIMUS_DEVICE Bytes16* u_of(std::int64_t item, std::int64_t strip) const {
    return to.u + (item * to.strips + strip) * kBlocks * kWarp + lane();
  }
  PRIMUS_DEVICE Bytes16* state_of(std::int64_t item, std::int64_t strip) const {
    return to.states + (item * to.strips + strip) * kKeyTiles * kWarp + lane();
  }
};

template <class T, int kKeys, bool kByChannel>
struct DeltaPrepare : DeltaChunkKernel<T, kKeys, kByChannel> {
  using Base = DeltaChunkKernel<T, kKeys, kByChannel>;
  using Base::in, Base::to;
  static constexpr int kThreads = 256, kWarps = kThreads / kWarp;
  static_assert(kWarp != 32 || kWarps == 2 * kBlocks);
  static constexpr int kWide = kKeys > kPart ? kKeys : kPart;
  struct Memory {
    T k[kRows][kKeys + kPad];
    T wide[kRows][kWide + kPad];  // first queries, then values
    float l[kRows][kRows + 4];
    T p[kRows][kRows + kPad];
    float q_factor[kRows], k_factor[kRows], beta[kRows];
    float since[kRows];  // gate per head: decay of a key, with its normalisation factor
    int document[kRows];
    double sums[kRows];  // gate per head
    struct Solution {
      T x[kRows][kRows + kPad];     // - T[i] L[i][j], and T[i] beta on the diagonal
      T keys[kRows][kTile + kPad];  // - T[i] times the factors of keys
    };
    union {
      float gates[kByChannel ? kRows : 1][kKeys + 4];  // sums, in base 2
      Solution solution;
    };
  };

  PRIMUS_DEVICE void operator()() const {
    Memory& m = *reinterpret_cast<Memory*>(dynamic_shared());
    const std::int64_t item = block(), row = in.row(item), head = in.head(item);
    const int tokens = in.tokens(item);
    const T* const queries = this->queries(item);
    Base::template copy_rows<kThreads, kKeys, kByChannel>(queries + in.k_column, in.width, tokens, in.key_dim,
                                                          m.k);
    Base::template copy_rows<kThreads, kKeys, kByChannel>(queries, in.width, tokens, in.key_dim, m.wide);
    end_group_of_copies();
    if constexpr (kByChannel) {
      sum_gates_of_channels(in, item, tokens, m.gates);
    } else {
      Base::sum_gates_of_head(in, item, tokens, m.sums);
    }
    if (const int i = thread() - kThreads / 2; i >= 0 && i < kRows) {
      m.beta[i] = in.beta_of(item, i);
      m.document[i] = i < tokens ? in.document(item, i) : kRows;
    }
    wait_for_copies<0>();
    barrier();
    find_factors(m);
    barrier();
    if constexpr (kByChannel) {
      scores_by_channel(m);
      barrier();
      decay_by_channel(m, item, tokens);
    } else {
      scores_by_head(m);
      decay_by_head(m, item, tokens);
    }
    barrier();
    const T* const values = in.qkv + row * in.width + in.v_column + head * in.value_dim;
    Base::template copy_rows<kThreads, kPart, kByChannel>(values, in.width, tokens, in.value_dim, m.wide);
    end_group_of_copies();
    substitute(m);
    if (to.back) substitute_back(m, to.back + item * kRows * kRows);
    for (int at = thread(); at < kRows * kRows / 8; at += kThreads) {
      const int i = at / (kRows / 8), j = at % (kRows / 8) * 8;
      using Line = Pack<T, 8>;
      *reinterpret_cast<Line*>(to.p + (item * kRows + i) * kRows + j) =
          *reinterpret_cast<const Line*>(&m.p[i][j]);
    }
    barrier();
    Operand<T> x[kBlocks];
    const auto& diagonal = m.solution.keys;
    for (int c = warp() * kTile; c < kKeys; c += kWarps * kTile) {
      solve(m, &m.k[0][c], kKeys + kPad, &diagonal[0][0], kTile * (kTile + kPad), kTile + kPad, x);
      // The result overwrites its own keys, which no other warp reads.
      warp_barrier();
      PRIMUS_UNROLL
      for (int i = 0; i < kBlocks; ++i) {
        PRIMUS_UNROLL
        for (int n = 0; n < kPerLane; ++n)
          m.k[i * kTile + Operand<T>::left_k(n)][c + Operand<T>::left_row(n)] = x[i].at[n];
      }
    }
    for (std::int64_t first = 0; first < to.strips; first += kPartStrips) {
      if (first > 0) {
        barrier();
        Base::template copy_rows<kThreads, kPart, kByChannel>(values + first * kStrip, in.width, tokens,
                                                              in.value_dim - first * kStrip, m.wide);
        end_group_of_copies();
      }
      wait_for_copies<0>();
      barrier();
      if (first == 0) store_w(m, item);
      for (int s = warp(); s < kPartStrips && first + s < to.strips; s += kWarps) {
        solve(m, &m.wide[0][s * kStrip], kWide + kPad, &m.solution.x[0][0], kTile * (kRows + kPad) + kTile,
              kRows + kPad, x);
        Bytes16* const u = this->u_of(item, first + s);
        PRIMUS_UNROLL
        for (int i = 0; i < kBlocks; ++i) u[i * kWarp] = std::bit_cast<Bytes16>(x[i]);
      }
    }
  }

 private:
  PRIMUS_DEVICE void store_w(const Memory& m, std::int64_t item) const {
    constexpr int kPieces = kKeys / 8;
    for (int at = thread(); at < kRows * kPieces; at += kThreads) {
      using Line = Pack<T, 8>;
      *reinterpret_cast<Line*>(to.w + item * kRows * kKeys + at * 8) =
          *reinterpret_cast<const Line*>(&m.k[at / kPieces][at % kPieces * 8]);
    }
  }
  // Computes the factors that normalise keys and queries: two threads share a row.
  PRIMUS_DEVICE void find_factors(Memory& m) const {
    const int i = thread() / 2 % kRows;
    const bool key = thread() < kThreads / 2;
    float square = 0;
    for (int c = thread() % 2 * 8; c < kKeys; c += 16) {
      float x[8];
      load<8>(key ? &m.k[i][c] : &m.wide[i][c], x);
      PRIMUS_UNROLL
      for (int n = 0; n < 8; ++n) square = multiply_add(x[n], x[n], square);
    }
    square += from_lane_xor(square, 1);
    if (thread() % 2 == 0)
      (key ? m.k_factor : m.q_factor)[i] = in.normalise ? unit_factor(square, in.epsilon) : 1.0F;
  }

  // Stores the decayed product of a query (or a key) i with a key j in P (or in L).
  PRIMUS_DEVICE static void keep(Memory& m, bool of_query, int i, int j, float product) {
    const bool sees = j <= i && j >= m.document[i];
    const float value = sees ? product * m.k_factor[j] : 0.0F;
    if (of_query) {
      m.p[i][j] = from_float<T>(value * m.q_factor[i]);
    } else {
      m.l[i][j] = j < i ? value * m.k_factor[i] * m.beta[i] : 0.0F;
    }
  }
  // A warp multiplies its block of keys or queries with the key block at the same position and earlier ones.
  PRIMUS_DEVICE void scores_by_head(Memory& m) const {
    const int own = warp() % kBlocks;
    const bool of_query = warp() >= kBlocks;
    const T* const left = of_query ? &m.wide[own * kTile][0] : &m.k[own * kTile][0];
    const int step = of_query ? kWide + kPad : kKeys + kPad;
    Accumulator sums[kBlocks];
    PRIMUS_UNROLL
    for (int j = 0; j < kBlocks; ++j) sums[j].clear();
    PRIMUS_UNROLL
    for (int c = 0; c < kKeys; c += kTile) {
      const auto x = load_left<false>(left + c, step);
      PRIMUS_UNROLL
      for (int j = 0; j < kBlocks; ++j) {
        if (j <= own) multiply(sums[j], x, load_right<false>(&m.k[j * kTile][c], kKeys + kPad));
      }
    }
    PRIMUS_UNROLL
    for (int j = 0; j < kBlocks; ++j) {
      PRIMUS_UNROLL
      for (int n = 0; n < kPerLane; ++n) {
        const int row = own * kTile + Accumulator::row(n), other = j * kTile + Accumulator::col(n);
        const float decay = other <= row ? ::expf(static_cast<float>(m.sums[row] - m.sums[other])) : 0.0F;
        keep(m, of_query, row, other, sums[j].at[n] * decay);
      }
    }
  }
  PRIMUS_DEVICE void scores_by_channel(Memory& m) const {
    const int own = warp() % kBlocks;
    const bool of_query = warp() >= kBlocks;
    const T* const left = of_query ? &m.wide[own * kTile][0] : &m.k[own * kTile][0];
    const int step = of_query ? kWide + kPad : kKeys + kPad;
    Accumulator sums[kBlocks];
    PRIMUS_UNROLL
    for (int j = 0; j < kBlocks; ++j) sums[j].clear();
    if (own > 0) {
      using Part = Operand<T>;
      const float* const end = m.gates[own * kTile - 1];
      for (int c = 0; c < kKeys; c += kTile) {
        auto x = load_left<false>(left + c, step);
        PRIMUS_UNROLL
        for (int n = 0; n < kPerLane; ++n) {
          const int k = c + Part::left_k(n);
          const float decay = power_of_two(m.gates[own * kTile + Part::left_row(n)][k] - end[k]);
          x.at[n] = from_float<T>(to_float(x.at[n]) * decay);
        }
        PRIMUS_UNROLL
        for (int j = 0; j + 1 < kBlocks; ++j) {
          if (j >= own) continue;
          auto y = load_right<false>(&m.k[j * kTile][c], kKeys + kPad);
          PRIMUS_UNROLL
          for (int n = 0; n < kPerLane; ++n) {
            const int k = c + Part::right_k(n);
            const float decay = power_of_two(end[k] - m.gates[j * kTile + Part::right_row(n)][k]);
            y.at[n] = from_float<T>(to_float(y.at[n]) * decay);
          }
          multiply(sums[j], x, y);
        }
      }
    }
    PRIMUS_UNROLL
    for (int j = 0; j < kBlocks; ++j) {
      if (j == own) continue;
      PRIMUS_UNROLL
      for (int n = 0; n < kPerLane; ++n)
        keep(m, of_query, own * kTile + Accumulator::row(n), j * kTile + Accumulator::col(n), sums[j].at[n]);
    }
    // Pairs within a block: rows r and kTile - 1 - r together have kTile + 1 pairs.
    constexpr int kPairs = kTile * (kTile + 1) / 2;
    for (int pair = lane() + warp() / kBlocks * kWarp; pair < kPairs; pair += 2 * kWarp) {
      const int fold = pair / (kTile + 1), at = pair % (kTile + 1);
      const int i = own * kTile + (at <= fold ? fold : kTile - 1 - fold);
      const int j = own * kTile + (at <= fold ? at : at - fold - 1);
      float read = 0, write = 0;
      for (int c = 0; c < kKeys; c += 4) {
        float query[4], key[4], other[4], sum[4], seen[4];
        load<4>(&m.wide[i][c], query);
        load<4>(&m.k[i][c], key);
        load<4>(&m.k[j][c], other);
        load<4>(&m.gates[i][c], sum);
        load<4>(&m.gates[j][c], seen);
        PRIMUS_UNROLL
        for (int n = 0; n < 4; ++n) {
          const float decayed = other[n] * power_of_two(sum[n] - seen[n]);
          read = multiply_add(query[n], decayed, read);
          write = multiply_add(key[n], decayed, write);
        }
      }
      keep(m, true, i, j, read);
      keep(m, false, i, j, write);
      if (j < i) {
        keep(m, true, j, i, 0);
        keep(m, false, j, i, 0);
      }
    }
  }
  // Computes the gate factors of queries and keys for products with states.
  PRIMUS_DEVICE void decay_by_head(Memory& m, std::int64_t item, int tokens) const {
    const int i = thread(), last = tokens - 1;
    if (i >= kRows) return;
    const float since = i <= last && m.document[i] < 0 ? ::expf(static_cast<float>(m.sums[i])) : 0.0F;
    const float until =
        i <= last && m.document[last] <= i ? ::expf(static_cast<float>(m.sums[last] - m.sums[i])) : 0.0F;
    m.since[i] = since * m.k_factor[i];
    to.read[item * kRows + i] = since * m.q_factor[i];
    float* const write = to.write + item * Base::kFactors;
    write[i] = until * m.k_factor[i];
    if (i == last) write[kRows] = since;
  }
  PRIMUS_DEVICE void decay_by_channel(Memory& m, std::int64_t item, int tokens) const {
    const int last = tokens - 1;
    for (int at = thread(); at < kRows * kKeys / 8; at += kThreads) {
      const int i = at / (kKeys / 8), c = at % (kKeys / 8) * 8;
      const float q_factor = m.q_factor[i], k_factor = m.k_factor[i];
      const bool sees = i <= last && m.document[i] < 0, seen = i <= last && m.document[last] <= i;
      float query[8], key[8], until[8], sum[8], end[8];
      load<8>(&m.wide[i][c], query);
      load<8>(&m.k[i][c], key);
      PRIMUS_UNROLL
      for (int n = 0; n < 8; ++n) {
        sum[n] = m.gates[i][c + n];
        end[n] = m.gates[last][c + n];
        const float since = sees ? power_of_two(sum[n]) : 0.0F;
        until[n] = seen ? key[n] * k_factor * power_of_two(end[n] - sum[n]) : 0.0F;
        query[n] *= q_factor * since;
        key[n] *= k_factor * since;
      }
      const std::int64_t element = (item * kRows + i) * kKeys + c;
      store<8>(to.q + element, query);
      store<8>(to.k + element, until);
      store<8>(&m.k[i][c], key);
      if (i == last) {
        PRIMUS_UNROLL
        for (int n = 0; n < 8; ++n) to.write[item * kKeys + c + n] = sees ? power_of_two(end[n]) : 0.0F;
      }
    }
  }

  // Computes T and T L, block row by block row; one column per lane.
  PRIMUS_DEVICE void substitute(Memory& m) const {
    const int own = warp() % kBlocks * kTile, c = warp() / kBlocks * kWarp + lane();
    if (c >= own + kTile) return;
    const bool diagonal = c >= own;
    float x[kTile];
    PRIMUS_UNROLL
    for (int i = 0; i < kTile; ++i) {
      float value = diagonal ? (i == c - own ? 1.0F : 0.0F) : m.l[own + i][c];
      PRIMUS_UNROLL
      for (int j = 0; j < i; ++j) value = multiply_add(-m.l[own + i][own + j], x[j], value);
      x[i] = value;
    }
    const float of_values = diagonal ? m.beta[c] : -1.0F;
    const float of_keys = diagonal ? -m.beta[c] * (kByChannel ? 1.0F : m.since[c]) : 0.0F;
    PRIMUS_UNROLL
    for (int i = 0; i < kTile; ++i) {
      m.solution.x[own + i][c] = from_float<T>(x[i] * of_values);
      if (diagonal) m.solution.keys[own + i][c - own] = from_float<T>(x[i] * of_keys);
    }
  }

  // Computes T and L T, block column by block column; one row per lane.
  PRIMUS_DEVICE static void substitute_back(const Memory& m, T* back) {
    const int own = warp() % kBlocks * kTile, row = own + warp() / kBlocks * kWarp + lane();
    if (row >= kRows) return;
    const bool diagonal = row < own + kTile;
    float x[kTile];
    PRIMUS_UNROLL
    for (int c = 0; c < kTile; ++c) x[c] = diagonal ? (c == row - own ? 1.0F : 0.0F) : m.l[row][own + c];
    PRIMUS_UNROLL
    for (int c = kTile - 1; c > 0; --c) {
      PRIMUS_UNROLL
      for (int j = 0; j < c; ++j) x[j] = multiply_add(-m.l[own + c][own + j], x[c], x[j]);
    }
    PRIMUS_UNROLL
    for (int c = 0; c < kTile; c += 8) {
      float piece[8];
      PRIMUS_UNROLL
      for (int n = 0; n < 8; ++n) piece[n] = diagonal ? x[c + n] : -x[c + n];
      store<8>(back + row * kRows + own + c, piece);
    }
  }

  // x = the transposed solution for 16 columns of `b` [kRows, step]: a left operand per block of tokens.
  PRIMUS_DEVICE static void solve(const Memory& m, const T* b, int step, const T* diagonal, int to_next,
                                  int diagonal_step, Operand<T> (&x)[kBlocks]) {
    PRIMUS_UNROLL
    for (int i = 0; i < kBlocks; ++i) {
      Accumulator sum;
      sum.clear();
      multiply(sum, load_left<true>(b + i * kTile * step, step),
               load_right<false>(diagonal + i * to_next, diagonal_step));
      PRIMUS_UNROLL
      for (int j = 0; j < i; ++j)
        multiply(sum, x[j], load_right<false>(&m.solution.x[i * kTile][j * kTile], kRows + kPad));
      x[i] = to_left<T>(sum);
    }
  }
};

// Exchanges partial sums between two warps that have half of the keys each.
template <int kWarps>
struct DeltaExchange {
  Bytes16 at[kWarps][kBlocks * 2][kWarp];

  PRIMUS_DEVICE void give(const Accumulator (&sums)[kBlocks]) {
    PRIMUS_UNROLL
    for (int t = 0; t < kBlocks; ++t) {
      const auto lines = std::bit_cast<Lines>(sums[t]);
      at[warp()][2 * t][lane()] = lines.at[0];
      at[warp()][2 * t + 1][lane()] = lines.at[1];
    }
  }
  // Call after give() and a barrier. Both warps get bitwise equal sums.
  PRIMUS_DEVICE void take(Accumulator (&sums)[kBlocks]) const {
    PRIMUS_UNROLL
    for (int t = 0; t < kBlocks; ++t) {
      const auto more =
          std::bit_cast<Accumulator>(Lines{at[warp() ^ 1][2 * t][lane()], at[warp() ^ 1][2 * t + 1][lane()]});
      PRIMUS_UNROLL
      for (int n = 0; n < kPerLane; ++n) sums[t].at[n] += more.at[n];
    }
  }

 private:
  struct Lines {
    Bytes16 at[2];
  };
};

// A block handles a head of a sequence and two strips of value columns; two warps share a strip, each with
// half of the keys. The products of one warp determine the duration of a step, so many small blocks are
// faster than few large ones.
template <class T, int kKeys, bool kByChannel>
struct DeltaAdvance : DeltaChunkKernel<T, kKeys, kByChannel> {
  using Base = DeltaChunkKernel<T, kKeys, kByChannel>;
  using Base::in, Base::to;
  static constexpr int kFactors = Base::kFactors;
  static constexpr int kStrips = 2, kThreads = kStrips * 2 * kWarp, kStages = 3, kOwn = Base::kKeyTiles / 2;

  struct Stage {
    T w[kRows][kKeys + kPad], k[kRows][kKeys + kPad];
    float factors[kFactors];
  };
  struct Memory {
    Stage stages[kStages];
    DeltaExchange<kStrips * 2> exchange;
  };

  PRIMUS_DEVICE void operator()() const {
    Memory& m = *reinterpret_cast<Memory*>(dynamic_shared());
    const std::int64_t slices = (to.strips + kStrips - 1) / kStrips, of_head = block() / slices;
    const std::int64_t sequence = of_head / in.heads, head = of_head % in.heads;
    const std::int64_t strip = block() % slices * kStrips + warp() / 2;
    const bool there = strip < to.strips;
    const auto item_of = [&](std::int64_t chunk) { return in.item(sequence, chunk, head); };
    PRIMUS_UNROLL
    for (int stage = 0; stage + 1 < kStages; ++stage) {
      if (stage < in.chunks) begin_copies(m.stages[stage], item_of(stage));
      end_group_of_copies();
    }
    Accumulator state[kOwn];
    PRIMUS_UNROLL
    for (int c = 0; c < kOwn; ++c) state[c].clear();
    Bytes16 next[kBlocks] = {};
    if (there) load_u(item_of(0), strip, next);
    int stage = 0;
    for (std::int64_t chunk = 0; chunk < in.chunks; ++chunk) {
      wait_for_copies<kStages - 2>();
      barrier();
      const int later = stage == 0 ? kStages - 1 : stage - 1;
      if (chunk + kStages - 1 < in.chunks) begin_copies(m.stages[later], item_of(chunk + kStages - 1));
      end_group_of_copies();
      const Stage& now = m.stages[stage];
      stage = stage + 1 == kStages ? 0 : stage + 1;
      Accumulator u[kBlocks];
      if (there) say(now, item_of(chunk), strip, state, u);
      if (there) m.exchange.give(u);
      barrier();
      if (!there) continue;
      m.exchange.take(u);
      PRIMUS_UNROLL
      for (int t = 0; t < kBlocks; ++t) {
        const auto values = std::bit_cast<Operand<T>>(next[t]);
        PRIMUS_UNROLL
        for (int n = 0; n < kPerLane; ++n) u[t].at[n] += to_float(values.at[n]);
      }
      if (chunk + 1 < in.chunks) load_u(item_of(chunk + 1), strip, next);
      write(now, item_of(chunk), strip, u, state);
    }
  }

 private:
  PRIMUS_DEVICE static int first_tile() { return warp() % 2 * kOwn; }
  // u = this warp's half of W S; also stores the state.
  PRIMUS_DEVICE void say(const Stage& now, std::int64_t item, std::int64_t strip,
                         const Accumulator (&state)[kOwn], Accumulator (&u)[kBlocks]) const {
    PRIMUS_UNROLL
    for (int t = 0; t < kBlocks; ++t) u[t].clear();
    Operand<T> right[2][kBlocks];
    const auto load_w = [&](int c) {
      PRIMUS_UNROLL
      for (int t = 0; t < kBlocks; ++t)
        right[c % 2][t] = load_right<false>(&now.w[t * kTile][(first_tile() + c) * kTile], kKeys + kPad);
    };
    load_w(0);
    Bytes16* const states = this->state_of(item, strip) + first_tile() * kWarp;
    PRIMUS_UNROLL
    for (int c = 0; c < kOwn; ++c) {
      if (c + 1 < kOwn) load_w(c + 1);
      const auto rounded = to_left<T>(state[c]);
      states[c * kWarp] = std::bit_cast<Bytes16>(rounded);
      PRIMUS_UNROLL
      for (int t = 0; t < kBlocks; ++t) multiply(u[t], rounded, right[c % 2][t]);
    }
  }
  // Decays the state and adds U.
  PRIMUS_DEVICE void write(const Stage& now, std::int64_t item, std::int64_t strip, Accumulator (&u)[kBlocks],
                           Accumulator (&state)[kOwn]) const {
    Operand<T> right[2][kOwn];
    const auto load_k = [&](int t) {
      PRIMUS_UNROLL
      for (int c = 0; c < kOwn; ++c)
        right[t % 2][c] = load_right<true>(&now.k[t * kTile][(first_tile() + c) * kTile], kKeys + kPad);
    };
    load_k(0);
    PRIMUS_UNROLL
    for (int c = 0; c < kOwn; ++c) {
      PRIMUS_UNROLL
      for (int n = 0; n < kPerLane; ++n)
        state[c].at[n] *= now.factors[kByChannel ? (first_tile() + c) * kTile + Accumulator::col(n) : kRows];
    }
    Bytes16* const kept = this->u_of(item, strip);
    PRIMUS_UNROLL
    for (int t = 0; t < kBlocks; ++t) {
      if (t + 1 < kBlocks) load_k(t + 1);
      auto written = to_left<T>(u[t]);
      if (t / 2 == warp() % 2) kept[t * kWarp] = std::bit_cast<Bytes16>(written);
      if constexpr (!kByChannel) {
        PRIMUS_UNROLL
        for (int n = 0; n < kPerLane; ++n) u[t].at[n] *= now.factors[t * kTile + Accumulator::col(n)];
        written = to_left<T>(u[t]);
      }
      PRIMUS_UNROLL
      for (int c = 0; c < kOwn; ++c) multiply(state[c], written, right[t % 2][c]);
    }
  }
  PRIMUS_DEVICE void begin_copies(Stage& stage, std::int64_t item) const {
    Base::template copy_rows<kThreads, kKeys>(to.w + item * kRows * kKeys, kKeys, kRows, kKeys, stage.w);
    if constexpr (kByChannel) {
      Base::template copy_rows<kThreads, kKeys>(to.k + item * kRows * kKeys, kKeys, kRows, kKeys, stage.k);
    } else {
      Base::template copy_rows<kThreads, kKeys>(this->queries(item) + in.k_column, in.width, in.tokens(item),
                                                in.key_dim, stage.k);
    }
    for (int at = thread(); at < kFactors / 4; at += kThreads)
      copy_async(&stage.factors[at * 4], to.write + item * kFactors + at * 4, true);
  }
  PRIMUS_DEVICE void load_u(std::int64_t item, std::int64_t strip, Bytes16 (&u)[kBlocks]) const {
    const Bytes16* const from = this->u_of(item, strip);
    PRIMUS_UNROLL
    for (int t = 0; t < kBlocks; ++t) u[t] = from[t * kWarp];
  }
};

// One block per item and kPart value columns; a warp handles one strip of them.
template <class T, int kKeys, bool kByChannel>
struct DeltaOutput : DeltaChunkKernel<T, kKeys, kByChannel> {
  using Base = DeltaChunkKernel<T, kKeys, kByChannel>;
  using Base::in, Base::to;
  static constexpr int kKeyTiles = Base::kKeyTiles;
  static constexpr int kThreads = kPartStrips * kWarp;
  T* out;

  struct Memory {
    T q[kRows][kKeys + kPad];
    T p[kRows][kRows + kPad];
    T out[kRows][kPart + kPad];
    float factors[kRows];
  };

  static std::int64_t parts(std::int64_t strips) { return blocks_for(strips, kPartStrips); }
  PRIMUS_DEVICE void operator()() const {
    Memory& m = *reinterpret_cast<Memory*>(dynamic_shared());
    const std::int64_t parts = (to.strips + kPartStrips - 1) / kPartStrips;
    const std::int64_t item = block() / parts, first = block() % parts * kPartStrips;
    const int tokens = in.tokens(item);
    if constexpr (kByChannel) {
      Base::template copy_rows<kThreads, kKeys>(to.q + item * kRows * kKeys, kKeys, kRows, kKeys, m.q);
    } else {
      Base::template copy_rows<kThreads, kKeys>(this->queries(item), in.width, tokens, in.key_dim, m.q);
      if (thread() < kRows) m.factors[thread()] = to.read[item * kRows + thread()];
    }
    Base::template copy_rows<kThreads, kRows>(to.p + item * kRows * kRows, kRows, kRows, kRows, m.p);
    end_group_of_copies();
    const std::int64_t strip = first + warp();
    if (strip < to.strips) {
      Operand<T> state[kKeyTiles], u[kBlocks];
      PRIMUS_UNROLL
      for (int c = 0; c < kKeyTiles; ++c)
        state[c] = std::bit_cast<Operand<T>>(this->state_of(item, strip)[c * kWarp]);
      PRIMUS_UNROLL
      for (int t = 0; t < kBlocks; ++t) u[t] = std::bit_cast<Operand<T>>(this->u_of(item, strip)[t * kWarp]);
      wait_for_copies<0>();
      barrier();
      Accumulator sums[kBlocks];
      PRIMUS_UNROLL
      for (int t = 0; t < kBlocks; ++t) {
        sums[t].clear();
        PRIMUS_UNROLL
        for (int c = 0; c < kKeyTiles; ++c)
          multiply(sums[t], state[c], load_right<false>(&m.q[t * kTile][c * kTile], kKeys + kPad));
        if constexpr (!kByChannel) {
          PRIMUS_UNROLL
          for (int n = 0; n < kPerLane; ++n) sums[t].at[n] *= m.factors[t * kTile + Accumulator::col(n)];
        }
        PRIMUS_UNROLL
        for (int j = 0; j <= t; ++j)
          multiply(sums[t], u[j], load_right<false>(&m.p[t * kTile][j * kTile], kRows + kPad));
        PRIMUS_UNROLL
        for (int n = 0; n < kPerLane; ++n)
          m.out[t * kTile + Accumulator::col(n)][warp() * kStrip + Accumulator::row(n)] =
              from_float<T>(in.scale * sums[t].at[n]);
      }
    } else {
      wait_for_copies<0>();
      barrier();
    }
    barrier();
    constexpr int kPieces = kPart / 8;
    for (int at = thread(); at < tokens * kPieces; at += kThreads) {
      const int i = at / kPieces, c = at % kPieces * 8;
      const std::int64_t column = first * kStrip + c;
      if (column >= in.value_dim) continue;
      using Line = Pack<T, 8>;
      *reinterpret_cast<Line*>(out + ((in.row(item) + i) * in.all_heads + in.head(item)) * in.value_dim +
                               column) = *reinterpret_cast<const Line*>(&m.out[i][c]);
    }
  }
};

}  // namespace primus::turbo::PRIMUS_GPU
