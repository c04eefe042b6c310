// The operands of DeltaFinish (gpu_finish.h) in shared memory, and the gradient of values. Shared memory
// holds only some value columns at a time.
#pragma once

#include "turbo/delta_rule/gpu_retreat.h"

namespace primus::turbo::PRIMUS_GPU {

// A block processes one item with 16 warps. Half of the warps process rows of the token-by-token matrices,
// and the other half their columns, so that a warp has few sums.
template <class T, int kKeys, bool kByChannel>
struct DeltaFinishParts : DeltaChunkKernel<T, kKeys, kByChannel> {
  using Base = DeltaChunkKernel<T, kKeys, kByChannel>;
  using Base::in, Base::to;
  DeltaChunkGradients<T> d;
  static constexpr int kKeyTiles = Base::kKeyTiles;
  static constexpr int kThreads = 512, kWarps = kThreads / kWarp, kHalf = kWarps / 2;
  static constexpr int kColumns = kByChannel ? 32 : 64, kStrips = kColumns / kStrip;
  static_assert(kWarp != 32 || (kHalf == 2 * kBlocks && kHalf >= kKeyTiles));

  struct Common {
    T q[kRows][kKeys + kPad], k[kRows][kKeys + kPad];  // normalised
    T back[kRows][kRows + kPad];
    float beta[kRows];
    int document[kRows];
  };
  // The operands for some value columns.
  struct Part {
    T out[2][kRows][kColumns + kPad];  // of this part and of the next part
    T z[kColumns][kRows + kPad], u[kColumns][kRows + kPad];
    T state[kColumns][kKeys + kPad], d_state[kColumns][kKeys + kPad];
    Bytes16 next_d_u[kStrips * kBlocks * kWarp];  // operands of the next part, as in DeltaChunks
    Bytes16 next_u[kStrips * kBlocks * kWarp];
    Bytes16 next_state[kStrips * kKeyTiles * kWarp], next_d_state[kStrips * kKeyTiles * kWarp];
  };

  // Loads queries, keys, beta and documents, and begins to fetch the first value columns. `sum_gates` runs
  // during these copies. Ends with a barrier.
  template <class SumGates>
  PRIMUS_DEVICE void begin(Common& m, Part& part, const DeltaPlace& place, SumGates sum_gates) const {
    const T* const queries = this->queries(place);
    Base::template copy_rows<kThreads, kKeys>(queries, in.width, place.tokens, in.key_dim, m.q);
    Base::template copy_rows<kThreads, kKeys>(queries + in.k_column, in.width, place.tokens, in.key_dim, m.k);
    Base::template copy_rows<kThreads, kRows>(to.back + place.item * kRows * kRows, kRows, kRows, kRows,
                                              m.back);
    end_group_of_copies();
    fetch_part(part, place, 0);
    sum_gates();
    if (const int i = thread() - kThreads / 2; i >= 0 && i < kRows) {
      m.beta[i] = in.beta_of(place, i);
      m.document[i] = i < place.tokens ? in.document(place, i) : kRows;
    }
    wait_for_copies<1>();
    barrier();
    normalise(m);
  }

  // Begins to fetch the value columns from strip `first` on.
  PRIMUS_DEVICE void fetch_part(Part& part, const DeltaPlace& place, std::int64_t first) const {
    const std::int64_t width = in.all_heads * in.value_dim;
    const T* const out = d.out + place.row * width + place.head * in.value_dim + first * kStrip;
    Base::template copy_rows<kThreads, kColumns>(out, width, place.tokens, in.value_dim - first * kStrip,
                                                 part.out[first / kStrips % 2]);
    const std::int64_t strip = place.item * to.strips + first;
    const int strips = static_cast<int>(smaller(to.strips - first, kStrips));
    copy_lines(to.u + strip * kBlocks * kWarp, strips, part.next_u);
    copy_lines(d.u + strip * kBlocks * kWarp, strips, part.next_d_u);
    copy_lines(to.states + strip * kKeyTiles * kWarp, strips, part.next_state);
    copy_lines(d.states + strip * kKeyTiles * kWarp, strips, part.next_d_state);
    end_group_of_copies();
  }

  // Lays out the operands that were fetched: one warp per strip solves for z, and the other warps copy U and
  // the states.
  PRIMUS_DEVICE static void lay_part(const Common& m, Part& part) {
    if (warp() < kStrips) return solve(m, part, warp());
    constexpr int kOfU = kStrips * kBlocks, kOfState = kStrips * kKeyTiles;
    for (int n = warp() - kStrips; n < kOfU + 2 * kOfState; n += kWarps - kStrips) {
      if (n < kOfU) {
        lay(part.next_u[n * kWarp + lane()], &part.u[n / kBlocks * kStrip][n % kBlocks * kTile],
            kRows + kPad);
      } else {
        const int of_both = n - kOfU, tile = of_both % kOfState;
        const bool first = of_both < kOfState;
        T* const rows = first ? &part.state[0][0] : &part.d_state[0][0];
        lay((first ? part.next_state : part.next_d_state)[tile * kWarp + lane()],
            rows + tile / kKeyTiles * kStrip * (kKeys + kPad) + tile % kKeyTiles * kTile, kKeys + kPad);
      }
    }
  }

