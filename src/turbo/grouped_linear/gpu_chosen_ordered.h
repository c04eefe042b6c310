// The products of a few tokens with the matrices of the experts that each token chose (ChosenExperts), on
// batch-invariant devices: each sum is the chain of additions of the tiles of many rows
// (turbo/gpu/chain_dots.h), so a token has the bits of the separate operators.
#pragma once

#include <algorithm>

#include "turbo/gpu/chain_dots.h"
#include "turbo/gpu/warpgroup.h"
#include "turbo/grouped_linear/gpu_chosen.h"

namespace primus::turbo::PRIMUS_GPU {

using ChosenWeights = ChainWeights<8>;

// Copies elements to shared memory. All threads of the block call this function, which ends with a barrier.
// The number of elements is a multiple of 8.
template <int kThreads>
PRIMUS_DEVICE const BFloat16* stage(const BFloat16* from, int count) {
  constexpr int kLine = kVector<BFloat16>;
  auto* const to = reinterpret_cast<BFloat16*>(dynamic_shared());
  PRIMUS_UNROLL_BY(4)
  for (int i = thread() * kLine; i < count; i += kThreads * kLine)
    *reinterpret_cast<Bytes16*>(to + i) = load_line(from + i);
  barrier();
  return to;
}

// A warp computes kPairs columns of one slot: for each column, a row of gates and a row of values. Concurrent
// blocks compute the same columns of all slots: slots with the same expert read its matrix from the cache.
template <class Gating>
struct OrderedGatedSlots {
  static constexpr int kThreads = 128, kPairs = ChosenWeights::kRows / 2,
                       kOfBlock = kThreads / kWarp * kPairs;
  using StartsEarly = void;
  const BFloat16 *x, *w, *bias;  // bias may be null
  const std::int32_t* experts;
  const float* weights;  // may be null
  BFloat16* out;
  Gating gating;
  std::int64_t ffn;
  int in;
  std::uint32_t slots, top_k;

  PRIMUS_DEVICE void operator()() const {
    const auto item = static_cast<std::uint32_t>(block());
    const std::uint32_t slot = item % slots;
    const std::int64_t first = static_cast<std::int64_t>(item / slots) * kOfBlock + warp() * kPairs;
    wait_for_previous();
    // The next kernel loads weights of the chosen experts early, so it begins once the experts are known.
    let_next_begin();
    const std::int64_t expert = experts[slot];
    const int row = ChosenWeights::row();
    const BFloat16* const from = w + ((expert * 2 + row % 2) * ffn + smaller(first + row / 2, ffn - 1)) * in;
    ChosenWeights lines;
    lines.fetch_all(from, in);
    const BFloat16* const staged = stage<kThreads>(x + static_cast<std::int64_t>(slot / top_k) * in, in);
    ChainSums sums;
    add_chain(sums, lines, from, {staged, in});
    const std::int64_t column = first + lane();
    if (lane() >= kPairs || column >= ffn) return;
    float gate = rounded(sums.first()), up = rounded(sums.second());
    if (bias) {
      gate = rounded(gate + to_float(bias[expert * 2 * ffn + column]));
      up = rounded(up + to_float(bias[(expert * 2 + 1) * ffn + column]));
    }
    out[slot * ffn + column] = from_float<BFloat16>(gating.forward(gate, up, weights ? weights[slot] : 1.0F));
  }
};

// A block computes kColumns columns of one token's result, which is the sum over the token's slots. A warp
// processes one slot at a time.
template <int kWarps>
struct OrderedSummedSlots {
  static constexpr int kThreads = kWarps * kWarp, kColumns = ChosenWeights::kRows;
  static constexpr int kMaxSlots = SummedSlots<1, 1, false>::kMaxSlots;
  using StartsEarly = void;
  const BFloat16 *x, *w, *bias, *previous;  // bias and previous may be null
  const std::int32_t* experts;
  const float* weights;  // may be null
  BFloat16* out;
  std::int64_t cols;
  std::uint32_t tokens;
  int in, top_k, count;  // count: number of experts

  struct Memory {
    float of_slot[kMaxSlots][kColumns];
  };

