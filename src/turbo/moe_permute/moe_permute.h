// Moves tokens to experts and back. Every token has top_k choices of experts. A choice is a *slot*, so there
// are tokens * top_k slots; the data of slots, sorted by expert, are *rows*. Shapes do not depend on the
// number of rows per expert: tensors have the maximum number of rows, with unused rows at the end.
#pragma once

#include <utility>

#include "tensor/tensor.h"
#include "turbo/kernel_table.h"

namespace primus::turbo {

// Maps slots to rows and rows to slots, in one int32 tensor.
struct RoutingPlan {
  Tensor offsets;  // [experts + 1]: expert e has rows [offsets[e], offsets[e+1])
  Tensor rows;     // [tokens, top_k]: the row of each slot, or -1 if the slot was dropped
  Tensor slots;    // [max_rows]: the slot of each row, for rows below offsets[experts]
  Tensor tokens;   // [max_rows]: the token of each row, for rows below offsets[experts]

  // Returns the shape of the tensor. `max_rows` is the max. number of rows of all experts together: tokens *
  // top_k if the plan covers all experts.
  static Shape shape(std::int64_t experts, std::int64_t tokens, std::int64_t top_k, std::int64_t max_rows) {
    return {experts + 1 + tokens * top_k + 2 * max_rows};
  }
  static Shape shape(std::int64_t experts, std::int64_t tokens, std::int64_t top_k) {
    return shape(experts, tokens, top_k, tokens * top_k);
  }
  RoutingPlan(const Tensor& plan, std::int64_t experts, std::int64_t token_count, std::int64_t top_k)
      : offsets(plan.slice(0, experts + 1)) {
    const std::int64_t choices = experts + 1, lists = choices + token_count * top_k;
    const std::int64_t max_rows = (plan.elements() - lists) / 2;
    rows = plan.slice(choices, lists).reshaped({token_count, top_k});
    slots = plan.slice(lists, lists + max_rows);
    tokens = plan.slice(lists + max_rows, lists + 2 * max_rows);
  }
};

// Sorts slots by expert; slots of one expert keep their order. With a capacity, an expert keeps at most
// `capacity` slots: the first slots or, if `weights` exist, the slots with the largest weights (if weights
// are equal, the earlier slot). Slots are ordered by position in their sequence, then by sequence, as in
// Megatron-LM.
//
// A plan may cover only the experts [first, first + expert_count) of `all`. Slots of other experts have no
// row, as if they were dropped.
struct PlanRouting {
  static constexpr KernelId kId = KernelId::kPlanRouting;
  Tensor experts;  // [tokens, top_k] int32, each in [0, all)
  Tensor weights;  // [tokens, top_k] fp32; absent: the first slots are kept
  Tensor kept;     // [tokens, top_k] int32, `rows` of another plan, or absent: slots dropped in that plan get
                   // no row
  Tensor plan;     // output: a RoutingPlan with space for the max. number of rows
  std::int64_t expert_count;
  std::int64_t capacity;            // 0: no limit
  std::int64_t sequences = 1;       // the tokens are concatenated sequences of equal length
  std::int64_t first = 0, all = 0;  // all 0: expert_count
  // output, or absent: two RoutingPlans that are the parts of `plan`. `head` has the first experts, up to the
  // last expert whose rows fit into `head`. `rest` has all other experts, and numbers their rows from 0.
  // `rest` has space for as many rows as `plan`. In each part, the experts of the other part have no rows.
  Tensor head = {}, rest = {};
  RoutingPlan parts_of(const Tensor& any) const {
    return {any, expert_count, experts.shape[0], experts.shape[1]};
  }
  // Returns whether slots may lack a row even if there is no capacity.
  bool partial() const { return all > expert_count || !kept.absent(); }
  void check() const;
  double flops() const { return 0; }
};

// The rows that ranks exchange when they share the experts, in one int32 tensor. Each rank sends a row that
// it holds once to each peer that has an expert of the row's token. A rank sends at most `maximum` rows to
// any peer. -1 marks an unused row or token.
struct DispatchPlan {
  Tensor sends, receives;  // [ranks]: number of rows sent to each peer, and received from each peer
  Tensor sent;             // [ranks * maximum, 1]: for each outgoing row, the row of this rank
  Tensor parts;            // [held, ranks]: for each row of this rank and each peer, the outgoing row
  // [ranks * maximum, 1]: for each incoming row, its token; tokens are numbered over all ranks.
  Tensor sources;
  Tensor places;  // [ranks * tokens, 1]: for each token of all ranks, its incoming row
  // [ranks * maximum, top_k]: for each incoming row, its token's experts; -1 for experts of other ranks.
  Tensor choices;

