#include "engine/expert_dispatch.h"

#include <algorithm>
#include <optional>

#include "base/check.h"
#include "engine/scratch.h"
#include "turbo/elementwise/elementwise.h"
#include "turbo/moe_permute/moe_permute.h"

namespace primus::engine {
namespace {

using comm::Communicator;
using turbo::DispatchPlan;
using turbo::launch;

struct RowAttributes {
  Communicator* group;
  std::int64_t tokens, top_k, most;

  DispatchPlan plan(const Tensor& of) const { return {of, group->size(), tokens, top_k, most}; }
  std::int64_t rows() const { return group->size() * most; }
};

// To the ranks that have experts of them. Inputs of both operators: rows, plan.
void send_rows(Step& s, const Tensor& x, const Tensor& out) {
  const auto a = s.attributes<RowAttributes>();
  const DispatchPlan plan = a.plan(s.in(1));
  const ScratchTensor packed(s.context().scratch, x.dtype, {a.rows(), x.cols()});
  launch(s.context(),
         turbo::CombineRows{.x = x, .rows = plan.sent, .weights = {}, .previous = {}, .out = packed.get()});
  a.group->all_to_all_rows(s.context().stream, packed.get(), plan.sends, out, plan.receives);
}

// Back from there, and added up; and to `previous`.
void sum_rows(Step& s, const Tensor& rows, const Tensor& previous, const Tensor& out) {
  const auto a = s.attributes<RowAttributes>();
  const DispatchPlan plan = a.plan(s.in(1));
  const ScratchTensor returned(s.context().scratch, rows.dtype, {a.rows(), rows.cols()});
  a.group->all_to_all_rows(s.context().stream, rows, plan.receives, returned.get(), plan.sends);
  launch(s.context(),
         turbo::CombineRows{
             .x = returned.get(), .rows = plan.parts, .weights = {}, .previous = previous, .out = out});
}

void dispatch_forward(Step& s) { send_rows(s, s.in(0), s.out(0)); }

void dispatch_backward(Step& s) {
  const auto [d_x, previous] = s.d_in(0);
  sum_rows(s, s.d_out(0), previous, d_x);
}

void return_forward(Step& s) { sum_rows(s, s.in(0), {}, s.out(0)); }

void return_backward(Step& s) {
  const auto [d_rows, previous] = s.fresh_d_in(0);
  send_rows(s, s.d_out(0), d_rows);
  add_previous(s, {d_rows, previous});
}

constexpr Operator kDispatchRows{.name = "dispatch_rows",
                                 .operator_class = OperatorClass::kCommunication,
                                 .forward = dispatch_forward,
                                 .backward_input = dispatch_backward,
                                 .for_input = {.inputs = bit(1)}};
constexpr Operator kReturnRows{.name = "return_rows",
                               .operator_class = OperatorClass::kCommunication,
                               .forward = return_forward,
                               .backward_input = return_backward,
                               .for_input = {.inputs = bit(1)}};

// --- dispatch_experts

struct DispatchAttributes {
  RowAttributes rows;
  SharedExperts experts;
  std::int64_t all;  // experts that choices are of
  bool dropping;

