// The operands of DeltaFinish (gpu_finish.h) in shared memory, and the gradient of values. Shared memory
// holds only some value columns at a time.
#pragma once

#include "turbo/delta_rule/gpu_retreat.h"

namespace primus::turbo::PRIMUS_GPU {

template <class T, int kKeys, bool kByChannel>
struct DeltaFinishParts : DeltaChunkKernel<T, kKeys, kByChannel> {
  using Base = DeltaChunkKernel<T, kKeys, kByChannel>;
  using Base::in, Base::to;
  DeltaChunkGradients<T> d;
  static constexpr int kKeyTiles = Base::kKeyTiles;
  static constexpr int kThreads = 256, kWarps = kThreads / kWarp, kColumns = 64;
  static_assert(kWarp != 32 || (kWarps == 2 * kBlocks && kWarps >= kKeyTiles));
  static_assert(kColumns / kStrip == kBlocks);

  struct Common {
    T q[kRows][kKeys + kPad], k[kRows][kKeys + kPad];  // normalised
    T back[kRows][kRows + kPad];
    float beta[kRows];
    int document[kRows];
    float betas[kWarps][kRows];  // partial sums over each warp's channels
    float z_values[kThreads / kRows][kRows];
  };
  // The operands for some value columns.
  struct Part {
    T out[kRows][kColumns + kPad];
    T z[kColumns][kRows + kPad], u[kColumns][kRows + kPad];
    T state[kColumns][kKeys + kPad], d_state[kColumns][kKeys + kPad];
  };
  // Loads queries, keys, beta and documents. `sum_gates` runs during these copies. Ends with a barrier.
  template <class SumGates>
  PRIMUS_DEVICE void begin(Common& m, std::int64_t item, SumGates sum_gates) const {
    const int tokens = in.tokens(item);
    const T* const queries = this->queries(item);
    Base::template copy_rows<kThreads, kKeys, kByChannel>(queries, in.width, tokens, in.key_dim, m.q);
    Base::template copy_rows<kThreads, kKeys, kByChannel>(queries + in.k_column, in.width, tokens, in.key_dim,
                                                          m.k);
    Base::template copy_rows<kThreads, kRows, kByChannel>(to.back + item * kRows * kRows, kRows, kRows, kRows,
                                                          m.back);
    end_group_of_copies();
    sum_gates();
    if (const int i = thread() - kThreads / 2; i >= 0 && i < kRows) {
      m.beta[i] = in.beta_of(item, i);
      m.document[i] = i < tokens ? in.document(item, i) : kRows;
    }
    wait_for_copies<0>();
    barrier();
    normalise(m);
  }

  // Loads some value columns: half of the warps solve for z, and the other half fetches U and the states.
  PRIMUS_DEVICE void load_part(const Common& m, Part& part, std::int64_t item, std::int64_t first) const {
    const std::int64_t width = in.all_heads * in.value_dim;
    const T* const out = d.out + in.row(item) * width + in.head(item) * in.value_dim + first * kStrip;
    Base::template copy_rows<kThreads, kColumns, kByChannel>(out, width, in.tokens(item),
                                                             in.value_dim - first * kStrip, part.out);
    end_group_of_copies();
    const int local = warp() % kBlocks * kStrip;
    const std::int64_t strip = first + warp() % kBlocks;
    const bool there = strip < to.strips;
    const std::int64_t of_u = (item * to.strips + strip) * kBlocks * kWarp + lane();
    const std::int64_t of_state = (item * to.strips + strip) * kKeyTiles * kWarp + lane();
    if (warp() < kBlocks) {
      Operand<T> z[kBlocks];
      PRIMUS_UNROLL
      for (int j = kBlocks - 1; j >= 0; --j) {
        Accumulator sum;
        sum.clear();
        const auto u = there ? std::bit_cast<Operand<T>>(d.u[of_u + j * kWarp]) : Operand<T>{};
        multiply(sum, u, load_right<true>(&m.back[j * kTile][j * kTile], kRows + kPad));
        PRIMUS_UNROLL
        for (int i = kBlocks - 1; i > j; --i)
          multiply(sum, z[i], load_right<true>(&m.back[i * kTile][j * kTile], kRows + kPad));
        z[j] = to_left<T>(sum);
        lay(z[j], &part.z[local][j * kTile], kRows + kPad);
      }
    } else {
      PRIMUS_UNROLL
      for (int t = 0; t < kBlocks; ++t) {
        const auto u = there ? std::bit_cast<Operand<T>>(to.u[of_u + t * kWarp]) : Operand<T>{};
        lay(u, &part.u[local][t * kTile], kRows + kPad);
      }
      PRIMUS_UNROLL
      for (int c = 0; c < kKeyTiles; ++c) {
        const auto state = there ? std::bit_cast<Operand<T>>(to.states[of_state + c * kWarp]) : Operand<T>{};
        const auto d_state = there ? std::bit_cast<Operand<T>>(d.states[of_state + c * kWarp]) : Operand<T>{};
        lay(state, &part.state[local][c * kTile], kKeys + kPad);
        lay(d_state, &part.d_state[local][c * kTile], kKeys + kPad);
      }
    }
    wait_for_copies<0>();
  }

