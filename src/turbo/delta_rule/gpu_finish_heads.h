// Gradients of one chunk of the delta rule with one gate per head (gpu_finish.h).
#pragma once

#include "turbo/delta_rule/gpu_finish.h"

namespace primus::turbo::PRIMUS_GPU {

template <class T, int kKeys>
struct DeltaFinishHeads : DeltaFinish<T, kKeys, false> {
  using Base = DeltaFinish<T, kKeys, false>;
  using Base::in, Base::d;
  using Base::kThreads, Base::kKeyTiles;
  using Sums = typename Base::Sums;

  struct Memory {
    typename Base::Common common;
    union {
      typename Base::Part part;
      typename Base::Pairs pairs;
    };
    double sums[kRows];
    float since[kRows], until[kRows];
    float of_gates[Base::kWarps][kRows];  // partial sums over each warp's channels
  };

  PRIMUS_DEVICE void operator()() const {
    Memory& m = *reinterpret_cast<Memory*>(dynamic_shared());
    const std::int64_t item = block();
    const int last = in.tokens(item) - 1;
    Base::begin(m.common, item, [&] { Base::sum_gates_of_head(in, item, last + 1, m.sums); });
    if (const int i = thread(); i < kRows) {
      const float since = ::expf(static_cast<float>(m.sums[i]));
      const float until = ::expf(static_cast<float>(m.sums[last] - m.sums[i]));
      m.since[i] = i <= last && m.common.document[i] < 0 ? since : 0.0F;
      m.until[i] = i <= last && m.common.document[last] <= i ? until : 0.0F;
    }
    Sums sums;
    Base::multiply_values(m.common, m.part, item, sums);
    Base::store_pairs(m.common, m.pairs, sums, [&](int row, int other) {
      return ::expf(static_cast<float>(m.sums[row] - m.sums[other]));
    });
    float of_last = m.since[last] * (sums.of_states[0] + sums.of_states[1]);
    if (Base::has_channels()) of_last += decay_states(m, sums);
    barrier();
    if (Base::has_channels()) {
      multiply_pairs(m, sums);
      store_keys(m, item, sums);
    }
    of_last = block_reduce<kThreads>(of_last);
    Base::store_beta(m.common, item);
    if (warp() == 0) store_gates(m, item, of_last);
  }

 private:
  // Applies the decays to products with states. Returns the keys' contribution to the gradient of the sum of
  // all gates.
  PRIMUS_DEVICE float decay_states(const Memory& m, Sums& sums) const {
    float of_last = 0;
    PRIMUS_UNROLL
    for (int b = 0; b < kBlocks; ++b) {
      PRIMUS_UNROLL
      for (int n = 0; n < kPerLane; ++n) {
        const int row = b * kTile + Accumulator::row(n), c = Base::channel() + Accumulator::col(n);
        sums.q[b].at[n] *= in.scale * m.since[row];
        sums.looking[b].at[n] *= -m.since[row];
        sums.seen[b].at[n] *= m.until[row];
        of_last = multiply_add(sums.seen[b].at[n], to_float(m.common.k[row][c]), of_last);
      }
    }
    return of_last;
  }
  PRIMUS_DEVICE static void multiply_pairs(const Memory& m, Sums& sums) {
    const auto left = [](const T* tile) { return load_left<false>(tile, kRows + kPad); };
    const auto transposed = [](const T* tile) { return load_left<true>(tile, kRows + kPad); };
    PRIMUS_UNROLL
    for (int j = 0; j < kBlocks; ++j) {
      const auto keys = load_right<true>(&m.common.k[j * kTile][Base::channel()], kKeys + kPad);
      const auto queries = load_right<true>(&m.common.q[j * kTile][Base::channel()], kKeys + kPad);
      PRIMUS_UNROLL
      for (int b = 0; b < kBlocks; ++b) {
        if (b >= j) {
          multiply(sums.q[b], left(&m.pairs.read[b * kTile][j * kTile]), keys);
          multiply(sums.looking[b], left(&m.pairs.write[b * kTile][j * kTile]), keys);
        }
        if (b <= j) {
          multiply(sums.seen[b], transposed(&m.pairs.read[j * kTile][b * kTile]), queries);
          multiply(sums.seen[b], transposed(&m.pairs.by_beta[j * kTile][b * kTile]), keys);
        }
      }
    }
  }
  PRIMUS_DEVICE void store_keys(Memory& m, std::int64_t item, const Sums& sums) const {
    float gates[kBlocks][Accumulator::kRows] = {};
    Base::store_keys(m.common, item, sums,
                     [&](int b, int n, float of_gate) { gates[b][Accumulator::slot(n)] += of_gate; });
    PRIMUS_UNROLL
    for (int b = 0; b < kBlocks; ++b) {
      PRIMUS_UNROLL
      for (int slot = 0; slot < Accumulator::kRows; ++slot) {
        const float gate = reduce_row(gates[b][slot], Plus{});
        m.of_gates[warp()][b * kTile + Accumulator::row_of_slot(slot)] = gate;
      }
    }
  }
  // Stores the gradients of gates. The gradient of a gate is a sum over the gate's token and all later
  // tokens. A lane processes two tokens.
  PRIMUS_DEVICE void store_gates(const Memory& m, std::int64_t item, float of_last) const {
    const int tokens = in.tokens(item);
    const auto of_token = [&](int i) {
      double sum = 0;
      if (i >= tokens) return sum;
      PRIMUS_UNROLL
      for (int w = 0; w < kKeyTiles; ++w) sum += static_cast<double>(m.of_gates[w][i]);
      return i == tokens - 1 ? sum + static_cast<double>(of_last) : sum;
    };
    const int i = kRows - 1 - 2 * lane();
    const double first = of_token(i), second = of_token(i - 1);
    double sum = first + second;
    PRIMUS_UNROLL
    for (int distance = 1; distance < kWarp; distance *= 2) {
      const double before = from_lane_before(sum, distance);
      if (lane() >= distance) sum += before;
    }
    const double before = from_lane_before(sum, 1), start = lane() > 0 ? before : 0.0;
    const auto keep = [&](int token, double value) {
      if (token >= tokens) return;
      d.g[(in.row(item) + token) * in.all_heads + in.head(item)] =
          m.common.document[token] == token ? 0.0F : static_cast<float>(value);
    };
    keep(i, start + first);
    keep(i - 1, start + first + second);
  }
};

}  // namespace primus::turbo::PRIMUS_GPU