  Tensor own(const Tensor& of_microbatch) const { return own_tokens(of_microbatch, experts.tokens); }
};

// Inputs: weights, experts, plan. Outputs: weights and plan of the rows that come in, and the DispatchPlan.
void dispatch_experts_forward(Step& s) {
  const auto a = s.attributes<DispatchAttributes>();
  const std::int64_t ranks = a.rows.group->size(), tokens = ranks * a.rows.tokens;
  const Shape slots{tokens, a.rows.top_k};
  const auto gather = [&](const Tensor& of_microbatch, const Tensor& all) {
    a.rows.group->all_gather(s.context().stream, a.own(of_microbatch), all);
  };
  const ScratchTensor weights(s.context().scratch, DType::kF32, slots);
  const ScratchTensor choices(s.context().scratch, DType::kI32, slots);
  gather(s.in(0), weights.get());
  gather(s.in(1), choices.get());
  std::optional<ScratchTensor> kept;
  if (a.dropping) {
    kept.emplace(s.context().scratch, DType::kI32, slots);
    gather(turbo::RoutingPlan(s.in(2), a.all, s.in(1).shape[0], a.rows.top_k).rows, kept->get());
  }
  launch(s.context(), turbo::PlanDispatch{.experts = choices.get(),
                                          .kept = kept ? kept->get() : Tensor(),
                                          .plan = s.out(2),
                                          .ranks = ranks,
                                          .rank = a.rows.group->rank(),
                                          .most = a.rows.most,
                                          .experts_of_rank = a.experts.count,
                                          .ranks_of_expert = ranks * a.experts.count / a.all});
  const DispatchPlan plan = a.rows.plan(s.out(2));
  launch(s.context(),
         turbo::CombineRows{
             .x = weights.get(), .rows = plan.sources, .weights = {}, .previous = {}, .out = s.out(0)});
  launch(s.context(), turbo::PlanRouting{.experts = plan.choices,
                                         .weights = {},
                                         .kept = plan.choices,  // below 0 for experts of others
                                         .plan = s.out(1),
                                         .expert_count = a.experts.count,
                                         .capacity = 0,
                                         .first = a.experts.first,
                                         .all = a.all});
}

void dispatch_experts_backward(Step& s) {
  const auto a = s.attributes<DispatchAttributes>();
  const DispatchPlan plan = a.rows.plan(s.out(2));
  const std::int64_t tokens = a.rows.group->size() * a.rows.tokens;
  const auto [d_weights, previous] = s.fresh_d_in(0);
  const ScratchTensor of_all(s.context().scratch, DType::kF32, {tokens, a.rows.top_k});
  launch(s.context(),
         turbo::CombineRows{
             .x = s.d_out(0), .rows = plan.places, .weights = {}, .previous = {}, .out = of_all.get()});
  // What other ranks' tokens of the microbatch weigh is theirs to find out.
  launch(s.context(), turbo::Fill{.out = d_weights, .value = 0});
  a.rows.group->reduce_scatter(s.context().stream, of_all.get(), a.own(d_weights), comm::Reduction::kSum);
  add_previous(s, {d_weights, previous});
}

constexpr Operator kDispatchExperts{.name = "dispatch_experts",
                                    .operator_class = OperatorClass::kRouting,
                                    .forward = dispatch_experts_forward,
                                    .backward_input = dispatch_experts_backward,
                                    .for_input = {.outputs = bit(2)}};

RowAttributes attributes_of(const Dispatch& d) {
  return {d.group, d.tokens, d.routing.weights.shape()[1], d.most};
}

}  // namespace

Dispatch dispatch_experts(const Routing& r, const SharedExperts& experts, std::int64_t capacity) {
  const int ranks = experts.group->size(), sharing = experts.tokens ? experts.tokens->size() : 1;
  const std::int64_t of_microbatch = r.weights.shape()[0], top_k = r.weights.shape()[1];
  PRIMUS_CHECK("dispatch_experts",
               of_microbatch % sharing == 0 && ranks * experts.count % r.expert_count == 0);
  const std::int64_t tokens = of_microbatch / sharing;
  // A token goes to a rank once. A rank's tokens are of one microbatch, of which an expert takes no more than
  // its capacity.
  const std::int64_t most = capacity > 0 ? std::min(tokens, experts.count * capacity) : tokens;
  const std::int64_t chosen = experts.most_rows(ranks * tokens, of_microbatch, top_k, capacity);
  const RowAttributes rows{experts.group, tokens, top_k, most};
  const DispatchAttributes a{rows, experts, r.expert_count, capacity > 0};
  const Tape::Output outputs[] = {
      {DType::kF32, {rows.rows(), top_k}},
      {DType::kI32, turbo::RoutingPlan::shape(experts.count, rows.rows(), top_k, chosen), false},
      {DType::kI32, DispatchPlan::shape(ranks, tokens, top_k, most), false}};
  auto [weights, plan, dispatch_plan] = r.weights.tape().record(
      kDispatchExperts, {&r.weights, &r.experts, &r.plan}, nullptr, {outputs[0], outputs[1], outputs[2]}, a);
  return {.routing = {.weights = std::move(weights),
                      .experts = {},
                      .plan = std::move(plan),
                      .expert_count = experts.count,
                      .rows = chosen,
                      .by_logits = false},
          .plan = std::move(dispatch_plan),
          .group = experts.group,
          .tokens = tokens,
          .most = most};
}

Value dispatch_rows(const Value& x, const Dispatch& d) {
  const ReplayScope replay(x.tape());
  const RowAttributes a = attributes_of(d);
  const Tape::Output out{x.dtype(), {a.rows(), x.shape()[1]}};
  return x.tape().record(kDispatchRows, {&x, &d.plan}, nullptr, {out}, a)[0];
}

Value return_rows(const Value& rows, const Dispatch& d) {
  const Tape::Output out{rows.dtype(), {d.tokens, rows.shape()[1]}};
  return rows.tape().record(kReturnRows, {&rows, &d.plan}, nullptr, {out}, attributes_of(d))[0];
}

}  // namespace primus::engine
