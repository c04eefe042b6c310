#include "engine/moe_operators.h"

#include <optional>

#include "engine/scratch.h"
#include "turbo/bias/bias.h"
#include "turbo/elementwise/elementwise.h"
#include "turbo/grouped_linear/grouped_linear.h"
#include "turbo/linear/linear.h"
#include "turbo/moe_permute/moe_permute.h"
#include "turbo/swiglu/swiglu.h"

namespace primus::engine {
namespace {

using turbo::launch;

// --- router logits
// ---------------------------------------------------------------------------------------------------

struct LogitsAttributes {
  float jitter;
  turbo::RouterRandom random;
};

// The router's input in fp32: the hidden states themselves, or a copy in scratch memory.
class Input {
 public:
  explicit Input(Step& s) : tensor_(s.in(0)) {
    const auto a = s.attributes<LogitsAttributes>();
    if (tensor_.dtype == DType::kF32 && a.jitter == 0) return;
    copy_.emplace(s.context().scratch, DType::kF32, tensor_.shape);
    launch(s.context(),
           turbo::RouterInput{
               .x = tensor_, .previous = {}, .out = copy_->get(), .jitter = a.jitter, .random = a.random});
    tensor_ = copy_->get();
  }
  const Tensor& get() const { return tensor_; }

 private:
  Tensor tensor_;
  std::optional<ScratchTensor> copy_;
};

void logits_forward(Step& s) {
  const Input x(s);
  launch(s.context(), turbo::Gemm{.role = turbo::GemmRole::kForward,
                                  .a = x.get(),
                                  .b = s.parameter().master,
                                  .c = s.out(0),
                                  .accumulate = false,
                                  .workspace = {}});
}

void logits_backward_input(Step& s) {
  if (!s.needs_d_in(0)) return;
  const auto a = s.attributes<LogitsAttributes>();
  const auto [d_x, previous] = s.d_in(0);
  const ScratchTensor d_input(s.context().scratch, DType::kF32, d_x.shape);
  launch(s.context(), turbo::Gemm{.role = turbo::GemmRole::kInputGradient,
                                  .a = s.d_out(0),
                                  .b = s.parameter().master,
                                  .c = d_input.get(),
                                  .accumulate = false,
                                  .workspace = {}});
  launch(s.context(),
         turbo::RouterInput{
             .x = d_input.get(), .previous = previous, .out = d_x, .jitter = a.jitter, .random = a.random});
}

void logits_backward_weight(Step& s) {
  const Input x(s);
  const auto [d_weight, accumulate] = s.d_weight();
  launch(s.context(), turbo::Gemm{.role = turbo::GemmRole::kWeightGradient,
                                  .a = s.d_out(0),
                                  .b = x.get(),
                                  .c = d_weight,
                                  .accumulate = accumulate,
                                  .workspace = {}});
}

constexpr Operator kLogits{.name = "router_logits",
                           .operator_class = OperatorClass::kRouting,
                           .forward = logits_forward,
                           .backward_input = logits_backward_input,
                           .backward_weight = logits_backward_weight,
                           .for_weight = {.inputs = bit(0)}};

void router_bias_forward(Step& s) {
  launch(s.context(), turbo::AddBias{.x = s.in_or_out(0), .bias = s.parameter().master, .y = s.out(0)});
}

void router_bias_backward_input(Step& s) { s.pass_d_in(0, 0); }

void router_bias_backward_weight(Step& s) {
  const auto [d_bias, accumulate] = s.d_weight();
  launch(s.context(), turbo::AddBiasBackwardWeight{
                          .d_y = s.d_out(0), .d_bias = d_bias, .accumulate = accumulate, .workspace = {}});
}

constexpr Operator kRouterBias{.name = "router_bias",
                               .operator_class = OperatorClass::kRouting,
                               .forward = router_bias_forward,
                               .backward_input = router_bias_backward_input,
                               .backward_weight = router_bias_backward_weight,
                               .in_place = true};

// --- route
// -----------------------------------------------------------------------------------------------------------

struct RouteAttributes {
  RoutingRule rule;
  std::int64_t expert_count;
  void *choice_bias, *given;  // null: none
  bool by_logits;
};

// Loads per segment for the balance loss, or nothing when there is no such loss.
class Loads {
 public:
  // `by_logits` [T, top_k]: the experts of the largest logits, where they are known.
  Loads(Step& s, const RoutingRule& rule, const Tensor& logits, const Tensor& by_logits) {
    if (rule.balance_scale == 0) return;
    load_.emplace(s.context().scratch, DType::kI32, Shape{rule.segments, logits.cols()});
    launch(s.context(),
           turbo::RouterLoad{
               .top_k = rule.router.top_k, .logits = logits, .chosen = by_logits, .load = load_->get()});
  }
  Tensor get() const { return load_ ? load_->get() : Tensor(); }

