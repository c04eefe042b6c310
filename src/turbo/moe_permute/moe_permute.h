// Tokens to experts and back. Every token has top_k choices, which makes tokens * top_k *slots*; sorted by
// expert, slots are *rows*. Nothing here depends on how many rows each expert gets: tensors have a row for
// every slot, and rows that no slot needs (capacity) lie at the end.
#pragma once

#include "tensor/tensor.h"
#include "turbo/kernel_table.h"

namespace primus::turbo {

// Where slots went, in one int32 tensor.
struct RoutingPlan {
  Tensor offsets;  // [experts + 1]: expert e has rows [offsets[e], offsets[e+1])
  Tensor rows;     // [tokens, top_k]: the row of a slot, -1 when it was dropped
  Tensor slots;    // [tokens * top_k]: the slot of a row, for rows below offsets[experts]
  Tensor tokens;   // [tokens * top_k]: its token, likewise

  static Shape shape(std::int64_t experts, std::int64_t tokens, std::int64_t top_k) {
    return {experts + 1 + 3 * tokens * top_k};
  }
  RoutingPlan(const Tensor& plan, std::int64_t experts, std::int64_t token_count, std::int64_t top_k)
      : offsets(plan.slice(0, experts + 1)),
        rows(part(plan, experts, token_count * top_k, 0).reshaped({token_count, top_k})),
        slots(part(plan, experts, token_count * top_k, 1)),
        tokens(part(plan, experts, token_count * top_k, 2)) {}

 private:
  static Tensor part(const Tensor& plan, std::int64_t experts, std::int64_t count, std::int64_t index) {
    const std::int64_t begin = experts + 1 + index * count;
    return plan.slice(begin, begin + count);
  }
};

// Sorts slots by expert; slots of one expert keep their order. With a capacity, an expert takes that many
// slots at most: the first ones, or those of the largest weights (the first of equal ones). First is what
// comes first in its sequence, then what is in the first sequence, as in Megatron-LM.
struct PlanRouting {
  static constexpr KernelId kId = KernelId::kPlanRouting;
  Tensor experts;  // [tokens, top_k] int32, each in [0, expert_count)
  Tensor weights;  // [tokens, top_k] fp32; absent: the first slots are kept
  Tensor plan;     // RoutingPlan, out
  std::int64_t expert_count;
  std::int64_t capacity;       // 0: none is dropped
  std::int64_t sequences = 1;  // of equal length, one after the other: the tokens
  void check() const;
  double flops() const { return 0; }
};

// out[r, :] = w · x[token of r, :]; zero for rows without a slot.
struct GatherRows {
  static constexpr KernelId kId = KernelId::kGatherRows;
  Tensor x;                     // [tokens, hidden] fp32 or bf16
  Tensor offsets, rows, slots;  // of the plan
  Tensor weights;               // [tokens, top_k] fp32
  Tensor out;                   // [tokens * top_k, hidden], x's type
  void check() const;
  double flops() const { return 0; }
};

// out[t, :] = previous[t, :] + sum over k of w · x[rows[t, k], :], in order of k, without the dropped ones.
struct CombineRows {
  static constexpr KernelId kId = KernelId::kCombineRows;
  Tensor x;         // [tokens * top_k, hidden] fp32 or bf16
  Tensor rows;      // of the plan
  Tensor weights;   // [tokens, top_k] fp32, or absent: w = 1
  Tensor previous;  // [tokens, hidden], or absent: zero; may be out
  Tensor out;       // [tokens, hidden], x's type
  void check() const;
  double flops() const { return 0; }
};

// out[t, k] = previous[t, k] + the dot product of by_token[t, :] and by_row[rows[t, k], :]; dropped slots add
// nothing.
struct RowDots {
  static constexpr KernelId kId = KernelId::kRowDots;
  Tensor by_token;  // [tokens, hidden] fp32 or bf16
  Tensor by_row;    // [tokens * top_k, hidden], the same type
  Tensor rows;      // of the plan
  Tensor previous;  // [tokens, top_k] fp32, or absent: zero; may be out
  Tensor out;       // [tokens, top_k] fp32
  void check() const;
  double flops() const { return 0; }
};

}  // namespace primus::turbo