  // A warp's tile of the values of a part: 16 tokens and 16 columns.
  static constexpr int kValueWarps = kBlocks * kStrips;
  static_assert(kWarp != 32 || kValueWarps <= kWarps);
  PRIMUS_DEVICE static int value_token(int n) { return warp() % kBlocks * kTile + Operand<T>::left_row(n); }
  PRIMUS_DEVICE static int value_column(int n) { return warp() / kBlocks * kTile + Operand<T>::left_k(n); }
  // Returns the position in a row of the inputs, or -1 if there is no such element.
  PRIMUS_DEVICE std::int64_t value_at(const DeltaPlace& place, std::int64_t first, int n) const {
    const int i = value_token(n);
    const std::int64_t v = first * kStrip + value_column(n);
    if (warp() >= kValueWarps || i >= place.tokens || v >= in.value_dim) return -1;
    return (place.row + i) * in.width + in.v_column + place.head * in.value_dim + v;
  }
  using Pair = Pack<T, 2>;
  PRIMUS_DEVICE Operand<T> load_values(const DeltaPlace& place, std::int64_t first) const {
    Operand<T> values{};
    PRIMUS_UNROLL
    for (int n = 0; n < kPerLane; n += 2) {
      const std::int64_t at = value_at(place, first, n);
      if (at < 0) continue;
      const Pair pair = *reinterpret_cast<const Pair*>(in.qkv + at);
      values.at[n] = pair.at[0];
      values.at[n + 1] = pair.at[1];
    }
    return values;
  }
  // Stores the gradient of values. Adds this lane's part of z · values for its two tokens.
  PRIMUS_DEVICE void values_gradient(const Common& m, const Part& part, const DeltaPlace& place,
                                     std::int64_t first, const Operand<T>& values,
                                     float (&z_values)[Accumulator::kRows]) const {
    if (warp() >= kValueWarps) return;
    const auto z = load_left<true>(&part.z[warp() / kBlocks * kTile][warp() % kBlocks * kTile], kRows + kPad);
    PRIMUS_UNROLL
    for (int n = 0; n < kPerLane; n += 2) {
      const float beta = m.beta[value_token(n)], low = to_float(z.at[n]), high = to_float(z.at[n + 1]);
      float& sum = z_values[Accumulator::slot(n)];
      sum = multiply_add(low, to_float(values.at[n]), sum);
      sum = multiply_add(high, to_float(values.at[n + 1]), sum);
      if (const std::int64_t at = value_at(place, first, n); at >= 0)
        *reinterpret_cast<Pair*>(d.qkv + at) = {from_float<T>(beta * low), from_float<T>(beta * high)};
    }
  }

 private:
  // Solves for z in one strip.
  PRIMUS_DEVICE static void solve(const Common& m, Part& part, int strip) {
    Operand<T> z[kBlocks];
    PRIMUS_UNROLL
    for (int j = kBlocks - 1; j >= 0; --j) {
      Accumulator sum;
      sum.clear();
      const auto u = std::bit_cast<Operand<T>>(part.next_d_u[(strip * kBlocks + j) * kWarp + lane()]);
      multiply(sum, u, load_right<true>(&m.back[j * kTile][j * kTile], kRows + kPad));
      PRIMUS_UNROLL
      for (int i = kBlocks - 1; i > j; --i)
        multiply(sum, z[i], load_right<true>(&m.back[i * kTile][j * kTile], kRows + kPad));
      z[j] = to_left<T>(sum);
      lay(std::bit_cast<Bytes16>(z[j]), &part.z[strip * kStrip][j * kTile], kRows + kPad);
    }
  }
  // Copies the operands of some strips, with zeros after the last strip.
  template <int kLines>
  PRIMUS_DEVICE static void copy_lines(const Bytes16* from, int strips, Bytes16 (&to)[kLines]) {
    PRIMUS_UNROLL
    for (int n = thread(); n < kLines; n += kThreads) {
      const bool there = n < strips * (kLines / kStrips);
      copy_async(&to[n], there ? from + n : from, there);
    }
  }
  // Four threads process a row.
  PRIMUS_DEVICE void normalise(Common& m) const {
    if (!in.normalise) return;
    constexpr int kTogether = kThreads / (2 * kRows), kStep = kTogether * 8;
    const int i = thread() / kTogether % kRows;
    T* const row = thread() < kThreads / 2 ? m.k[i] : m.q[i];
    float square = 0;
    PRIMUS_UNROLL
    for (int c = thread() % kTogether * 8; c < kKeys; c += kStep) {
      float x[8];
      load<8>(row + c, x);
      PRIMUS_UNROLL
      for (int n = 0; n < 8; ++n) square = multiply_add(x[n], x[n], square);
    }
    PRIMUS_UNROLL
    for (int mask = 1; mask < kTogether; mask *= 2) square += from_lane_xor(square, mask);
    const float factor = unit_factor(square, in.epsilon);
    PRIMUS_UNROLL
    for (int c = thread() % kTogether * 8; c < kKeys; c += kStep) {
      float x[8];
      load<8>(row + c, x);
      PRIMUS_UNROLL
      for (int n = 0; n < 8; ++n) x[n] *= factor;
      store<8>(row + c, x);
    }
  }

  PRIMUS_DEVICE static void lay(const Bytes16& line, T* to, int step) {
    const auto tile = std::bit_cast<Operand<T>>(line);
    PRIMUS_UNROLL
    for (int n = 0; n < kPerLane; n += 2)
      *reinterpret_cast<Pair*>(to + Operand<T>::left_row(n) * step + Operand<T>::left_k(n)) = {
          tile.at[n], tile.at[n + 1]};
  }
};

}  // namespace primus::turbo::PRIMUS_GPU
