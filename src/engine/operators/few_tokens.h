// Operators for a few tokens, as in bf16 decoding: each does the work of several operators in fewer kernels,
// with the same bits. One exception: a shared expert's sums are added in another order. Calls are not
// recorded for a backward pass, and all parameters are resident. A device may lack these kernels; the
// functions named takes_... return whether it has them.
#pragma once

#include "engine/operators/moe_operators.h"

namespace primus::engine {

// The matrices and biases of experts, and the operations between and after the products.
struct FewExperts {
  Parameter *gate_up = nullptr, *down = nullptr;            // without adapters
  Parameter *gate_up_bias = nullptr, *down_bias = nullptr;  // null: no bias
  // Whether the routing weights multiply the activations (weighted_swiglu()). If false, they multiply the
  // experts' results (combine()).
  bool weighs_rows = true;
  // The plain SwiGLU expert that every token uses, and the weight of its gate. Null: no such expert, no gate.
  // The value of the gate's weight is fp32.
  Parameter *shared_gate_up = nullptr, *shared_down = nullptr, *shared_gate = nullptr;
  bool weigh_input = false;       // as for weighted_swiglu()
  SwigluClamp clamp{.limit = 0};  // limit 0: no clamping; needs weighs_rows = false
};

// Returns whether the device has kernels for the experts of these tokens.
bool takes_few_experts(const Value& x, std::int64_t top_k, const FewExperts& experts);

// Returns route() without a plan, for few_experts(). No random numbers are drawn.
Routing choose_experts(const Value& logits, const RoutingRule& rule, const Tensor& choice_bias,
                       const Tensor& given, const Value& by_table);

// Returns the sum over the experts that each token chose and over the shared expert, plus `addend` if given.
// An addend and a shared expert exclude each other.
Value few_experts(const Value& x, const Routing& routing, const FewExperts& experts,
                  const Value& addend = {});

// Returns rope() of head_norm(): one kernel if the device has it.
Value normed_rope(const Value& x, Parameter& norm, const turbo::HeadNormShape& heads, double epsilon,
                  const Value& positions, const Tensor& table, const RopeShape& shape);

}  // namespace primus::engine
