// The experts' computation on the rows of their tokens, and the operators that send rows to experts and
// combine rows per token (moe_operators.h).
#include <optional>
#include <utility>

#include "base/check.h"
#include "engine/operators/fp32_weight_gradient.h"
#include "engine/operators/linear_products.h"
#include "engine/operators/moe_operators.h"
#include "tensor/scratch_tensor.h"
#include "turbo/bias/bias.h"
#include "turbo/elementwise/elementwise.h"
#include "turbo/grouped_linear/grouped_linear.h"
#include "turbo/moe_permute/moe_permute.h"
#include "turbo/swiglu/swiglu.h"

namespace primus::engine {
namespace {

using turbo::launch;

// ---- combine ------------------------------------------------------------------------------------

struct PlanAttributes {
  std::int64_t expert_count, tokens, top_k;
  std::int64_t begin, end;  // the plan's range within its tensor; end 0: the plan is the entire tensor
};

turbo::RoutingPlan plan_of(OperatorCall& op, InputPlace plan) {
  const auto a = op.attributes<PlanAttributes>();
  const Tensor all = op.in(plan);
  return {a.end > 0 ? all.slice(a.begin, a.end) : all, a.expert_count, a.tokens, a.top_k};
}

// Returns the plan of the routing's second part, for operators whose attributes describe the first part.
turbo::RoutingPlan rest_of(OperatorCall& op, InputPlace plan) {
  const auto a = op.attributes<PlanAttributes>();
  const Tensor all = op.in(plan);
  return {all.slice(a.end, all.elements()), a.expert_count, a.tokens, a.top_k};
}

struct Combine {
  // kAddend is optional. kRest has the rows of the routing's second part (RoutingParts); it is absent if the
  // routing is not divided.
  enum In : InputName { kRows, kPlan, kWeights, kAddend, kRest };
  enum Out : OutputName { kOut };
};

void combine_forward(OperatorCall& op) {
  turbo::CombineRows sum{.x = op.in(Combine::kRows),
                         .rows = plan_of(op, Combine::kPlan).rows,
                         .weights = op.in(Combine::kWeights),
                         .previous = op.optional_in(Combine::kAddend),
                         .out = op.out(Combine::kOut)};
  if (op.has_in(Combine::kRest)) {
    sum.more = op.in(Combine::kRest);
    sum.more_rows = rest_of(op, Combine::kPlan).rows;
  }
  launch(op.context(), sum);
}

// Computes the gradients of one part of the routing: its rows' gradient, and its contribution to the gradient
// of the weights.
void combine_backward(OperatorCall& op, Combine::In rows, const turbo::RoutingPlan& plan) {
  const Tensor d_out = op.d_out(Combine::kOut);
  if (op.needs_d_in(Combine::kWeights)) {
    const auto [d_weights, previous] = op.d_in(Combine::kWeights);
    launch(op.context(), turbo::RowDots{.by_token = d_out,
                                        .by_row = op.in(rows),
                                        .rows = plan.rows,
                                        .previous = previous,
                                        .out = d_weights});
  }
  if (op.needs_d_in(rows)) {
    const auto [d_rows, previous] = op.fresh_d_in(rows);
    launch(op.context(), turbo::GatherRows{.x = d_out,
                                           .offsets = plan.offsets,
                                           .rows = plan.rows,
                                           .slots = plan.slots,
                                           .weights = op.in(Combine::kWeights),
                                           .out = d_rows});
    add_previous(op, {d_rows, previous});
  }
}

void combine_backward_input(OperatorCall& op) {
  combine_backward(op, Combine::kRows, plan_of(op, Combine::kPlan));
  if (op.has_in(Combine::kRest)) combine_backward(op, Combine::kRest, rest_of(op, Combine::kPlan));
  op.pass_d_in(Combine::kAddend, Combine::kOut);
}

constexpr Operator kCombine{
    .name = "combine",
    .operator_class = OperatorClass::kExperts,
    .forward = combine_forward,
    .backward_input = combine_backward_input,
    .for_input = saves(Combine::kRows, Combine::kPlan, Combine::kWeights, Combine::kRest)};

// ---- grouped linear -----------------------------------------------------------------------------

struct GroupedLinear {
  enum In : InputName { kRows, kPlan };
  enum Out : OutputName { kY };
};

// Returns the offsets of the experts in the plan.
Tensor offsets_of(OperatorCall& op) { return plan_of(op, GroupedLinear::kPlan).offsets; }

void grouped_linear_forward(OperatorCall& op) {
  grouped_product(op, turbo::GroupedGemm{.role = turbo::GemmRole::kForward,
                                         .a = op.in(GroupedLinear::kRows),
                                         .b = op.weight(),
                                         .c = op.out(GroupedLinear::kY),
                                         .offsets = offsets_of(op),
                                         .workspace = {}});
}

void grouped_linear_backward_input(OperatorCall& op) {
  if (!op.needs_d_in(GroupedLinear::kRows)) return;
  const auto [d_x, previous] = op.fresh_d_in(GroupedLinear::kRows);
  grouped_product(op, turbo::GroupedGemm{.role = turbo::GemmRole::kInputGradient,
                                         .a = op.d_out(GroupedLinear::kY),
                                         .b = op.weight(),
                                         .c = d_x,
                                         .offsets = offsets_of(op),
                                         .workspace = {}});
  add_previous(op, {d_x, previous});
}

void grouped_linear_backward_weight(OperatorCall& op) {
  const auto [d_weight, accumulate] = op.d_weight();
  grouped_product(op, turbo::GroupedGemm{.role = turbo::GemmRole::kWeightGradient,
                                         .a = op.d_out(GroupedLinear::kY),
                                         .b = op.in(GroupedLinear::kRows),
                                         .c = d_weight,
                                         .offsets = offsets_of(op),
                                         .accumulate = accumulate,
                                         .workspace = {}});
}

constexpr Operator kGroupedLinear{.name = "grouped_linear",
                                  .operator_class = OperatorClass::kExperts,
                                  .forward = grouped_linear_forward,
                                  .backward_input = grouped_linear_backward_input,
                                  .backward_weight = grouped_linear_backward_weight,
                                  .for_input = saves(GroupedLinear::kPlan),
                                  .for_weight = saves(GroupedLinear::kRows, GroupedLinear::kPlan)};

// ---- dispatch and linear, linear and combine ----------------------------------------------------
//
// These products read token rows in place. The experts' output rows are in scratch memory until they are
// summed. So the tape does not store top_k copies of tokens or results.

struct DispatchLinear {
  enum In : InputName { kX, kPlan, kGradient };  // kGradient: only for a part of a routing (RoutingParts)
  enum Out : OutputName { kRows };
};

void dispatch_linear_forward(OperatorCall& op) {
  const turbo::RoutingPlan plan = plan_of(op, DispatchLinear::kPlan);
  grouped_product(op, turbo::GroupedGemm{.role = turbo::GemmRole::kForward,
                                         .a = op.in(DispatchLinear::kX),
                                         .b = op.weight(),
                                         .c = op.out(DispatchLinear::kRows),
                                         .offsets = plan.offsets,
                                         .a_rows = plan.tokens,
                                         .workspace = {}});
}

void dispatch_linear_backward_input(OperatorCall& op) {
  const Tensor d_out = op.d_out(DispatchLinear::kRows);
  const turbo::RoutingPlan plan = plan_of(op, DispatchLinear::kPlan);
  const auto multiply = [&](const Tensor& d_rows) {
    grouped_product(op, turbo::GroupedGemm{.role = turbo::GemmRole::kInputGradient,
                                           .a = d_out,
                                           .b = op.weight(),
                                           .c = d_rows,
                                           .offsets = plan.offsets,
                                           .workspace = {}});
  };
  if (op.has_in(DispatchLinear::kGradient)) {
    if (op.needs_d_in(DispatchLinear::kGradient)) multiply(op.fresh_d_in(DispatchLinear::kGradient).out);
    return;
  }
  if (!op.needs_d_in(DispatchLinear::kX)) return;
  const auto [d_x, previous] = op.d_in(DispatchLinear::kX);
  const ScratchTensor d_rows(op.context().scratch, d_x.dtype, {d_out.rows(), d_x.cols()});
  multiply(d_rows.get());
  launch(op.context(),
         turbo::CombineRows{
             .x = d_rows.get(), .rows = plan.rows, .weights = {}, .previous = previous, .out = d_x});
}

void dispatch_linear_backward_weight(OperatorCall& op) {
  const turbo::RoutingPlan plan = plan_of(op, DispatchLinear::kPlan);
  const auto [d_weight, accumulate] = op.d_weight();
  grouped_product(op, turbo::GroupedGemm{.role = turbo::GemmRole::kWeightGradient,
                                         .a = op.d_out(DispatchLinear::kRows),
                                         .b = op.in(DispatchLinear::kX),
                                         .c = d_weight,
                                         .offsets = plan.offsets,
                                         .b_rows = plan.tokens,
                                         .accumulate = accumulate,
                                         .workspace = {}});
}

constexpr Operator kDispatchLinear{.name = "dispatch_linear",
                                   .operator_class = OperatorClass::kExperts,
                                   .forward = dispatch_linear_forward,
                                   .backward_input = dispatch_linear_backward_input,
                                   .backward_weight = dispatch_linear_backward_weight,
                                   .for_input = saves(DispatchLinear::kPlan),
                                   .for_weight = saves(DispatchLinear::kX, DispatchLinear::kPlan)};

struct LinearCombine {
  // kAddend is optional. kRest has the rows of the routing's second part (RoutingParts); it is absent if the
  // routing is not divided.
  enum In : InputName { kRows, kPlan, kAddend, kRest };
  enum Out : OutputName { kOut };
};

turbo::RoutingPlan plan_of_rows(OperatorCall& op, LinearCombine::In rows) {
  return rows == LinearCombine::kRest ? rest_of(op, LinearCombine::kPlan) : plan_of(op, LinearCombine::kPlan);
}

void linear_combine_forward(OperatorCall& op) {
  const Tensor out = op.out(LinearCombine::kOut);
  const turbo::RoutingPlan plan = plan_of(op, LinearCombine::kPlan);
  const auto results_of = [&](const Tensor& rows) {
    return ScratchTensor(op.context().scratch, out.dtype, {rows.rows(), out.cols()});
  };
  const auto multiply = [&](const Tensor& rows, const turbo::RoutingPlan& of, const Tensor& results) {
    grouped_product(op, turbo::GroupedGemm{.role = turbo::GemmRole::kForward,
                                           .a = rows,
                                           .b = op.weight(),
                                           .c = results,
                                           .offsets = of.offsets,
                                           .workspace = {}});
  };
  const ScratchTensor results = results_of(op.in(LinearCombine::kRows));
  multiply(op.in(LinearCombine::kRows), plan, results.get());
  turbo::CombineRows sum{.x = results.get(),
                         .rows = plan.rows,
                         .weights = {},
                         .previous = op.optional_in(LinearCombine::kAddend),
                         .out = out};
  if (!op.has_in(LinearCombine::kRest)) return launch(op.context(), sum);
  const turbo::RoutingPlan rest = rest_of(op, LinearCombine::kPlan);
  const ScratchTensor more = results_of(op.in(LinearCombine::kRest));
  multiply(op.in(LinearCombine::kRest), rest, more.get());
  sum.more = more.get();
  sum.more_rows = rest.rows;
  launch(op.context(), sum);
}

void linear_combine_backward_input(OperatorCall& op) {
  for (const LinearCombine::In rows : {LinearCombine::kRows, LinearCombine::kRest}) {
    if (!op.needs_d_in(rows)) continue;
    const auto [d_rows, previous] = op.fresh_d_in(rows);
    const turbo::RoutingPlan plan = plan_of_rows(op, rows);
    grouped_product(op, turbo::GroupedGemm{.role = turbo::GemmRole::kInputGradient,
                                           .a = op.d_out(LinearCombine::kOut),
                                           .b = op.weight(),
                                           .c = d_rows,
                                           .offsets = plan.offsets,
                                           .a_rows = plan.tokens,
                                           .workspace = {}});
    add_previous(op, {d_rows, previous});
  }
  op.pass_d_in(LinearCombine::kAddend, LinearCombine::kOut);
}

void linear_combine_backward_weight(OperatorCall& op) {
  const auto [d_weight, accumulate] = op.d_weight();
  const auto add = [&, d_weight = d_weight](LinearCombine::In rows, bool to_previous) {
    const turbo::RoutingPlan plan = plan_of_rows(op, rows);
    grouped_product(op, turbo::GroupedGemm{.role = turbo::GemmRole::kWeightGradient,
                                           .a = op.d_out(LinearCombine::kOut),
                                           .b = op.in(rows),
                                           .c = d_weight,
                                           .offsets = plan.offsets,
                                           .a_rows = plan.tokens,
                                           .accumulate = to_previous,
                                           .workspace = {}});
  };
  add(LinearCombine::kRows, accumulate);
  if (op.has_in(LinearCombine::kRest)) add(LinearCombine::kRest, true);
}

constexpr Operator kLinearCombine{
    .name = "linear_combine",
    .operator_class = OperatorClass::kExperts,
    .forward = linear_combine_forward,
    .backward_input = linear_combine_backward_input,
    .backward_weight = linear_combine_backward_weight,
    .for_input = saves(LinearCombine::kPlan),
    .for_weight = saves(LinearCombine::kRows, LinearCombine::kPlan, LinearCombine::kRest)};

// ---- parts of a routing -------------------------------------------------------------------------

// Sums the gradients of both parts' rows per token.
struct RowGradients {
  enum In : InputName { kX, kPlan };
  enum Out : OutputName { kHead, kRest };
};

void row_gradients_backward(OperatorCall& op) {
  const auto [d_x, previous] = op.d_in(RowGradients::kX);
  launch(op.context(), turbo::CombineRows{.x = op.d_out(RowGradients::kHead),
                                          .rows = plan_of(op, RowGradients::kPlan).rows,
                                          .weights = {},
                                          .previous = previous,
                                          .out = d_x,
                                          .more = op.d_out(RowGradients::kRest),
                                          .more_rows = rest_of(op, RowGradients::kPlan).rows});
}

constexpr Operator kRowGradients{.name = "row_gradients",
                                 .operator_class = OperatorClass::kExperts,
                                 .forward = [](OperatorCall&) {},
                                 .backward_input = row_gradients_backward,
                                 .for_input = saves(RowGradients::kPlan),
                                 .unsettled = true,
                                 .hollow = true};

void grouped_bias_forward(OperatorCall& op) {
  launch(op.context(), turbo::GroupedBias{.x = op.in_or_out(GroupedLinear::kRows, GroupedLinear::kY),
                                          .bias = op.weight(),
                                          .y = op.out(GroupedLinear::kY),
                                          .offsets = offsets_of(op)});
}

void grouped_bias_backward_input(OperatorCall& op) { op.pass_d_in(GroupedLinear::kRows, GroupedLinear::kY); }

void grouped_bias_backward_weight(OperatorCall& op) {
  write_fp32_weight_gradient(op, [&](const Tensor& d_bias, bool accumulate) {
    launch(op.context(), turbo::GroupedBiasBackward{.d_y = op.d_out(GroupedLinear::kY),
                                                    .d_bias = d_bias,
                                                    .offsets = offsets_of(op),
                                                    .accumulate = accumulate});
  });
}

constexpr Operator kGroupedBias{.name = "grouped_bias",
                                .operator_class = OperatorClass::kExperts,
                                .forward = grouped_bias_forward,
                                .backward_input = grouped_bias_backward_input,
                                .backward_weight = grouped_bias_backward_weight,
                                .for_weight = saves(GroupedLinear::kPlan),
                                .in_place = true};

// ---- weighted swiglu ----------------------------------------------------------------------------

struct WeightedAttributes {
  PlanAttributes plan;
  bool weigh_input;
};

struct WeightedSwiglu {
  enum In : InputName { kGateUp, kPlan, kWeights };
  enum Out : OutputName { kOut };
};

void weighted_swiglu_forward(OperatorCall& op) {
  const turbo::RoutingPlan plan = plan_of(op, WeightedSwiglu::kPlan);
  launch(op.context(),
         turbo::WeightedSwigluForward{.gate_up = op.in(WeightedSwiglu::kGateUp),
                                      .weights = op.in(WeightedSwiglu::kWeights),
                                      .offsets = plan.offsets,
                                      .slots = plan.slots,
                                      .weigh_input = op.attributes<WeightedAttributes>().weigh_input,
                                      .out = op.out(WeightedSwiglu::kOut)});
}

void weighted_swiglu_backward(OperatorCall& op) {
  const turbo::RoutingPlan plan = plan_of(op, WeightedSwiglu::kPlan);
  const auto [d_weights, previous_weights] =
      op.needs_d_in(WeightedSwiglu::kWeights) ? op.d_in(WeightedSwiglu::kWeights) : OperatorCall::Target{};
  std::optional<ScratchTensor> unwanted;
  if (!op.needs_d_in(WeightedSwiglu::kGateUp))
    unwanted.emplace(op.context().scratch, op.in(WeightedSwiglu::kGateUp).dtype,
                     op.in(WeightedSwiglu::kGateUp).shape);
  const auto [d_gate_up, previous] =
      unwanted ? OperatorCall::Target{unwanted->get(), {}} : op.fresh_d_in(WeightedSwiglu::kGateUp);
  launch(op.context(),
         turbo::WeightedSwigluBackward{.gate_up = op.in(WeightedSwiglu::kGateUp),
                                       .weights = op.in(WeightedSwiglu::kWeights),
                                       .offsets = plan.offsets,
                                       .slots = plan.slots,
                                       .weigh_input = op.attributes<WeightedAttributes>().weigh_input,
                                       .d_out = op.d_out(WeightedSwiglu::kOut),
                                       .d_gate_up = d_gate_up,
                                       .previous_weights = previous_weights,
                                       .d_weights = d_weights});
  add_previous(op, {d_gate_up, previous});
}

constexpr Operator kWeightedSwiglu{
    .name = "weighted_swiglu",
    .operator_class = OperatorClass::kActivation,
    .forward = weighted_swiglu_forward,
    .backward_input = weighted_swiglu_backward,
    .for_input = saves(WeightedSwiglu::kGateUp, WeightedSwiglu::kPlan, WeightedSwiglu::kWeights)};

// ---- clamped swiglu -----------------------------------------------------------------------------

struct ClampAttributes {
  float limit, alpha, shift;
};

struct ClampedSwiglu {
  enum In : InputName { kGateUp };
  enum Out : OutputName { kOut };
};

void clamped_swiglu_forward(OperatorCall& op) {
  const auto a = op.attributes<ClampAttributes>();
  launch(op.context(), turbo::ClampedSwigluForward{.gate_up = op.in(ClampedSwiglu::kGateUp),
                                                   .out = op.out(ClampedSwiglu::kOut),
                                                   .limit = a.limit,
                                                   .alpha = a.alpha,
                                                   .shift = a.shift});
}

void clamped_swiglu_backward(OperatorCall& op) {
  const auto a = op.attributes<ClampAttributes>();
  const auto [d_gate_up, previous] = op.fresh_d_in(ClampedSwiglu::kGateUp);
  launch(op.context(), turbo::ClampedSwigluBackward{.gate_up = op.in(ClampedSwiglu::kGateUp),
                                                    .d_out = op.d_out(ClampedSwiglu::kOut),
                                                    .d_gate_up = d_gate_up,
                                                    .limit = a.limit,
                                                    .alpha = a.alpha,
                                                    .shift = a.shift});
  add_previous(op, {d_gate_up, previous});
}

constexpr Operator kClampedSwiglu{.name = "clamped_swiglu",
                                  .operator_class = OperatorClass::kActivation,
                                  .forward = clamped_swiglu_forward,
                                  .backward_input = clamped_swiglu_backward,
                                  .for_input = saves(ClampedSwiglu::kGateUp)};

PlanAttributes attributes_of(const Routing& r) {
  return {r.expert_count, r.weights.shape()[0], r.weights.shape()[1], r.plan_begin, r.plan_end};
}

// Returns the adapter of `weight`. Adapters of experts do not support dropout: the mask would need the token
// numbers of rows from other ranks.
const LowRank& adapter_of(const Value& rows, const Parameter& weight) {
  PRIMUS_CHECK("experts", weight.low_rank.dropout == 0);
  return rows.tape().adapter_of(weight);
}

// Multiplies each row by its expert's adapter matrix A, and scales the product.
Value low_rows(const Value& rows, const LowRank& low_rank, const Routing& r) {
  return scale(grouped_linear(rows, *low_rank.down, r), low_rank.scale);
}

}  // namespace

// ---- functions for model code -------------------------------------------------------------------

RoutingParts parts_of(const Routing& r, const Value& x, const Parameter& weight) {
  PRIMUS_CHECK("parts_of", r.kept > 0);
  RoutingParts parts{.head = r, .rest = r};
  parts.head.rows = r.kept;
  parts.head.plan_end = parts.rest.plan_begin =
      turbo::RoutingPlan::shape(r.expert_count, r.weights.shape()[0], r.weights.shape()[1], r.kept)[0];
  parts.rest.plan_end = r.plan.shape()[0];
  const ReplayScope replay(x.tape());
  const std::int64_t columns = x.shape()[1];
  const auto add_gradients = [&](Value RoutingParts::RowGradients::*of) {
    Tape::Outputs gradients =
        x.tape().record(kRowGradients, {{RowGradients::kX, x}, {RowGradients::kPlan, r.plan}}, nullptr,
                        {{RowGradients::kHead, x.dtype(), {r.kept, columns}},
                         {RowGradients::kRest, x.dtype(), {r.rows, columns}}},
                        attributes_of(parts.head));
    parts.head_gradient.*of = std::move(gradients[RowGradients::kHead]);
    parts.rest_gradient.*of = std::move(gradients[RowGradients::kRest]);
  };
  // The adapter's gradients are summed first, as without parts.
  add_gradients(&RoutingParts::RowGradients::weight);
  if (adapter_of(x, weight)) add_gradients(&RoutingParts::RowGradients::adapter);
  return parts;
}

Value dispatch_linear(const Value& x, Parameter& weight, const Routing& r,
                      const RoutingParts::RowGradients& gradients) {
  const Shape shape{r.rows, weight.shape[1]};
  Value y = x.tape().record(kDispatchLinear,
                            {{DispatchLinear::kX, x},
                             {DispatchLinear::kPlan, r.plan},
                             {DispatchLinear::kGradient, gradients.weight}},
                            &weight, {{DispatchLinear::kRows, x.dtype(), shape}},
                            attributes_of(r))[DispatchLinear::kRows];
  const LowRank& low_rank = adapter_of(x, weight);
  if (!low_rank) return y;
  PRIMUS_CHECK("dispatch_linear", !gradients.weight == !gradients.adapter);
  const Value low = scale(dispatch_linear(x, *low_rank.down, r, {.weight = gradients.adapter, .adapter = {}}),
                          low_rank.scale);
  return sum(std::move(y), grouped_linear(low, *low_rank.up, r));
}

Value grouped_linear(const Value& rows, Parameter& weight, const Routing& r) {
  const Shape shape{rows.shape()[0], weight.shape[1]};
  Value y = rows.tape().record(kGroupedLinear, {{GroupedLinear::kRows, rows}, {GroupedLinear::kPlan, r.plan}},
                               &weight, {{GroupedLinear::kY, rows.dtype(), shape}},
                               attributes_of(r))[GroupedLinear::kY];
  const LowRank& low_rank = adapter_of(rows, weight);
  return low_rank ? sum(std::move(y), grouped_linear(low_rows(rows, low_rank, r), *low_rank.up, r)) : y;
}

Value combine(const Value& rows, const Routing& r, const Value& addend) {
  return rows.tape().record(kCombine,
                            {{Combine::kRows, rows},
                             {Combine::kPlan, r.plan},
                             {Combine::kWeights, r.weights},
                             {Combine::kAddend, addend}},
                            nullptr, {{Combine::kOut, rows.dtype(), {r.weights.shape()[0], rows.shape()[1]}}},
                            attributes_of(r))[Combine::kOut];
}

Value combine(const Value& head, const Value& rest, const RoutingParts& parts) {
  const Routing& r = parts.head;
  return head.tape().record(kCombine,
                            {{Combine::kRows, head},
                             {Combine::kPlan, r.plan},
                             {Combine::kWeights, r.weights},
                             {Combine::kRest, rest}},
                            nullptr, {{Combine::kOut, head.dtype(), {r.weights.shape()[0], head.shape()[1]}}},
                            attributes_of(r))[Combine::kOut];
}

Value linear_combine(const Value& rows, Parameter& weight, const Routing& r, const Value& addend) {
  Value y = rows.tape().record(
      kLinearCombine,
      {{LinearCombine::kRows, rows}, {LinearCombine::kPlan, r.plan}, {LinearCombine::kAddend, addend}},
      &weight, {{LinearCombine::kOut, rows.dtype(), {r.weights.shape()[0], weight.shape[1]}}},
      attributes_of(r))[LinearCombine::kOut];
  const LowRank& low_rank = adapter_of(rows, weight);
  return low_rank ? linear_combine(low_rows(rows, low_rank, r), *low_rank.up, r, y) : y;
}

Value linear_combine(const Value& head, const Value& rest, Parameter& weight, const RoutingParts& parts,
                     const Value& addend) {
  Value y = head.tape().record(
      kLinearCombine,
      {{LinearCombine::kRows, head},
       {LinearCombine::kPlan, parts.head.plan},
       {LinearCombine::kAddend, addend},
       {LinearCombine::kRest, rest}},
      &weight, {{LinearCombine::kOut, head.dtype(), {parts.head.weights.shape()[0], weight.shape[1]}}},
      attributes_of(parts.head))[LinearCombine::kOut];
  const LowRank& low_rank = adapter_of(head, weight);
  if (!low_rank) return y;
  const Value low_head = low_rows(head, low_rank, parts.head);
  std::optional<ReplayScope> replay(head.tape());
  const Value low_rest = low_rows(rest, low_rank, parts.rest);
  replay.reset();
  return linear_combine(low_head, low_rest, *low_rank.up, parts, y);
}

Value grouped_bias(Value rows, Parameter& bias, const Routing& r) {
  return rows.tape().record(kGroupedBias, {{GroupedLinear::kRows, rows}, {GroupedLinear::kPlan, r.plan}},
                            &bias, {{GroupedLinear::kY, rows.dtype(), rows.shape()}},
                            attributes_of(r))[GroupedLinear::kY];
}

Value weighted_swiglu(const Value& gate_up, const Routing& r, bool weigh_input) {
  const Shape shape{gate_up.shape()[0], gate_up.shape()[1] / 2};
  return gate_up.tape().record(kWeightedSwiglu,
                               {{WeightedSwiglu::kGateUp, gate_up},
                                {WeightedSwiglu::kPlan, r.plan},
                                {WeightedSwiglu::kWeights, r.weights}},
                               nullptr, {{WeightedSwiglu::kOut, gate_up.dtype(), shape}},
                               WeightedAttributes{attributes_of(r), weigh_input})[WeightedSwiglu::kOut];
}

Value clamped_swiglu(const Value& gate_up, const SwigluClamp& clamp) {
  const Shape shape{gate_up.shape()[0], gate_up.shape()[1] / 2};
  return gate_up.tape().record(
      kClampedSwiglu, {{ClampedSwiglu::kGateUp, gate_up}}, nullptr,
      {{ClampedSwiglu::kOut, gate_up.dtype(), shape}},
      ClampAttributes{static_cast<float>(clamp.limit), static_cast<float>(clamp.alpha),
                      static_cast<float>(clamp.shift)})[ClampedSwiglu::kOut];
}

}  // namespace primus::engine
