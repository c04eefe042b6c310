// Products of a few tokens with the matrices of the experts that each token chose, and the operations around
// these products (ChosenExperts), as in decoding. Reading the weights takes nearly all the time of a product.
#pragma once

#include "turbo/gpu/few_dots.h"
#include "turbo/grouped_linear/grouped_linear.h"
#include "turbo/swiglu/formula.h"

namespace primus::turbo::PRIMUS_GPU {

// Rounds to bf16. The separate operators, which store each result in bf16, give the same bits.
PRIMUS_DEVICE float rounded(float x) { return to_float(from_float<BFloat16>(x)); }

// The gated activations. The third argument of `forward` is the weight of the slot.
struct PlainGate {
  PRIMUS_DEVICE float forward(float g, float u, float) const { return SiluGlu{}.forward(g, u); }
};
template <bool kWeighInput>
struct WeightedGate {
  PRIMUS_DEVICE float forward(float g, float u, float weight) const {
    return WeightedSiluGlu<kWeighInput>{weight}.forward(g, u);
  }
};
struct ClampedGate {
  ClampedSiluGlu of;
  PRIMUS_DEVICE float forward(float g, float u, float) const { return of.forward(g, u); }
};

// A warp computes kPairs columns of one slot: for each column, a row of gates and a row of values. Concurrent
// blocks compute the same columns of all slots: slots with the same expert read its matrix from the cache.
template <class Gating, int kPairs>
struct GatedSlots {
  static constexpr int kThreads = 128, kOfBlock = kThreads / kWarp * kPairs, kRows = 2 * kPairs;
  using StartsEarly = void;
  const BFloat16 *x, *w, *bias;  // bias may be null
  const std::int32_t* experts;
  const float* weights;  // may be null
  BFloat16* out;
  Gating gating;
  std::int64_t ffn, in;
  std::uint32_t slots, top_k;

  PRIMUS_DEVICE void operator()() const {
    const auto item = static_cast<std::uint32_t>(block());
    const std::uint32_t slot = item % slots, token = slot / top_k;
    const std::int64_t first = static_cast<std::int64_t>(item / slots) * kOfBlock + warp() * kPairs;
    let_next_begin();
    wait_for_previous();
    if (first >= ffn) return;
    const std::int64_t expert = experts[slot];
    const float weight = weights ? weights[slot] : 1.0F;
    const BFloat16* rows[kRows];
    PRIMUS_UNROLL
    for (int j = 0; j < kPairs; ++j) {
      rows[2 * j] = w + (expert * 2 * ffn + smaller(first + j, ffn - 1)) * in;
      rows[2 * j + 1] = rows[2 * j] + ffn * in;
    }
    float sums[kRows] = {};
    add_dots<8 / kRows>(x + token * in, rows, in, sums);
    PRIMUS_UNROLL
    for (int j = 0; j < kPairs; ++j) {
      const std::int64_t column = first + j;
      float gate = rounded(warp_reduce(sums[2 * j])), up = rounded(warp_reduce(sums[2 * j + 1]));
      if (lane() != 0 || column >= ffn) continue;
      if (bias) {
        gate = rounded(gate + to_float(bias[expert * 2 * ffn + column]));
        up = rounded(up + to_float(bias[expert * 2 * ffn + ffn + column]));
      }
      out[slot * ffn + column] = from_float<BFloat16>(gating.forward(gate, up, weight));
    }
  }
};

// A block computes kColumns columns of one token's result, which is the sum over the token's slots. A warp
// processes one slot at a time, and reads rows of one expert that are adjacent in memory. kSteps steps of
// kColumns rows are read concurrently.
template <int kWarps, int kSteps>
struct SummedSlots {
  static constexpr int kThreads = kWarps * kWarp, kColumns = 4, kMaxSlots = 64;
  using StartsEarly = void;
  const BFloat16 *x, *w, *bias, *previous;  // bias and previous may be null
  const std::int32_t* experts;
  const float* weights;  // may be null
  BFloat16* out;
  std::int64_t cols, in;
  std::uint32_t tokens;
  int top_k;

  struct Memory {
    float of_slot[kMaxSlots][kColumns];
  };

