// Gradients of one chunk of the delta rule with a gate per key channel (gpu_finish.h).
#pragma once

#include "turbo/delta_rule/gpu_finish_pairs.h"

namespace primus::turbo::PRIMUS_GPU {

template <class T, int kKeys>
struct DeltaFinishChannels : DeltaFinishPairs<T, kKeys> {
  using Base = DeltaFinishPairs<T, kKeys>;
  using Base::in, Base::to, Base::d;
  using Base::kThreads;
  using Memory = typename Base::Memory;
  using Sums = typename Base::Sums;

  PRIMUS_DEVICE void operator()() const {
    Memory& m = *reinterpret_cast<Memory*>(dynamic_shared());
    const DeltaPlace place = in.place(block());
    Base::begin(m.common, m.part, place, [&] { sum_gates_of_channels<kThreads>(in, place, m.gates); });
    Sums sums;
    Base::multiply_values(m.common, m.part, place, sums);
    Base::store_pairs(m.common, m.rest, sums, [](int, int) { return 1.0F; });
    if (Base::has_channels()) decay_states(m, place, sums);
    barrier();
    if (Base::has_channels()) {
      if (Base::of_rows()) {
        Base::multiply_rows(m, sums);
        Base::add_blocks(
            sums, [&](int b, Accumulator& query, Accumulator& key) { Base::add_rows(m, b, query, key); });
      } else {
        Base::multiply_columns(m, sums);
        Base::add_blocks(sums,
                         [&](int b, Accumulator& seen, Accumulator&) { Base::add_columns(m, b, seen); });
      }
    }
    barrier();
    Base::store_keys(m.common, m.rest, place, sums, [&](int b, int n, float low, float high) {
      float* const to_gate = &m.gates[b * kTile + Accumulator::row(n)][Base::channel() + Accumulator::col(n)];
      float before[2] = {};
      if (!Base::of_rows()) load<2>(to_gate, before);
      store<2>(to_gate, {before[0] + low, before[1] + high});
    });
    barrier();
    Base::store_beta(m.rest, place);
    store_gates(m, place);
  }

 private:
  // Applies decays to products with states. Products of queries and the rows' part of keys are multiplied by
  // the decay up to their block; the columns' part of keys, by the complete decay.
  PRIMUS_DEVICE void decay_states(Memory& m, const DeltaPlace& place, Sums& sums) const {
    const int last = place.tokens - 1;
    const int* const document = m.common.document;
    float of_last[kPerLane] = {};
    PRIMUS_UNROLL
    for (int b = 0; b < kBlocks; ++b) {
      PRIMUS_UNROLL
      for (int n = 0; n < kPerLane; ++n) {
        const int row = b * kTile + Accumulator::row(n), c = Base::channel() + Accumulator::col(n);
        if (Base::of_rows()) {
          const bool sees = row <= last && document[row] < 0;
          const float since = sees ? power_of_two(Base::before(m, b * kTile, c)) : 0.0F;
          sums.first[b].at[n] *= in.scale * since;
          sums.second[b].at[n] *= -since;
        } else {
          const bool seen = row <= last && document[last] <= row;
          float& sum = sums.first[b].at[n];
          sum *= seen ? power_of_two(m.gates[last][c] - m.gates[row][c]) : 0.0F;
          float& of_col = of_last[Accumulator::same_col(n)];
          of_col = multiply_add(sum, to_float(m.common.k[row][c]), of_col);
        }
      }
    }
    if (Base::of_rows()) return;
    const float* const through = to.write + place.item * kKeys + Base::channel();
    PRIMUS_UNROLL
    for (int half = 0; half < 2; ++half) {
      const float of_states = reduce_row(sums.of_states[half], Plus{});
      const int c = Operand<T>::right_row(half * kPerLane / 2);
      m.of_last[Base::channel() + c] = through[c] * of_states;
    }
    warp_barrier();
    PRIMUS_UNROLL
    for (int n = 0; n < kPerLane; ++n) {
      if (Accumulator::same_col(n) != n) continue;
      const float sum = reduce_col(of_last[n], Plus{});
      if (Accumulator::row(n) == 0) m.of_last[Base::channel() + Accumulator::col(n)] += sum;
    }
  }

  // Stores the gradients of gates. The gradient of a gate is a sum over the gate's token and all later
  // tokens. A thread processes one channel of some tokens.
  PRIMUS_DEVICE void store_gates(Memory& m, const DeltaPlace& place) const {
    constexpr int kParts = kThreads / kKeys, kTokens = kRows / kParts;
    const int c = thread() % kKeys, own = thread() / kKeys, first = own * kTokens;
    float gradients[kTokens], sum = 0;
    PRIMUS_UNROLL
    for (int i = kTokens - 1; i >= 0; --i) {
      if (first + i < place.tokens) sum += m.gates[first + i][c];
      gradients[i] = sum;
    }
    m.of_part[own][c] = sum;
    barrier();
    if (c >= in.key_dim) return;
    float after = m.of_last[c];
    for (int part = own + 1; part < kParts; ++part) after += m.of_part[part][c];
    const std::int64_t stride = in.all_heads * in.key_dim;
    float* g = d.g + (place.row * in.all_heads + place.head) * in.key_dim + c + first * stride;
    PRIMUS_UNROLL
    for (int i = 0; i < kTokens; ++i, g += stride) {
      const int token = first + i;
      if (token < place.tokens) *g = m.common.document[token] == token ? 0.0F : after + gradients[i];
    }
  }
};

}  // namespace primus::turbo::PRIMUS_GPU