  PRIMUS_DEVICE void operator()() const {
    Memory& m = shared<Memory>();
    const auto item = static_cast<std::uint32_t>(block());
    const std::int64_t token = item % tokens, first = static_cast<std::int64_t>(item / tokens) * kColumns;
    const std::int32_t* const chosen = experts + token * top_k;
    const std::int64_t row = smaller(first + ChosenWeights::row(), cols - 1);
    const auto find = [&](std::int64_t expert) { return w + (expert * cols + row) * in; };
    let_next_begin();
    // Loads the first weights while the previous kernel still computes x. After OrderedGatedSlots, the
    // experts are already known. After another kernel, they may not be; weights of a wrong expert are not
    // used.
    ChosenWeights lines;
    std::int64_t guess = -1;
    if (warp() < top_k) {
      guess = static_cast<const volatile std::int32_t*>(chosen)[warp()];
      if (guess < 0 || guess >= count) guess = 0;
      lines.fetch_all(find(guess), in);
    }
    wait_for_previous();
    const BFloat16* const staged = stage<kThreads>(x + token * top_k * in, top_k * in);
    for (int k = warp(); k < top_k; k += kWarps) {
      const std::int64_t expert = chosen[k];
      const BFloat16* const from = find(expert);
      if (k != warp() || expert != guess) lines.fetch_all(from, in);
      ChainSums sums;
      add_chain(sums, lines, from, {staged + k * in, in});
      if (lane() >= kColumns / 2) continue;
      const float pair[2] = {sums.first(), sums.second()};
      PRIMUS_UNROLL
      for (int j = 0; j < 2; ++j) {
        const int column = 2 * lane() + j;
        float sum = rounded(pair[j]);
        if (bias) sum = rounded(sum + to_float(bias[expert * cols + smaller(first + column, cols - 1)]));
        m.of_slot[k][column] = sum;
      }
    }
    barrier();
    const std::int64_t column = first + thread();
    if (thread() >= kColumns || column >= cols) return;
    float total = previous ? to_float(previous[token * cols + column]) : 0.0F;
    for (int k = 0; k < top_k; ++k)
      total = multiply_add(weights ? weights[token * top_k + k] : 1.0F, m.of_slot[k][thread()], total);
    out[token * cols + column] = from_float<BFloat16>(total);
  }
};

// ---- Launches -----------------------------------------------------------------------------------

// Returns the bytes of rows in shared memory.
inline std::int64_t ordered_bytes(const GroupedGemm& g) {
  const bool summed = g.chosen.end == ChosenExperts::End::kSummed;
  return (summed ? g.chosen.experts.shape[1] : 1) * g.b.shape[2] * size_of(DType::kBF16);
}

// Returns whether the fused kernels compute this call. They refuse shared experts, whose sums they would
// divide, and matrices that the kernels of many rows refuse.
inline bool takes_chosen_in_order(const Context& context, const GroupedGemm& g) {
  constexpr std::int64_t kElse = 8 << 10, kAlways = 40 << 10;
  return kWarp == 32 && has_warpgroups(context) && takes_chosen(g) && g.chosen.shared.absent() &&
         g.b.shape[1] % kVector<BFloat16> == 0 &&
         ordered_bytes(g) <= std::max(max_shared(context) / 2 - kElse, kAlways);
}

template <int kWarps>
void sum_slots_in_order(Context& context, const GroupedGemm& g) {
  using Kernel = OrderedSummedSlots<kWarps>;
  const ChosenExperts& p = g.chosen;
  const std::int64_t tokens = g.c.rows(), cols = g.c.cols();
  launch(context, tokens * blocks_for(cols, Kernel::kColumns),
         Kernel{context.data<BFloat16>(g.a), context.data<BFloat16>(g.b), optional<BFloat16>(context, p.bias),
                optional<BFloat16>(context, p.previous), context.data<std::int32_t>(p.experts),
                optional<float>(context, p.weights), context.data<BFloat16>(g.c), cols,
                static_cast<std::uint32_t>(tokens), static_cast<int>(g.b.shape[2]),
                static_cast<int>(p.experts.shape[1]), static_cast<int>(g.b.shape[0])},
         static_cast<std::size_t>(ordered_bytes(g)));
}

inline void multiply_chosen_in_order(Context& context, const GroupedGemm& g) {
  if (!takes_chosen_in_order(context, g))
    throw std::logic_error("gpu: a grouped product that is_taken() says no to");
  const ChosenExperts& p = g.chosen;
  if (p.end == ChosenExperts::End::kSummed) {
    const std::int64_t of_token = p.experts.shape[1];
    if (of_token >= 8) return sum_slots_in_order<8>(context, g);
    if (of_token >= 6) return sum_slots_in_order<6>(context, g);
    if (of_token >= 4) return sum_slots_in_order<4>(context, g);
    return sum_slots_in_order<2>(context, g);
  }
  with_gating(p, [&](const auto& gating) {
    using Kernel = OrderedGatedSlots<std::decay_t<decltype(gating)>>;
    const std::int64_t slots = p.experts.elements(), ffn = g.c.cols();
    launch(
        context, slots * blocks_for(ffn, Kernel::kOfBlock),
        Kernel{context.data<BFloat16>(g.a), context.data<BFloat16>(g.b), optional<BFloat16>(context, p.bias),
               context.data<std::int32_t>(p.experts), optional<float>(context, p.weights),
               context.data<BFloat16>(g.c), gating, ffn, static_cast<int>(g.b.shape[2]),
               static_cast<std::uint32_t>(slots), static_cast<std::uint32_t>(p.experts.shape[1])},
        static_cast<std::size_t>(ordered_bytes(g)));
  });
}

}  // namespace primus::turbo::PRIMUS_GPU