  PRIMUS_DEVICE void operator()() const {
    Memory& m = shared<Memory>();
    const auto item = static_cast<std::uint32_t>(block());
    const std::uint32_t token = item % tokens;
    const std::int64_t first = static_cast<std::int64_t>(item / tokens) * kColumns;
    let_next_begin();
    wait_for_previous();
    for (int k = warp(); k < top_k; k += kWarps) {
      const std::int64_t slot = static_cast<std::int64_t>(token) * top_k + k, expert = experts[slot];
      const BFloat16* rows[kColumns];
      PRIMUS_UNROLL
      for (int j = 0; j < kColumns; ++j) rows[j] = w + (expert * cols + smaller(first + j, cols - 1)) * in;
      float sums[kColumns] = {};
      add_dots<kSteps>(x + slot * in, rows, in, sums);
      PRIMUS_UNROLL
      for (int j = 0; j < kColumns; ++j) {
        const float sum = rounded(warp_reduce(sums[j]));
        if (lane() == 0) {
          const float addend = bias ? to_float(bias[expert * cols + smaller(first + j, cols - 1)]) : 0.0F;
          m.of_slot[k][j] = bias ? rounded(sum + addend) : sum;
        }
      }
    }
    barrier();
    const std::int64_t column = first + thread();
    if (thread() >= kColumns || column >= cols) return;
    float total = previous ? to_float(previous[token * cols + column]) : 0.0F;
    for (int k = 0; k < top_k; ++k) {
      const float weight = weights ? weights[static_cast<std::int64_t>(token) * top_k + k] : 1.0F;
      total = multiply_add(weight, m.of_slot[k][thread()], total);
    }
    out[token * cols + column] = from_float<BFloat16>(total);
  }
};

inline bool takes_chosen(const GroupedGemm& g) {
  constexpr std::int64_t kMaxSlots = SummedSlots<1, 1>::kMaxSlots;
  const auto aligned = [](const Tensor& t) { return reinterpret_cast<std::uintptr_t>(t.data) % 16 == 0; };
  return g.chosen.experts.elements() <= kMaxSlots && g.chosen.experts.elements() > 0 &&
         g.a.dtype == DType::kBF16 && g.b.dtype == DType::kBF16 && g.b.shape[2] % kVector<BFloat16> == 0 &&
         g.b.shape[2] > 0 && aligned(g.a) && aligned(g.b);
}

template <int kPairs, class Gating>
void gate_slots(Context& context, const GroupedGemm& g, const Gating& gating) {
  using Kernel = GatedSlots<Gating, kPairs>;
  const ChosenExperts& p = g.chosen;
  const std::int64_t slots = p.experts.elements(), ffn = g.c.cols();
  launch(context, slots * blocks_for(ffn, Kernel::kOfBlock),
         Kernel{context.data<BFloat16>(g.a), context.data<BFloat16>(g.b), optional<BFloat16>(context, p.bias),
                context.data<std::int32_t>(p.experts), optional<float>(context, p.weights),
                context.data<BFloat16>(g.c), gating, ffn, g.b.shape[2], static_cast<std::uint32_t>(slots),
                static_cast<std::uint32_t>(p.experts.shape[1])});
}

template <int kWarps, int kSteps>
void sum_slots_by(Context& context, const GroupedGemm& g) {
  using Kernel = SummedSlots<kWarps, kSteps>;
  const ChosenExperts& p = g.chosen;
  const std::int64_t tokens = g.c.rows(), cols = g.c.cols();
  launch(context, tokens * blocks_for(cols, Kernel::kColumns),
         Kernel{context.data<BFloat16>(g.a), context.data<BFloat16>(g.b), optional<BFloat16>(context, p.bias),
                optional<BFloat16>(context, p.previous), context.data<std::int32_t>(p.experts),
                optional<float>(context, p.weights), context.data<BFloat16>(g.c), cols, g.b.shape[2],
                static_cast<std::uint32_t>(tokens), static_cast<int>(p.experts.shape[1])});
}

// Chooses the number of warps of a block by the number of slots of a token.
inline void sum_slots(Context& context, const GroupedGemm& g) {
  constexpr std::int64_t kShortRow = 1024;
  const std::int64_t top_k = g.chosen.experts.shape[1];
  const auto with_warps = [&](auto steps) {
    if (top_k >= 8) return sum_slots_by<8, steps>(context, g);
    if (top_k >= 6) return sum_slots_by<6, steps>(context, g);
    if (top_k >= 4) return sum_slots_by<4, steps>(context, g);
    return sum_slots_by<2, steps>(context, g);
  };
  if (g.b.shape[2] <= kShortRow) {
    with_warps(std::integral_constant<int, 2>{});
  } else {
    with_warps(std::integral_constant<int, 4>{});
  }
}

inline void multiply_chosen(Context& context, const GroupedGemm& g) {
  if (!takes_chosen(g)) throw std::logic_error("gpu: a grouped product that is_taken() says no to");
  const ChosenExperts& p = g.chosen;
  if (p.end == ChosenExperts::End::kSummed) return sum_slots(context, g);
  const auto gate = [&](const auto& gating) {
    // If rows are short, a warp reads more rows at a time, so that enough loads run concurrently.
    constexpr std::int64_t kShortRow = 1024;
    if (g.b.shape[2] <= kShortRow) {
      gate_slots<2>(context, g, gating);
    } else {
      gate_slots<1>(context, g, gating);
    }
  };
  if (!p.weights.absent()) {
    with_flag(p.weigh_input, [&](auto weigh_input) { gate(WeightedGate<weigh_input>{}); });
  } else if (p.limit > 0) {
    gate(ClampedGate{{p.limit, p.alpha, p.shift}});
  } else {
    gate(PlainGate{});
  }
}

}  // namespace primus::turbo::PRIMUS_GPU
