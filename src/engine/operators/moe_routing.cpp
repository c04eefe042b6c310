// The routing of tokens to experts (moe_operators.h): scores, choices, their losses, and counters.
#include <optional>

#include "engine/operators/few_tokens.h"
#include "engine/operators/linear_products.h"
#include "engine/operators/moe_operators.h"
#include "engine/parallel/data_parallel.h"
#include "tensor/scratch_tensor.h"
#include "turbo/bias/bias.h"
#include "turbo/linear/linear.h"
#include "turbo/moe_permute/moe_permute.h"

namespace primus::engine {
namespace {

using turbo::launch;

// ---- router logits ------------------------------------------------------------------------------

struct LogitsAttributes {
  float jitter;
  turbo::RouterRandom random;
};

// Returns `random` with the token numbers from input `i`, if the call has this input.
turbo::RouterRandom with_tokens(const OperatorCall& op, turbo::RouterRandom random, InputPlace i) {
  if (op.has_in(i)) random.tokens = op.in(i);
  return random;
}

// The router's input: the hidden states. With jitter, it is a perturbed fp32 copy in scratch memory.
class Input {
 public:
  explicit Input(OperatorCall& op) : tensor_(op.in(Product::kX)) {
    const auto a = op.attributes<LogitsAttributes>();
    if (a.jitter == 0) return;
    copy_.emplace(op.context().scratch, DType::kF32, tensor_.shape);
    launch(op.context(), turbo::RouterJitter{.x = tensor_,
                                             .previous = {},
                                             .out = copy_->get(),
                                             .jitter = a.jitter,
                                             .random = with_tokens(op, a.random, Product::kTokens)});
    tensor_ = copy_->get();
  }
  const Tensor& get() const { return tensor_; }

 private:
  Tensor tensor_;
  std::optional<ScratchTensor> copy_;
};

void logits_forward(OperatorCall& op) {
  const Input x(op);
  forward_product(op, x.get(), op.weight());
}

void logits_backward_input(OperatorCall& op) {
  if (!op.needs_d_in(Product::kX)) return;
  const auto a = op.attributes<LogitsAttributes>();
  if (a.jitter == 0) return input_gradient_product(op, op.weight());
  const auto [d_x, previous] = op.d_in(Product::kX);
  const ScratchTensor d_input(op.context().scratch, DType::kF32, d_x.shape);
  launch(op.context(), turbo::Gemm{.role = turbo::GemmRole::kInputGradient,
                                   .a = op.d_out(Product::kY),
                                   .b = op.weight(),
                                   .c = d_input.get(),
                                   .accumulate = false,
                                   .workspace = {}});
  launch(op.context(), turbo::RouterJitter{.x = d_input.get(),
                                           .previous = previous,
                                           .out = d_x,
                                           .jitter = a.jitter,
                                           .random = with_tokens(op, a.random, Product::kTokens)});
}

void logits_backward_weight(OperatorCall& op) {
  const Input x(op);
  weight_gradient_product(op, x.get());
}

constexpr Operator kLogits{.name = "router_logits",
                           .operator_class = OperatorClass::kRouting,
                           .forward = logits_forward,
                           .backward_input = logits_backward_input,
                           .backward_weight = logits_backward_weight,
                           .for_input = saves(Product::kTokens),
                           .for_weight = saves(Product::kX, Product::kTokens)};

void router_bias_forward(OperatorCall& op) {
  launch(
      op.context(),
      turbo::AddBias{.x = op.in_or_out(Unary::kX, Unary::kY), .bias = op.weight(), .y = op.out(Unary::kY)});
}

void router_bias_backward_input(OperatorCall& op) { op.pass_d_in(Unary::kX, Unary::kY); }

void router_bias_backward_weight(OperatorCall& op) {
  const auto [d_bias, accumulate] = op.d_weight();
  launch(op.context(),
         turbo::AddBiasBackwardWeight{
             .d_y = op.d_out(Unary::kY), .d_bias = d_bias, .accumulate = accumulate, .workspace = {}});
}

constexpr Operator kRouterBias{.name = "router_bias",
                               .operator_class = OperatorClass::kRouting,
                               .forward = router_bias_forward,
                               .backward_input = router_bias_backward_input,
                               .backward_weight = router_bias_backward_weight,
                               .in_place = true};

// ---- step_load ----------------------------------------------------------------------------------

struct StepLoadAttributes {
  std::int32_t top_k;
  void* running;
  DataParallel* parallel;
};

struct StepLoad {
  enum In : InputName { kLogits };
  enum Out : OutputName { kLoad };
};

void step_load_forward(OperatorCall& op) {
  const auto a = op.attributes<StepLoadAttributes>();
  const Tensor load = op.out(StepLoad::kLoad);
  launch(op.context(),
         turbo::RouterLoad{.top_k = a.top_k, .logits = op.in(StepLoad::kLogits), .chosen = {}, .load = load});
  a.parallel->sum_over_data(load);
  launch(op.context(),
         turbo::RunningLoad{.load = load, .running = Tensor(a.running, DType::kI32, {load.shape[1]})});
}

constexpr Operator kStepLoad{.name = "step_load",
                             .operator_class = OperatorClass::kRouting,
                             .forward = step_load_forward,
                             .once = true};

// ---- route --------------------------------------------------------------------------------------

struct RouteAttributes {
  RoutingRule rule;
  std::int64_t expert_count;
  void *choice_bias, *given;  // null if not given
  bool by_logits;
};

// The expert loads of each segment for the balance loss; empty if the balance loss is off.
class Loads {
 public:
  // `by_logits` [T, top_k]: the experts with the largest logits; absent if they are not known.
  Loads(OperatorCall& op, const RoutingRule& rule, const Tensor& logits, const Tensor& by_logits) {
    if (rule.balance_scale == 0) return;
    load_.emplace(op.context().scratch, DType::kI32, Shape{rule.segments, logits.cols()});
    launch(op.context(),
           turbo::RouterLoad{
               .top_k = rule.router.top_k, .logits = logits, .chosen = by_logits, .load = load_->get()});
  }
  Tensor get() const { return load_ ? load_->get() : Tensor(); }