  // `held`: number of rows of this rank.
  static Shape shape(std::int64_t ranks, std::int64_t tokens, std::int64_t top_k, std::int64_t maximum,
                     std::int64_t held) {
    return {2 * ranks + ranks * (tokens + held) + ranks * maximum * (2 + top_k)};
  }
  static Shape shape(std::int64_t ranks, std::int64_t tokens, std::int64_t top_k, std::int64_t maximum) {
    return shape(ranks, tokens, top_k, maximum, tokens);
  }
  DispatchPlan(const Tensor& plan, std::int64_t ranks, std::int64_t tokens, std::int64_t top_k,
               std::int64_t maximum, std::int64_t held) {
    std::int64_t begin = 0;
    const auto next = [&](const Shape& of) {
      const std::int64_t end = begin + of.elements();
      return plan.slice(std::exchange(begin, end), end).reshaped(of);
    };
    sends = next({ranks});
    receives = next({ranks});
    sent = next({ranks * maximum, 1});
    parts = next({held, ranks});
    sources = next({ranks * maximum, 1});
    places = next({ranks * tokens, 1});
    choices = next({ranks * maximum, top_k});
  }
  DispatchPlan(const Tensor& plan, std::int64_t ranks, std::int64_t tokens, std::int64_t top_k,
               std::int64_t maximum)
      : DispatchPlan(plan, ranks, tokens, top_k, maximum, tokens) {}
};

// Outgoing and incoming rows are in token order. Ranks with the same experts have consecutive numbers, and
// experts are distributed in rank order.
//
// If rows travel in two hops, first between hosts and then within a host, each hop has a plan. The members
// `first`, `span` and `held` describe the hop: peer p represents the `span` ranks from rank first + p * span
// on, and this rank may hold rows for tokens of other ranks.
struct PlanDispatch {
  static constexpr KernelId kId = KernelId::kPlanDispatch;
  Tensor experts;  // [ranks * tokens, top_k] int32: the experts that all peers' tokens chose
  Tensor kept;     // like `experts`; values < 0 mark dropped choices; absent: no choice is dropped
  Tensor plan;     // output: a DispatchPlan
  std::int64_t ranks, rank, maximum;  // `ranks`: number of peers, this rank included
  std::int64_t experts_of_rank, ranks_of_expert;
  std::int64_t first = 0, span = 1;
  // [rows] int32: the token of each row of this rank, in token order, or -1 for an unused row. Absent: the
  // rows are the tokens.
  Tensor held = {};
  std::int64_t tokens() const { return experts.shape[0] / ranks; }
  std::int64_t held_rows() const { return held.absent() ? tokens() : held.elements(); }
  DispatchPlan parts() const { return {plan, ranks, tokens(), experts.shape[1], maximum, held_rows()}; }
  void check() const;
  double flops() const { return 0; }
};

// out[r, :] = w · x[token of r, :], where w is the weight of r's slot. Rows without a slot are not written.
struct GatherRows {
  static constexpr KernelId kId = KernelId::kGatherRows;
  Tensor x;                     // [tokens, hidden] fp32 or bf16
  Tensor offsets, rows, slots;  // members of the RoutingPlan
  Tensor weights;               // [tokens, top_k] fp32
  Tensor out;                   // [max_rows, hidden], x's type
  void check() const;
  double flops() const { return 0; }
};

// out[t, :] = previous[t, :] + sum over k of w · x[rows[t, k], :], in order of k, without dropped slots,
// where w = weights[t, k]. `rows` need not come from a plan.
struct CombineRows {
  static constexpr KernelId kId = KernelId::kCombineRows;
  Tensor x;                          // [max_rows, hidden] fp32 or bf16
  Tensor rows;                       // [tokens, top_k] int32; a value below 0 marks a dropped slot
  Tensor weights;                    // [tokens, top_k] fp32, or absent: w = 1
  Tensor previous;                   // [tokens, hidden], or absent: zero; may be out
  Tensor out;                        // [tokens, hidden], x's type
  Tensor more = {}, more_rows = {};  // further rows, and their indices, which are added in the same way; or
                                     // both absent
  void check() const;
  double flops() const { return 0; }
};

// out[t, k] = previous[t, k] + the dot product of by_token[t, :] and by_row[rows[t, k], :]; dropped slots
// add nothing.
struct RowDots {
  static constexpr KernelId kId = KernelId::kRowDots;
  Tensor by_token;  // [tokens, hidden] fp32 or bf16
  Tensor by_row;    // [max_rows, hidden], same type
  Tensor rows;      // member of the RoutingPlan
  Tensor previous;  // [tokens, top_k] fp32, or absent: zero; may be out
  Tensor out;       // [tokens, top_k] fp32
  void check() const;
  double flops() const { return 0; }
};

}  // namespace primus::turbo