 private:
  std::optional<ScratchTensor> load_;
};

// Input: logits. Outputs: weights, experts, plan.
void route_forward(Step& s) {
  const auto a = s.attributes<RouteAttributes>();
  const RoutingRule& rule = a.rule;
  // In measure mode a bias has no address either, and nothing runs.
  const Tensor bias = a.choice_bias ? Tensor(a.choice_bias, DType::kF32, {a.expert_count}) : Tensor();
  const Tensor given = a.given ? Tensor(a.given, DType::kI32, s.out(1).shape) : Tensor();
  launch(s.context(), turbo::RouterForward{.rule = rule.router,
                                           .random = rule.random,
                                           .logits = s.in(0),
                                           .bias = bias,
                                           .given = given,
                                           .experts = s.out(1),
                                           .weights = s.out(0)});
  launch(s.context(), turbo::PlanRouting{.experts = s.out(1),
                                         .weights = rule.drop_lightest ? s.out(0) : Tensor(),
                                         .plan = s.out(2),
                                         .expert_count = a.expert_count,
                                         .capacity = rule.capacity});
}

void route_backward_input(Step& s) {
  const auto a = s.attributes<RouteAttributes>();
  const RoutingRule& rule = a.rule;
  const Loads loads(s, rule, s.in(0), a.by_logits ? s.out(1) : Tensor());
  const auto [d_logits, previous] = s.d_in(0);
  launch(s.context(), turbo::RouterBackward{.rule = rule.router,
                                            .logits = s.in(0),
                                            .experts = s.out(1),
                                            .d_weights = s.d_out(0),
                                            .load = loads.get(),
                                            .balance_scale = rule.balance_scale,
                                            .z_scale = rule.z_scale,
                                            .previous = previous,
                                            .d_logits = d_logits});
}

constexpr Operator kRoute{.name = "route",
                          .operator_class = OperatorClass::kRouting,
                          .forward = route_forward,
                          .backward_input = route_backward_input,
                          .for_input = {.inputs = bit(0), .outputs = bit(1)}};

struct ObserveAttributes {
  turbo::RouterRule router;
  std::int64_t segments, expert_count;
  bool balance, by_logits;
  void *load, *losses;
};

// Inputs: logits, experts, plan. No outputs: so nobody ever asks for a replay.
void observe_forward(Step& s) {
  const auto a = s.attributes<ObserveAttributes>();
  const Tensor logits = s.in(0), experts = s.in(1);
  const turbo::RoutingPlan plan(s.in(2), a.expert_count, experts.shape[0], experts.shape[1]);
  launch(s.context(), turbo::ExpertLoad{.experts = experts,
                                        .rows = plan.rows,
                                        .load = Tensor(a.load, DType::kI32, {a.expert_count + 1})});
  RoutingRule rule{.router = a.router, .segments = a.segments};
  rule.balance_scale = a.balance ? 1 : 0;
  const Loads loads(s, rule, logits, a.by_logits ? experts : Tensor());
  launch(s.context(), turbo::RouterLosses{.rule = a.router,
                                          .logits = logits,
                                          .load = loads.get(),
                                          .losses = Tensor(a.losses, DType::kF32, {2})});
}

constexpr Operator kObserve{
    .name = "observe_routing", .operator_class = OperatorClass::kRouting, .forward = observe_forward};

// Input: experts. No outputs, as above.
struct RecordAttributes {
  void* to;
};

void record_forward(Step& s) {
  turbo::Context& context = s.context();
  if (context.measuring()) return;
  context.stream.copy_on_device(s.attributes<RecordAttributes>().to, s.in(0).data, s.in(0).bytes());
}

constexpr Operator kRecord{
    .name = "record_routing", .operator_class = OperatorClass::kRouting, .forward = record_forward};

// --- permute, combine
// ------------------------------------------------------------------------------------------------

struct PermuteAttributes {
  std::int64_t expert_count, top_k;
};

turbo::RoutingPlan plan_of(Step& s, int input, std::int64_t rows) {
  const auto a = s.attributes<PermuteAttributes>();
  return {s.in(input), a.expert_count, rows / a.top_k, a.top_k};
}

void gather(Step& s, const turbo::RoutingPlan& plan, const Tensor& x, const Tensor& weights,
            const Tensor& out) {
  launch(s.context(), turbo::GatherRows{.x = x,
                                        .offsets = plan.offsets,
                                        .rows = plan.rows,
                                        .slots = plan.slots,
                                        .weights = weights,
                                        .out = out});
}

void weights_gradient(Step& s, const turbo::RoutingPlan& plan, int input, const Tensor& by_token,
                      const Tensor& by_row) {
  if (!s.needs_d_in(input)) return;
  const auto [d_weights, previous] = s.d_in(input);
  launch(
      s.context(),
      turbo::RowDots{
          .by_token = by_token, .by_row = by_row, .rows = plan.rows, .previous = previous, .out = d_weights});
}

// Inputs: x, plan and, if weighted, weights.
template <bool kWeighted>
void permute_forward(Step& s) {
  gather(s, plan_of(s, 1, s.out(0).rows()), s.in(0), kWeighted ? s.in(2) : Tensor(), s.out(0));
}

template <bool kWeighted>
void permute_backward(Step& s) {
  const Tensor d_out = s.d_out(0);
  const turbo::RoutingPlan plan = plan_of(s, 1, d_out.rows());
  if constexpr (kWeighted) weights_gradient(s, plan, 2, s.in(0), d_out);
  if (!s.needs_d_in(0)) return;
  const auto [d_x, previous] = s.d_in(0);
  launch(s.context(), turbo::CombineRows{.x = d_out,
                                         .rows = plan.rows,
                                         .weights = kWeighted ? s.in(2) : Tensor(),
                                         .previous = previous,
                                         .out = d_x});
}

template <bool kWeighted>
constexpr Operator kPermute{.name = "permute",
                            .operator_class = OperatorClass::kExperts,
                            .forward = permute_forward<kWeighted>,
                            .backward_input = permute_backward<kWeighted>,
                            .for_input = {.inputs = kWeighted ? bit(0) | bit(1) | bit(2) : bit(1)}};

// Inputs: rows, plan, the weights if weighted, and an addend if there is one.
template <bool kWeighted, bool kAddend>
void combine_forward(Step& s) {
  constexpr int kAddendInput = kWeighted ? 3 : 2;
  launch(s.context(), turbo::CombineRows{.x = s.in(0),
                                         .rows = plan_of(s, 1, s.in(0).rows()).rows,
                                         .weights = kWeighted ? s.in(2) : Tensor(),
                                         .previous = kAddend ? s.in(kAddendInput) : Tensor(),
                                         .out = s.out(0)});
}

template <bool kWeighted, bool kAddend>
void combine_backward(Step& s) {
  constexpr int kAddendInput = kWeighted ? 3 : 2;
  const Tensor d_out = s.d_out(0);
  const turbo::RoutingPlan plan = plan_of(s, 1, d_out.rows() * s.attributes<PermuteAttributes>().top_k);
  if constexpr (kWeighted) weights_gradient(s, plan, 2, d_out, s.in(0));
  if (s.needs_d_in(0)) {
    const auto [d_rows, previous] = s.fresh_d_in(0);
    gather(s, plan, d_out, kWeighted ? s.in(2) : Tensor(), d_rows);
    if (!previous.absent()) launch(s.context(), turbo::Add{.a = previous, .b = d_rows, .out = d_rows});
  }
  if (kAddend && s.needs_d_in(kAddendInput)) s.pass_d_in(kAddendInput, 0);
}

template <bool kWeighted, bool kAddend>
constexpr Operator kCombine{.name = "combine",
                            .operator_class = OperatorClass::kExperts,
                            .forward = combine_forward<kWeighted, kAddend>,
                            .backward_input = combine_backward<kWeighted, kAddend>,
                            .for_input = {.inputs = kWeighted ? bit(0) | bit(1) | bit(2) : bit(1)}};

// --- grouped linear
// --------------------------------------------------------------------------------------------------

struct NoAttributes {};

// Inputs: rows, plan. The parameter's first extent is the number of experts.
Tensor offsets_of(Step& s) { return s.in(1).slice(0, s.parameter().shape[0] + 1); }

void multiply(Step& s, turbo::GemmRole role, const Tensor& a, const Tensor& b, const Tensor& c,
              bool accumulate) {
  launch(s.context(), turbo::GroupedGemm{.role = role,
                                         .a = a,
                                         .b = b,
                                         .c = c,
                                         .offsets = offsets_of(s),
                                         .accumulate = accumulate,
                                         .workspace = {}});
}

void grouped_linear_forward(Step& s) {
  multiply(s, turbo::GemmRole::kForward, s.in(0), s.weight(), s.out(0), false);
}

void grouped_linear_backward_input(Step& s) {
  if (!s.needs_d_in(0)) return;
  const auto [d_x, previous] = s.fresh_d_in(0);
  multiply(s, turbo::GemmRole::kInputGradient, s.d_out(0), s.weight(), d_x, false);
  if (!previous.absent()) launch(s.context(), turbo::Add{.a = previous, .b = d_x, .out = d_x});
}

void grouped_linear_backward_weight(Step& s) {
  const auto [d_weight, accumulate] = s.d_weight();
  multiply(s, turbo::GemmRole::kWeightGradient, s.d_out(0), s.in(0), d_weight, accumulate);
}

constexpr Operator kGroupedLinear{.name = "grouped_linear",
                                  .operator_class = OperatorClass::kExperts,
                                  .forward = grouped_linear_forward,
                                  .backward_input = grouped_linear_backward_input,
                                  .backward_weight = grouped_linear_backward_weight,
                                  .for_input = {.inputs = bit(1)},
                                  .for_weight = {.inputs = bit(0) | bit(1)}};

void grouped_bias_forward(Step& s) {
  launch(s.context(), turbo::GroupedBias{
                          .x = s.in_or_out(0), .bias = s.weight(), .y = s.out(0), .offsets = offsets_of(s)});
}

void grouped_bias_backward_input(Step& s) { s.pass_d_in(0, 0); }

void grouped_bias_backward_weight(Step& s) {
  const auto [d_bias, accumulate] = s.d_weight();
  launch(s.context(),
         turbo::GroupedBiasBackward{
             .d_y = s.d_out(0), .d_bias = d_bias, .offsets = offsets_of(s), .accumulate = accumulate});
}

constexpr Operator kGroupedBias{.name = "grouped_bias",
                                .operator_class = OperatorClass::kExperts,
                                .forward = grouped_bias_forward,
                                .backward_input = grouped_bias_backward_input,
                                .backward_weight = grouped_bias_backward_weight,
                                .for_weight = {.inputs = bit(1)},
                                .in_place = true};

// --- clamped swiglu
// ----------------------------------------------------------------------------------------------------

struct ClampAttributes {
  float limit;
};

void clamped_swiglu_forward(Step& s) {
  launch(s.context(),
         turbo::ClampedSwigluForward{
             .gate_up = s.in(0), .out = s.out(0), .limit = s.attributes<ClampAttributes>().limit});
}

void clamped_swiglu_backward(Step& s) {
  const auto [d_gate_up, previous] = s.fresh_d_in(0);
  launch(s.context(), turbo::ClampedSwigluBackward{.gate_up = s.in(0),
                                                   .d_out = s.d_out(0),
                                                   .d_gate_up = d_gate_up,
                                                   .limit = s.attributes<ClampAttributes>().limit});
  if (!previous.absent()) launch(s.context(), turbo::Add{.a = previous, .b = d_gate_up, .out = d_gate_up});
}

constexpr Operator kClampedSwiglu{.name = "clamped_swiglu",
                                  .operator_class = OperatorClass::kActivation,
                                  .forward = clamped_swiglu_forward,
                                  .backward_input = clamped_swiglu_backward,
                                  .for_input = {.inputs = bit(0)}};

PermuteAttributes attributes_of(const Routing& r) { return {r.expert_count, r.weights.shape()[1]}; }

}  // namespace

// --- what model code calls
// -------------------------------------------------------------------------------------------

Value router_logits(const Value& x, Parameter& weight, double jitter, const turbo::RouterRandom& random) {
  const Shape shape{x.shape()[0], weight.shape[0]};
  return x.tape().record(kLogits, {&x}, &weight, {{DType::kF32, shape}},
                         LogitsAttributes{static_cast<float>(jitter), random})[0];
}

Value router_bias(Value logits, Parameter& bias) {
  return logits.tape().record(kRouterBias, {&logits}, &bias, {{DType::kF32, logits.shape()}},
                              NoAttributes{})[0];
}

Routing route(const Value& logits, const RoutingRule& rule, const Tensor& choice_bias, const Tensor& given) {
  const std::int64_t tokens = logits.shape()[0], experts = logits.shape()[1], top_k = rule.router.top_k;
  const Shape slots{tokens, top_k};
  const bool by_logits = choice_bias.absent() && given.absent() &&
                         rule.router.forced == turbo::RouterRule::Forced::kNo &&
                         rule.router.top_groups == rule.router.groups;
  auto [weights, chosen, plan] =
      logits.tape().record(kRoute, {&logits}, nullptr,
                           {{DType::kF32, slots},
                            {DType::kI32, slots, false},
                            {DType::kI32, turbo::RoutingPlan::shape(experts, tokens, top_k), false}},
                           RouteAttributes{rule, experts, choice_bias.data, given.data, by_logits});
  return {std::move(weights), std::move(chosen), std::move(plan), experts, by_logits};
}

void observe(const Value& logits, const Routing& routing, const RoutingRule& rule, const Tensor& load,
             const Tensor& losses) {
  logits.tape().record(kObserve, {&logits, &routing.experts, &routing.plan}, nullptr, {},
                       ObserveAttributes{.router = rule.router,
                                         .segments = rule.segments,
                                         .expert_count = routing.expert_count,
                                         .balance = rule.balance_scale != 0,
                                         .by_logits = routing.by_logits,
                                         .load = load.data,
                                         .losses = losses.data});
}

void record(const Routing& routing, const Tensor& experts) {
  routing.experts.tape().record(kRecord, {&routing.experts}, nullptr, {}, RecordAttributes{experts.data});
}

Value permute(const Value& x, const Routing& r, bool weighted) {
  Tape& tape = x.tape();
  const Tape::Output out{x.dtype(), {r.weights.shape().elements(), x.shape()[1]}};
  if (weighted)
    return tape.record(kPermute<true>, {&x, &r.plan, &r.weights}, nullptr, {out}, attributes_of(r))[0];
  return tape.record(kPermute<false>, {&x, &r.plan}, nullptr, {out}, attributes_of(r))[0];
}

Value combine(const Value& rows, const Routing& r, bool weighted, const Value& addend) {
  Tape& tape = rows.tape();
  const Tape::Output out{rows.dtype(), {r.weights.shape()[0], rows.shape()[1]}};
  const PermuteAttributes a = attributes_of(r);
  if (weighted && addend)
    return tape.record(kCombine<true, true>, {&rows, &r.plan, &r.weights, &addend}, nullptr, {out}, a)[0];
  if (weighted) return tape.record(kCombine<true, false>, {&rows, &r.plan, &r.weights}, nullptr, {out}, a)[0];
  if (addend) return tape.record(kCombine<false, true>, {&rows, &r.plan, &addend}, nullptr, {out}, a)[0];
  return tape.record(kCombine<false, false>, {&rows, &r.plan}, nullptr, {out}, a)[0];
}

Value grouped_linear(const Value& rows, Parameter& weight, const Routing& r) {
  const Shape shape{rows.shape()[0], weight.shape[1]};
  return rows.tape().record(kGroupedLinear, {&rows, &r.plan}, &weight, {{rows.dtype(), shape}},
                            NoAttributes{})[0];
}

Value grouped_bias(Value rows, Parameter& bias, const Routing& r) {
  return rows.tape().record(kGroupedBias, {&rows, &r.plan}, &bias, {{rows.dtype(), rows.shape()}},
                            NoAttributes{})[0];
}

Value clamped_swiglu(const Value& gate_up, double limit) {
  const Shape shape{gate_up.shape()[0], gate_up.shape()[1] / 2};
  return gate_up.tape().record(kClampedSwiglu, {&gate_up}, nullptr, {{gate_up.dtype(), shape}},
                               ClampAttributes{static_cast<float>(limit)})[0];
}

}  // namespace primus::engine