 private:
  std::optional<ScratchTensor> load_;
};

struct Route {
  // kTokens: token numbers, if random numbers are drawn. kStepLoad: the step's loads. kByTable: experts that
  // experts_by_table() chose.
  enum In : InputName { kLogits, kTokens, kStepLoad, kByTable };
  enum Out : OutputName { kWeights, kExperts, kPlan };
};

void choose_forward(OperatorCall& op) {
  const auto a = op.attributes<RouteAttributes>();
  const RoutingRule& rule = a.rule;
  // In measure mode choice_bias is null even if a bias exists. No kernel runs, so this has no effect.
  const Tensor bias = a.choice_bias ? Tensor(a.choice_bias, DType::kF32, {a.expert_count}) : Tensor();
  Tensor given = a.given ? Tensor(a.given, DType::kI32, op.out(Route::kExperts).shape) : Tensor();
  if (given.absent()) given = op.optional_in(Route::kByTable);
  launch(op.context(), turbo::RouterForward{.rule = rule.router,
                                            .random = with_tokens(op, rule.random, Route::kTokens),
                                            .logits = op.in(Route::kLogits),
                                            .bias = bias,
                                            .given = given,
                                            .experts = op.out(Route::kExperts),
                                            .weights = op.out(Route::kWeights)});
}

void route_forward(OperatorCall& op) {
  choose_forward(op);
  const auto a = op.attributes<RouteAttributes>();
  const RoutingRule& rule = a.rule;
  launch(op.context(), turbo::PlanRouting{.experts = op.out(Route::kExperts),
                                          .weights = rule.drop_lightest ? op.out(Route::kWeights) : Tensor(),
                                          .plan = op.out(Route::kPlan),
                                          .expert_count = a.expert_count,
                                          .capacity = rule.capacity,
                                          .sequences = rule.sequences});
}

void route_backward_input(OperatorCall& op) {
  const auto a = op.attributes<RouteAttributes>();
  const RoutingRule& rule = a.rule;
  std::optional<Loads> own;
  if (!op.has_in(Route::kStepLoad))
    own.emplace(op, rule, op.in(Route::kLogits), a.by_logits ? op.out(Route::kExperts) : Tensor());
  const auto [d_logits, previous] = op.d_in(Route::kLogits);
  launch(op.context(), turbo::RouterBackward{.rule = rule.router,
                                             .logits = op.in(Route::kLogits),
                                             .experts = op.out(Route::kExperts),
                                             .d_weights = op.d_out(Route::kWeights),
                                             .load = own ? own->get() : op.in(Route::kStepLoad),
                                             .balance_scale = rule.balance_scale * rule.load_share,
                                             .z_scale = rule.z_scale,
                                             .previous = previous,
                                             .d_logits = d_logits});
}

constexpr Operator kRoute{.name = "route",
                          .operator_class = OperatorClass::kRouting,
                          .forward = route_forward,
                          .backward_input = route_backward_input,
                          .for_input = saves(Route::kLogits, Route::kStepLoad, Route::kExperts)};

constexpr Operator kChoose{
    .name = "choose_experts", .operator_class = OperatorClass::kRouting, .forward = choose_forward};

struct Table {
  enum In : InputName { kTokens };
  enum Out : OutputName { kExperts };
};

void table_forward(OperatorCall& op) {
  launch(op.context(),
         turbo::RouterTable{
             .tokens = op.in(Table::kTokens), .table = op.weight(), .experts = op.out(Table::kExperts)});
}

constexpr Operator kTable{
    .name = "experts_by_table", .operator_class = OperatorClass::kRouting, .forward = table_forward};

struct ObserveAttributes {
  turbo::RouterRule router;
  std::int64_t segments, expert_count;
  bool balance, by_logits;
  float load_share;
  void *load, *losses;
};

struct Observe {
  enum In : InputName { kLogits, kExperts, kPlan, kStepLoad };  // kStepLoad: the step's loads, if used
};

// The operator has no outputs, so it is never replayed.
void observe_forward(OperatorCall& op) {
  const auto a = op.attributes<ObserveAttributes>();
  const Tensor logits = op.in(Observe::kLogits), experts = op.in(Observe::kExperts);
  const turbo::RoutingPlan plan(op.in(Observe::kPlan), a.expert_count, experts.shape[0], experts.shape[1]);
  launch(op.context(), turbo::ExpertLoad{.experts = experts,
                                         .rows = plan.rows,
                                         .load = Tensor(a.load, DType::kI32, {a.expert_count + 1})});
  RoutingRule rule{.router = a.router, .segments = a.segments};
  rule.balance_scale = a.balance ? 1 : 0;
  std::optional<Loads> own;
  if (!op.has_in(Observe::kStepLoad)) own.emplace(op, rule, logits, a.by_logits ? experts : Tensor());
  launch(op.context(), turbo::RouterLosses{.rule = a.router,
                                           .logits = logits,
                                           .load = own ? own->get() : op.in(Observe::kStepLoad),
                                           .losses = Tensor(a.losses, DType::kF32, {2}),
                                           .load_share = a.load_share});
}

constexpr Operator kObserve{
    .name = "observe_routing", .operator_class = OperatorClass::kRouting, .forward = observe_forward};

// Like observe, the operator has no outputs, so it is never replayed.
struct MarginAttributes {
  turbo::MarginBins bins;
  std::int32_t top_k;
  Tensor bias, counts;
};

struct ObserveMargins {
  enum In : InputName { kLogits };
};

void observe_margins_forward(OperatorCall& op) {
  const auto a = op.attributes<MarginAttributes>();
  launch(op.context(), turbo::MarginHistogram{.bins = a.bins,
                                              .top_k = a.top_k,
                                              .logits = op.in(ObserveMargins::kLogits),
                                              .bias = a.bias,
                                              .counts = a.counts,
                                              .workspace = {}});
}

constexpr Operator kObserveMargins{
    .name = "observe_margins", .operator_class = OperatorClass::kRouting, .forward = observe_margins_forward};

// Like observe, the operator has no outputs, so it is never replayed.
struct RecordAttributes {
  void* to;
};

struct Record {
  enum In : InputName { kExperts };
};

void record_forward(OperatorCall& op) {
  turbo::Context& context = op.context();
  if (context.measuring()) return;
  context.stream.copy_on_device(op.attributes<RecordAttributes>().to, op.in(Record::kExperts).data,
                                op.in(Record::kExperts).bytes());
}

constexpr Operator kRecord{
    .name = "record_routing", .operator_class = OperatorClass::kRouting, .forward = record_forward};

}  // namespace

// ---- functions for model code -------------------------------------------------------------------

Value router_logits(const Value& x, Parameter& weight, double jitter, const turbo::RouterRandom& random,
                    const Value& tokens) {
  const Tape::Output out{Product::kY, DType::kF32, {x.shape()[0], weight.shape[0]}};
  const LogitsAttributes a{static_cast<float>(jitter), random};
  if (jitter == 0) return x.tape().record(kLogits, {{Product::kX, x}}, &weight, {out}, a)[Product::kY];
  return x.tape().record(kLogits, {{Product::kX, x}, {Product::kTokens, tokens}}, &weight, {out},
                         a)[Product::kY];
}

Value router_bias(Value logits, Parameter& bias) {
  return logits.tape().record(kRouterBias, {{Unary::kX, logits}}, &bias,
                              {{Unary::kY, DType::kF32, logits.shape()}})[Unary::kY];
}

Value step_load(const Value& logits, const RoutingRule& rule, const Tensor& running, DataParallel& parallel) {
  return logits.tape().record(
      kStepLoad, {{StepLoad::kLogits, logits}}, nullptr,
      {{StepLoad::kLoad, DType::kI32, {1, logits.shape()[1]}, false}},
      StepLoadAttributes{rule.router.top_k, running.data, &parallel})[StepLoad::kLoad];
}

Routing route(const Value& logits, const RoutingRule& rule, const Tensor& choice_bias, const Tensor& given,
              const Value& tokens, const Value& load, const Value& by_table) {
  const std::int64_t count = logits.shape()[0], experts = logits.shape()[1], top_k = rule.router.top_k;
  const Shape slots{count, top_k};
  const bool by_logits = choice_bias.absent() && given.absent() && !by_table &&
                         rule.router.forced == turbo::RouterRule::Forced::kNo &&
                         rule.router.top_groups == rule.router.groups;
  const Shape of_plan = turbo::RoutingPlan::shape(experts, count, top_k);
  const RouteAttributes a{.rule = rule,
                          .expert_count = experts,
                          .choice_bias = choice_bias.data,
                          .given = given.data,
                          .by_logits = by_logits};
  Tape::Outputs recorded = logits.tape().record(kRoute,
                                                {{Route::kLogits, logits},
                                                 {Route::kTokens, tokens},
                                                 {Route::kStepLoad, load},
                                                 {Route::kByTable, by_table}},
                                                nullptr,
                                                {{Route::kWeights, DType::kF32, slots},
                                                 {Route::kExperts, DType::kI32, slots, false},
                                                 {Route::kPlan, DType::kI32, of_plan, false}},
                                                a);
  return {.weights = std::move(recorded[Route::kWeights]),
          .experts = std::move(recorded[Route::kExperts]),
          .plan = std::move(recorded[Route::kPlan]),
          .expert_count = experts,
          .rows = count * top_k,
          .by_logits = by_logits};
}

Routing choose_experts(const Value& logits, const RoutingRule& rule, const Tensor& choice_bias,
                       const Tensor& given, const Value& by_table) {
  const std::int64_t experts = logits.shape()[1];
  const Shape slots{logits.shape()[0], rule.router.top_k};
  const RouteAttributes a{.rule = rule,
                          .expert_count = experts,
                          .choice_bias = choice_bias.data,
                          .given = given.data,
                          .by_logits = false};
  Tape::Outputs recorded = logits.tape().record(
      kChoose, {{Route::kLogits, logits}, {Route::kByTable, by_table}}, nullptr,
      {{Route::kWeights, DType::kF32, slots}, {Route::kExperts, DType::kI32, slots, false}}, a);
  return {.weights = std::move(recorded[Route::kWeights]),
          .experts = std::move(recorded[Route::kExperts]),
          .plan = {},
          .expert_count = experts,
          .rows = slots.elements(),
          .by_logits = false};
}

Value experts_by_table(const Value& tokens, Parameter& table) {
  const Shape slots{tokens.shape().elements(), table.shape[1]};
  return tokens.tape().record(kTable, {{Table::kTokens, tokens}}, &table,
                              {{Table::kExperts, DType::kI32, slots, false}})[Table::kExperts];
}

void observe(const Value& logits, const Routing& routing, const RoutingRule& rule, const Tensor& load,
             const Tensor& losses, const Value& step_load) {
  logits.tape().record(kObserve,
                       {{Observe::kLogits, logits},
                        {Observe::kExperts, routing.experts},
                        {Observe::kPlan, routing.plan},
                        {Observe::kStepLoad, step_load}},
                       nullptr, {},
                       ObserveAttributes{.router = rule.router,
                                         .segments = rule.segments,
                                         .expert_count = routing.expert_count,
                                         .balance = rule.balance_scale != 0,
                                         .by_logits = routing.by_logits,
                                         .load_share = rule.load_share,
                                         .load = load.data,
                                         .losses = losses.data});
}

void observe_margins(const Value& logits, const RoutingRule& rule, const Tensor& choice_bias,
                     const turbo::MarginBins& bins, const Tensor& counts) {
  logits.tape().record(kObserveMargins, {{ObserveMargins::kLogits, logits}}, nullptr, {},
                       MarginAttributes{bins, rule.router.top_k, choice_bias, counts});
}

void record(const Routing& routing, const Tensor& experts) { record(routing.experts, experts); }

void record(const Value& numbers, const Tensor& to) {
  numbers.tape().record(kRecord, {{Record::kExperts, numbers}}, nullptr, {}, RecordAttributes{to.data});
}

}  // namespace primus::engine
