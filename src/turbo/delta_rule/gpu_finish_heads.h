// Gradients of one chunk of the delta rule with one gate per head (gpu_finish.h).
#pragma once

#include "turbo/delta_rule/gpu_finish.h"

namespace primus::turbo::PRIMUS_GPU {

template <class T, int kKeys>
struct DeltaFinishHeads : DeltaFinish<T, kKeys, false> {
  using Base = DeltaFinish<T, kKeys, false>;
  using Base::in, Base::d;
  using Base::kThreads, Base::kKeyTiles, Base::kWarps, Base::kHalf;
  using Sums = typename Base::Sums;
  using Rest = typename Base::Rest;

  struct Memory {
    typename Base::Common common;
    union {
      typename Base::Part part;
      struct {
        Rest rest;
        float of_gates[kWarps][kRows];  // partial sums over each warp's channels
      };
    };
    double sums[kRows];
    float since[kRows], until[kRows];
  };

  PRIMUS_DEVICE void operator()() const {
    Memory& m = *reinterpret_cast<Memory*>(dynamic_shared());
    const DeltaPlace place = in.place(block());
    const int last = place.tokens - 1;
    Base::begin(m.common, m.part, place, [&] { Base::sum_gates_of_head(in, place, m.sums); });
    if (const int i = thread(); i < kRows) {
      const float since = ::expf(static_cast<float>(m.sums[i]));
      const float until = ::expf(static_cast<float>(m.sums[last] - m.sums[i]));
      m.since[i] = i <= last && m.common.document[i] < 0 ? since : 0.0F;
      m.until[i] = i <= last && m.common.document[last] <= i ? until : 0.0F;
    }
    Sums sums;
    Base::multiply_values(m.common, m.part, place, sums);
    Base::store_pairs(m.common, m.rest, sums, [&](int row, int other) {
      constexpr float kLog2E = 1.44269504088896341F;
      return power_of_two(static_cast<float>(m.sums[row] - m.sums[other]) * kLog2E);
    });
    float of_last = 0;
    if (Base::has_channels()) of_last = decay_states(m, last, sums);
    barrier();
    if (Base::has_channels()) {
      if (Base::of_rows()) {
        multiply_rows(m, sums);
      } else {
        multiply_columns(m, sums);
      }
    }
    store_keys(m, place, sums);
    of_last = block_reduce<kThreads>(of_last);
    Base::store_beta(m.rest, place);
    if (warp() == 0) store_gates(m, place, of_last);
  }

 private:
  // Applies the decays to products with states. Returns the contribution of keys and states to the gradient
  // of the sum of all gates.
  PRIMUS_DEVICE float decay_states(const Memory& m, int last, Sums& sums) const {
    float of_last = m.since[last] * (sums.of_states[0] + sums.of_states[1]);
    PRIMUS_UNROLL
    for (int b = 0; b < kBlocks; ++b) {
      PRIMUS_UNROLL
      for (int n = 0; n < kPerLane; n += 2) {
        const int row = b * kTile + Accumulator::row(n), c = Base::channel() + Accumulator::col(n);
        if (Base::of_rows()) {
          PRIMUS_UNROLL
          for (int next = n; next < n + 2; ++next) {
            sums.first[b].at[next] *= in.scale * m.since[row];
            sums.second[b].at[next] *= -m.since[row];
          }
        } else {
          float key[2];
          load<2>(&m.common.k[row][c], key);
          PRIMUS_UNROLL
          for (int next = 0; next < 2; ++next) {
            float& seen = sums.first[b].at[n + next];
            seen *= m.until[row];
            of_last = multiply_add(seen, key[next], of_last);
          }
        }
      }
    }
    return of_last;
  }
  PRIMUS_DEVICE static void multiply_rows(const Memory& m, Sums& sums) {
    const auto left = [](const T* tile) { return load_left<false>(tile, kRows + kPad); };
    const auto& pairs = m.rest.pairs;
    PRIMUS_UNROLL
    for (int j = 0; j < kBlocks; ++j) {
      const auto keys = load_right<true>(&m.common.k[j * kTile][Base::channel()], kKeys + kPad);
      PRIMUS_UNROLL
      for (int b = j; b < kBlocks; ++b) {
        multiply(sums.first[b], left(&pairs.read[b * kTile][j * kTile]), keys);
        multiply(sums.second[b], left(&pairs.write[b * kTile][j * kTile]), keys);
      }
    }
  }
  PRIMUS_DEVICE static void multiply_columns(const Memory& m, Sums& sums) {
    const auto left = [](const T* tile) { return load_left<true>(tile, kRows + kPad); };
    const auto& pairs = m.rest.pairs;
    PRIMUS_UNROLL
    for (int j = 0; j < kBlocks; ++j) {
      const auto keys = load_right<true>(&m.common.k[j * kTile][Base::channel()], kKeys + kPad);
      const auto queries = load_right<true>(&m.common.q[j * kTile][Base::channel()], kKeys + kPad);
      PRIMUS_UNROLL
      for (int b = 0; b <= j; ++b) {
        multiply(sums.first[b], left(&pairs.read[j * kTile][b * kTile]), queries);
        multiply(sums.first[b], left(&pairs.by_beta[j * kTile][b * kTile]), keys);
      }
    }
  }
  PRIMUS_DEVICE void store_keys(Memory& m, const DeltaPlace& place, const Sums& sums) const {
    float gates[kBlocks][Accumulator::kRows] = {};
    Base::store_keys(m.common, m.rest, place, sums, [&](int b, int n, float low, float high) {
      gates[b][Accumulator::slot(n)] += low + high;
    });
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
  PRIMUS_DEVICE void store_gates(const Memory& m, const DeltaPlace& place, float of_last) const {
    const int tokens = place.tokens;
    const auto of_token = [&](int i) {
      double sum = 0;
      if (i >= tokens) return sum;
      PRIMUS_UNROLL
      for (int w = 0; w < kKeyTiles; ++w)
        sum += static_cast<double>(m.of_gates[w][i] + m.of_gates[kHalf + w][i]);
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
      d.g[(place.row + token) * in.all_heads + place.head] =
          m.common.document[token] == token ? 0.0F : static_cast<float>(value);
    };
    keep(i, start + first);
    keep(i - 1, start + first + second);
  }
};

}  // namespace primus::turbo::PRIMUS_GPU
