#include "engine/operators/delta_rule.h"

#include <array>
#include <optional>

#include "base/check.h"
#include "engine/parallel/head_exchange.h"

namespace primus::engine {
namespace {

using turbo::launch;

struct Attributes {
  turbo::DeltaRuleShape shape;  // this rank's heads
  ContextParallel* context;     // null: this rank has all tokens
};

struct DeltaRule {
  enum In : InputName { kQkv, kG, kBeta, kFirstKey };
  enum Out : OutputName { kOut };
};

// The operator's inputs, converted to this rank's heads and all tokens of the sequences.
class OfHeads {
 public:
  OfHeads(OperatorCall& op, const Attributes& a)
      : op_(op),
        s_(a.shape),
        ranks_(a.context->ranks()),
        exchange(op.context(), *a.context, s_.batch, s_.sequence),
        qkv_(scratch(), op.in(DeltaRule::kQkv).dtype, {s_.rows(), s_.width()}),
        g_(scratch(), DType::kF32, {s_.rows(), s_.gates()}),
        beta_(scratch(), DType::kF32, {s_.rows(), s_.value_heads}) {
    exchange.to_heads(op.in(DeltaRule::kQkv), qkv(), qkv_columns());
    exchange.to_heads(op.in(DeltaRule::kG), g(), columns(s_.gates()));
    exchange.to_heads(op.in(DeltaRule::kBeta), beta(), columns(s_.value_heads));
    if (!op.has_in(DeltaRule::kFirstKey)) return;
    first_key_.emplace(scratch(), DType::kI32, Shape{s_.rows()});
    exchange.gather_first_keys(op.in(DeltaRule::kFirstKey), first_key());
  }

  Tensor qkv() const { return qkv_.get(); }
  Tensor g() const { return g_.get(); }
  Tensor beta() const { return beta_.get(); }
  Tensor first_key() const { return first_key_ ? first_key_->get() : Tensor(); }

  std::array<HeadExchange::Columns, 3> qkv_columns() const {
    const std::int64_t keys = s_.k_column();
    return {{{0, keys}, {ranks_ * keys, keys}, {2 * ranks_ * keys, s_.out_width()}}};
  }
  // Describes the columns of a tensor whose rows have `of_rank` columns per rank.
  static std::array<HeadExchange::Columns, 1> columns(std::int64_t of_rank) { return {{{0, of_rank}}}; }

 private:
  Arena& scratch() const { return op_.context().scratch; }

  OperatorCall& op_;
  const turbo::DeltaRuleShape& s_;
  std::int64_t ranks_;

 public:
  const HeadExchange exchange;

 private:
  ScratchTensor qkv_, g_, beta_;
  std::optional<ScratchTensor> first_key_;
};

void run_forward(OperatorCall& op, const turbo::DeltaRuleShape& shape, const Tensor& qkv, const Tensor& g,
                 const Tensor& beta, const Tensor& first_key, const Tensor& out) {
  launch(op.context(), turbo::DeltaRuleForward{.shape = shape,
                                               .qkv = qkv,
                                               .g = g,
                                               .beta = beta,
                                               .first_key = first_key,
                                               .out = out,
                                               .workspace = {}});
}

void forward(OperatorCall& op) {
  const auto a = op.attributes<Attributes>();
  if (!a.context)
    return run_forward(op, a.shape, op.in(DeltaRule::kQkv), op.in(DeltaRule::kG), op.in(DeltaRule::kBeta),
                       op.optional_in(DeltaRule::kFirstKey), op.out(DeltaRule::kOut));
  const OfHeads in(op, a);
  const ScratchTensor out(op.context().scratch, op.out(DeltaRule::kOut).dtype,
                          {a.shape.rows(), a.shape.out_width()});
  run_forward(op, a.shape, in.qkv(), in.g(), in.beta(), in.first_key(), out.get());
  in.exchange.to_tokens(out.get(), op.out(DeltaRule::kOut), OfHeads::columns(a.shape.out_width()));
}

struct Gradients {
  Tensor qkv, g, beta;
};

void run_backward(OperatorCall& op, const turbo::DeltaRuleShape& shape, const Tensor& qkv, const Tensor& g,
                  const Tensor& beta, const Tensor& first_key, const Tensor& d_out, const Gradients& d) {
  launch(op.context(), turbo::DeltaRuleBackward{.shape = shape,
                                                .qkv = qkv,
                                                .g = g,
                                                .beta = beta,
                                                .first_key = first_key,
                                                .d_out = d_out,
                                                .d_qkv = d.qkv,
                                                .d_g = d.g,
                                                .d_beta = d.beta,
                                                .workspace = {}});
}

// Memory for the gradient of an input, even if the gradient is not needed.
class Target {
 public:
  Target(OperatorCall& op, InputPlace input) : op_(op) {
    if (op.needs_d_in(input)) {
      wanted_ = op.fresh_d_in(input);
    } else {
      unwanted_.emplace(op.context().scratch, op.in(input).dtype, op.in(input).shape);
    }
  }
  Tensor out() const { return wanted_ ? wanted_->out : unwanted_->get(); }
  void finish() const {
    if (wanted_) add_previous(op_, *wanted_);
  }

