// Launches the products of a few tokens with the matrices of the experts that each token chose
// (gpu_chosen_kernels.h).
#pragma once

#include "turbo/grouped_linear/gpu_chosen_kernels.h"

namespace primus::turbo::PRIMUS_GPU {

inline bool takes_chosen(const GroupedGemm& g) {
  constexpr std::int64_t kMaxSlots = SummedSlots<1, 1, false>::kMaxSlots;
  const auto aligned = [](const Tensor& t) { return reinterpret_cast<std::uintptr_t>(t.data) % 16 == 0; };
  if (const ChosenExperts::Shared& s = g.chosen.shared; !s.absent()) {
    // With more tokens, separate products are faster: they read the shared expert once for all tokens.
    constexpr std::int64_t kMaxTokens = 2;
    const std::int64_t ffn = s.rows.cols();
    if (g.chosen.experts.shape[0] > kMaxTokens) return false;
    if (ffn % kVector<BFloat16> != 0 || !aligned(s.weights) || !aligned(s.rows) || !aligned(s.gate))
      return false;
    if (g.chosen.end == ChosenExperts::End::kSummed &&
        (ffn == 0 || blocks_for(ffn, g.b.shape[2]) > SharedSummed::kMaxParts))
      return false;
  }
  return g.chosen.experts.elements() <= kMaxSlots && g.chosen.experts.elements() > 0 &&
         g.a.dtype == DType::kBF16 && g.b.dtype == DType::kBF16 && g.b.shape[2] % kVector<BFloat16> == 0 &&
         g.b.shape[2] > 0 && aligned(g.a) && aligned(g.b);
}

template <int kPairs, bool kWithShared, class Gating>
void gate_slots(Context& context, const GroupedGemm& g, const Gating& gating) {
  using Kernel = GatedSlots<Gating, kPairs, kWithShared>;
  const ChosenExperts& p = g.chosen;
  const std::int64_t slots = p.experts.elements(), ffn = g.c.cols(), tokens = p.experts.shape[0];
  const std::int64_t of_shared =
      p.shared.absent() ? 0 : tokens * blocks_for(p.shared.rows.cols(), Kernel::kOfBlock);
  const SharedGated shared{
      optional<BFloat16>(context, p.shared.weights), optional<float>(context, p.shared.gate),
      optional<BFloat16>(context, p.shared.rows),    optional<float>(context, p.shared.gates),
      p.shared.absent() ? 0 : p.shared.rows.cols(),  static_cast<std::uint32_t>(of_shared)};
  launch(context, of_shared + (shared.gate ? tokens : 0) + slots * blocks_for(ffn, Kernel::kOfBlock),
         Kernel{context.data<BFloat16>(g.a), context.data<BFloat16>(g.b), optional<BFloat16>(context, p.bias),
                context.data<std::int32_t>(p.experts), optional<float>(context, p.weights),
                context.data<BFloat16>(g.c), gating, shared, ffn, g.b.shape[2],
                static_cast<std::uint32_t>(slots), static_cast<std::uint32_t>(p.experts.shape[1])});
}

template <int kWarps, int kSteps, bool kWithShared>
void sum_slots_by(Context& context, const GroupedGemm& g) {
  using Kernel = SummedSlots<kWarps, kSteps, kWithShared>;
  const ChosenExperts& p = g.chosen;
  const std::int64_t tokens = g.c.rows(), cols = g.c.cols();
  SharedSummed shared{};
  if (!p.shared.absent()) {
    const std::int64_t width = p.shared.rows.cols();
    shared = {context.data<BFloat16>(p.shared.rows), context.data<BFloat16>(p.shared.weights),
              optional<float>(context, p.shared.gates), width,
              static_cast<int>(blocks_for(width, g.b.shape[2]))};
  }
  launch(context, tokens * blocks_for(cols, Kernel::kColumns),
         Kernel{context.data<BFloat16>(g.a), context.data<BFloat16>(g.b), optional<BFloat16>(context, p.bias),
                optional<BFloat16>(context, p.previous), context.data<std::int32_t>(p.experts),
                optional<float>(context, p.weights), context.data<BFloat16>(g.c), shared, cols, g.b.shape[2],
                static_cast<std::uint32_t>(tokens), static_cast<int>(p.experts.shape[1]),
                static_cast<int>(g.b.shape[0])});
}

// Chooses the number of warps of a block by the number of slots of a token, including slots of the shared
// expert. Two steps at once are faster than four, except for long rows beside a shared expert
// (docs/performance-log.md).
inline void sum_slots(Context& context, const GroupedGemm& g) {
  constexpr std::int64_t kShortRow = 1024;
  const std::int64_t parts =
      g.chosen.shared.absent() ? 0 : blocks_for(g.chosen.shared.rows.cols(), g.b.shape[2]);
  const std::int64_t of_token = g.chosen.experts.shape[1] + parts;
  const auto by = [&]<int kSteps, bool kWithShared>() {
    if constexpr (kWithShared) {
      if (of_token == 9) return sum_slots_by<9, kSteps, true>(context, g);
    }
    if (of_token >= 8) return sum_slots_by<8, kSteps, kWithShared>(context, g);
    if (of_token >= 6) return sum_slots_by<6, kSteps, kWithShared>(context, g);
    if (of_token >= 4) return sum_slots_by<4, kSteps, kWithShared>(context, g);
    sum_slots_by<2, kSteps, kWithShared>(context, g);
  };
  if (g.chosen.shared.absent()) return by.template operator()<2, false>();
  if (g.b.shape[2] <= kShortRow) return by.template operator()<2, true>();
  by.template operator()<4, true>();
}

// Calls body(gating) with the activation of a call.
template <class Body>
void with_gating(const ChosenExperts& p, Body&& body) {
  if (!p.weights.absent()) {
    with_flag(p.weigh_input, [&](auto weigh_input) { body(WeightedGate<weigh_input>{}); });
  } else if (p.limit > 0) {
    body(ClampedGate{{p.limit, p.alpha, p.shift}});
  } else {
    body(PlainGate{});
  }
}

inline void multiply_chosen(Context& context, const GroupedGemm& g) {
  if (!takes_chosen(g)) throw std::logic_error("gpu: a grouped product that is_taken() says no to");
  const ChosenExperts& p = g.chosen;
  if (p.end == ChosenExperts::End::kSummed) return sum_slots(context, g);
  with_gating(p, [&](const auto& gating) {
    // If rows are short, a warp reads more rows at a time, so that enough loads run concurrently.
    constexpr std::int64_t kShortRow = 1024;
    with_flag(!p.shared.absent(), [&](auto with_shared) {
      if (g.b.shape[2] <= kShortRow) return gate_slots<2, with_shared>(context, g, gating);
      gate_slots<1, with_shared>(context, g, gating);
    });
  });
}

}  // namespace primus::turbo::PRIMUS_GPU