  // Number of values per thread; all of them belong to one token.
  static constexpr int kOwn = kColumns / (kThreads / kRows);
  struct Values {
    Bytes16 at[kOwn / 8];
  };
  PRIMUS_DEVICE std::int64_t value_column(std::int64_t first) const {
    return first * kStrip + thread() / kRows * kOwn;
  }
  PRIMUS_DEVICE std::int64_t values_at(std::int64_t item, std::int64_t column) const {
    return (in.row(item) + thread() % kRows) * in.width + in.v_column + in.head(item) * in.value_dim + column;
  }
  PRIMUS_DEVICE Values load_values(std::int64_t item, std::int64_t first) const {
    Values values{};
    if (thread() % kRows >= in.tokens(item)) return values;
    const std::int64_t column = value_column(first);
    PRIMUS_UNROLL
    for (int v = 0; v < kOwn; v += 8) {
      if (column + v < in.value_dim) values.at[v / 8] = load_line(in.qkv + values_at(item, column + v));
    }
    return values;
  }
  // Stores the gradient of values. Returns the sum of z · values over this thread's columns.
  PRIMUS_DEVICE float values_gradient(const Common& m, const Part& part, std::int64_t item,
                                      std::int64_t first, const Values& values) const {
    const int i = thread() % kRows;
    if (i >= in.tokens(item)) return 0;
    const std::int64_t column = value_column(first);
    float sum = 0;
    PRIMUS_UNROLL
    for (int v = 0; v < kOwn; v += 8) {
      if (column + v >= in.value_dim) break;
      const auto piece = std::bit_cast<Pack<T, 8>>(values.at[v / 8]);
      float gradient[8];
      PRIMUS_UNROLL
      for (int n = 0; n < 8; ++n) {
        const float z = to_float(part.z[thread() / kRows * kOwn + v + n][i]);
        sum = multiply_add(z, to_float(piece.at[n]), sum);
        gradient[n] = m.beta[i] * z;
      }
      store<8>(d.qkv + values_at(item, column + v), gradient);
    }
    return sum;
  }

 private:
  PRIMUS_DEVICE void normalise(Common& m) const {
    if (!in.normalise) return;
    // Two threads process a row.
    const int i = thread() / 2 % kRows;
    T* const row = thread() < kThreads / 2 ? m.k[i] : m.q[i];
    float square = 0;
    for (int c = thread() % 2 * 8; c < kKeys; c += 16) {
      float x[8];
      load<8>(row + c, x);
      PRIMUS_UNROLL
      for (int n = 0; n < 8; ++n) square = multiply_add(x[n], x[n], square);
    }
    square += from_lane_xor(square, 1);
    const float factor = unit_factor(square, in.epsilon);
    for (int c = thread() % 2 * 8; c < kKeys; c += 16) {
      float x[8];
      load<8>(row + c, x);
      PRIMUS_UNROLL
      for (int n = 0; n < 8; ++n) x[n] *= factor;
      store<8>(row + c, x);
    }
  }

  PRIMUS_DEVICE static void lay(const Operand<T>& tile, T* to, int step) {
    PRIMUS_UNROLL
    for (int n = 0; n < kPerLane; n += 2)
      *reinterpret_cast<Pack<T, 2>*>(to + Operand<T>::left_row(n) * step + Operand<T>::left_k(n)) = {
          tile.at[n], tile.at[n + 1]};
  }
};

}  // namespace primus::turbo::PRIMUS_GPU