 private:
  OperatorCall& op_;
  std::optional<OperatorCall::Target> wanted_;
  std::optional<ScratchTensor> unwanted_;
};

void backward_input(OperatorCall& op) {
  const auto a = op.attributes<Attributes>();
  const turbo::DeltaRuleShape& s = a.shape;
  const Target d_qkv(op, DeltaRule::kQkv), d_g(op, DeltaRule::kG), d_beta(op, DeltaRule::kBeta);
  if (!a.context) {
    run_backward(op, s, op.in(DeltaRule::kQkv), op.in(DeltaRule::kG), op.in(DeltaRule::kBeta),
                 op.optional_in(DeltaRule::kFirstKey), op.d_out(DeltaRule::kOut),
                 {d_qkv.out(), d_g.out(), d_beta.out()});
  } else {
    Arena& scratch = op.context().scratch;
    const OfHeads in(op, a);
    const ScratchTensor d_out(scratch, in.qkv().dtype, {s.rows(), s.out_width()});
    const ScratchTensor qkv(scratch, in.qkv().dtype, in.qkv().shape);
    const ScratchTensor g(scratch, DType::kF32, in.g().shape), beta(scratch, DType::kF32, in.beta().shape);
    in.exchange.to_heads(op.d_out(DeltaRule::kOut), d_out.get(), OfHeads::columns(s.out_width()));
    run_backward(op, s, in.qkv(), in.g(), in.beta(), in.first_key(), d_out.get(),
                 {qkv.get(), g.get(), beta.get()});
    in.exchange.to_tokens(qkv.get(), d_qkv.out(), in.qkv_columns());
    in.exchange.to_tokens(g.get(), d_g.out(), OfHeads::columns(s.gates()));
    in.exchange.to_tokens(beta.get(), d_beta.out(), OfHeads::columns(s.value_heads));
  }
  for (const Target* target : {&d_qkv, &d_g, &d_beta}) target->finish();
}

constexpr Operator kDeltaRule{
    .name = "delta_rule",
    .operator_class = OperatorClass::kAttention,
    .forward = forward,
    .backward_input = backward_input,
    .for_input = saves(DeltaRule::kQkv, DeltaRule::kG, DeltaRule::kBeta, DeltaRule::kFirstKey)};

// --- with a cache

// Attributes may hold pointers: the call runs immediately, while the objects still exist.
struct CachedAttributes {
  turbo::DeltaRuleShape shape;
  const KvCacheLayer* layer;
  const turbo::PagedSequences* sequences;
};

void cached_forward(OperatorCall& op) {
  const auto a = op.attributes<CachedAttributes>();
  launch(op.context(), turbo::CachedDeltaRule{.sequences = *a.sequences,
                                              .shape = a.shape,
                                              .spare = kDeltaRuleSpare,
                                              .qkv = op.in(DeltaRule::kQkv),
                                              .g = op.in(DeltaRule::kG),
                                              .beta = op.in(DeltaRule::kBeta),
                                              .state = a.layer->state,
                                              .recent = a.layer->recent,
                                              .committed = a.layer->committed,
                                              .out = op.out(DeltaRule::kOut),
                                              .workspace = {}});
}

constexpr Operator kCachedDeltaRule{
    .name = "cached_delta_rule", .operator_class = OperatorClass::kAttention, .forward = cached_forward};

struct NetAttributes {
  CachedAttributes cached;
  DeltaNetParameters parameters;
};

turbo::CachedDeltaRule net_step(const NetAttributes& a, const Tensor& wide, const Tensor& out) {
  const KvCacheLayer& layer = *a.cached.layer;
  const DeltaNetParameters& p = a.parameters;
  return {.sequences = *a.cached.sequences,
          .shape = a.cached.shape,
          .spare = kDeltaRuleSpare,
          .qkv = {},
          .g = {},
          .beta = {},
          .state = layer.state,
          .recent = layer.recent,
          .committed = layer.committed,
          .out = out,
          .around = {.wide = wide,
                     .kernel = p.kernel->value,
                     .ring = layer.ring,
                     .a_log = p.a_log->value,
                     .dt_bias = p.dt_bias->value,
                     .norm = p.norm->value,
                     .eps = static_cast<float>(p.epsilon)},
          .workspace = {}};
}

NetAttributes net_attributes(const Value& wide, const DeltaNetParameters& parameters,
                             const turbo::DeltaRuleShape& shape, const CachedSequences& cache) {
  turbo::DeltaRuleShape s = shape;
  s.batch = 1, s.sequence = wide.shape()[0];
  return {{s, cache.layer, cache.sequences}, parameters};
}

void net_forward(OperatorCall& op) {
  launch(op.context(), net_step(op.attributes<NetAttributes>(), op.in(Unary::kX), op.out(Unary::kY)));
}

constexpr Operator kDeltaNetStep{
    .name = "delta_net_step", .operator_class = OperatorClass::kAttention, .forward = net_forward};

}  // namespace

Value delta_rule(const Value& qkv, const Value& g, const Value& beta, const turbo::DeltaRuleShape& shape,
                 const DeltaRuleOptions& options) {
  Tape& tape = qkv.tape();
  const Tape::Output out{DeltaRule::kOut, qkv.dtype(), Shape{shape.rows(), shape.out_width()}};
  turbo::DeltaRuleShape s = shape;
  if (const KvCacheLayer* layer = options.cache.layer) {
    PRIMUS_CHECK("delta_rule", !tape.training() && !options.first_key && !options.context);
    s.batch = 1, s.sequence = shape.rows();
    return tape.record(kCachedDeltaRule,
                       {{DeltaRule::kQkv, qkv}, {DeltaRule::kG, g}, {DeltaRule::kBeta, beta}}, nullptr, {out},
                       CachedAttributes{s, layer, options.cache.sequences})[DeltaRule::kOut];
  }
  ContextParallel* const context =
      options.context && options.context->ranks() > 1 ? options.context : nullptr;
  if (context) {
    const std::int64_t ranks = context->ranks();
    PRIMUS_CHECK("delta_rule", delta_rule_divides(shape.key_heads, ranks));
    s.sequence *= ranks, s.key_heads /= ranks, s.value_heads /= ranks;
  }
  return tape.record(kDeltaRule,
                     {{DeltaRule::kQkv, qkv},
                      {DeltaRule::kG, g},
                      {DeltaRule::kBeta, beta},
                      {DeltaRule::kFirstKey, options.first_key}},
                     nullptr, {out}, Attributes{s, context})[DeltaRule::kOut];
}

bool takes_delta_net_step(const Value& wide, const DeltaNetParameters& parameters,
                          const turbo::DeltaRuleShape& shape, const CachedSequences& cache) {
  return is_taken(wide.tape().context().device,
                  net_step(net_attributes(wide, parameters, shape, cache), wide.tensor(), {}));
}

Value delta_net_step(const Value& wide, const DeltaNetParameters& parameters,
                     const turbo::DeltaRuleShape& shape, const CachedSequences& cache) {
  return wide.tape().record(kDeltaNetStep, {{Unary::kX, wide}}, nullptr,
                            {{Unary::kY, wide.dtype(), {wide.shape()[0], shape.out_width()}}},
                            net_attributes(wide, parameters, shape, cache))[Unary::kY];
}

}  // namespace primus::engine
