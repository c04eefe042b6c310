// Attention over a fused projection (with gradients) and over a cache (without gradients), and the operators
// that prepare queries and keys for attention.
#include "base/check.h"
#include "engine/operators/fp32_weight_gradient.h"
#include "engine/operators/fused_columns.h"
#include "engine/operators/operators.h"
#include "engine/parallel/context_attention.h"
#include "turbo/elementwise/elementwise.h"
#include "turbo/position_scale/position_scale.h"
#include "turbo/rope/rope.h"

namespace primus::engine {
namespace {

using turbo::launch;

// --- head_norm

struct HeadNormAttributes {
  turbo::HeadNormShape shape;
  float epsilon;
};

Tensor optional_weight(const OperatorCall& op) { return op.has_parameter() ? op.weight() : Tensor(); }
float offset_of_weight(const OperatorCall& op) { return op.has_parameter() ? op.parameter().norm_offset : 0; }

struct HeadNorm {
  enum In : InputName { kX };
  enum Out : OutputName { kY, kRstd };
};

void head_norm_forward(OperatorCall& op) {
  const auto a = op.attributes<HeadNormAttributes>();
  launch(op.context(), turbo::HeadNormForward{.shape = a.shape,
                                              .x = op.in(HeadNorm::kX),
                                              .weight = optional_weight(op),
                                              .y = op.out(HeadNorm::kY),
                                              .rstd = op.out(HeadNorm::kRstd),
                                              .eps = a.epsilon,
                                              .offset = offset_of_weight(op)});
}

void head_norm_backward_input(OperatorCall& op) {
  const auto [d_x, previous] = op.fresh_d_in(HeadNorm::kX);
  launch(op.context(), turbo::HeadNormBackwardInput{.shape = op.attributes<HeadNormAttributes>().shape,
                                                    .x = op.in(HeadNorm::kX),
                                                    .weight = optional_weight(op),
                                                    .rstd = op.out(HeadNorm::kRstd),
                                                    .d_y = op.d_out(HeadNorm::kY),
                                                    .d_x = d_x,
                                                    .offset = offset_of_weight(op)});
  add_previous(op, {d_x, previous});
}

void head_norm_backward_weight(OperatorCall& op) {
  const auto [d_weight, accumulate] = op.d_weight();
  launch(op.context(), turbo::HeadNormBackwardWeight{.shape = op.attributes<HeadNormAttributes>().shape,
                                                     .x = op.in(HeadNorm::kX),
                                                     .rstd = op.out(HeadNorm::kRstd),
                                                     .d_y = op.d_out(HeadNorm::kY),
                                                     .d_weight = d_weight,
                                                     .accumulate = accumulate,
                                                     .workspace = {}});
}

constexpr Operator kHeadNorm{.name = "head_norm",
                             .operator_class = OperatorClass::kNorm,
                             .forward = head_norm_forward,
                             .backward_input = head_norm_backward_input,
                             .backward_weight = head_norm_backward_weight,
                             .for_input = saves(HeadNorm::kX, HeadNorm::kRstd),
                             .for_weight = saves(HeadNorm::kX, HeadNorm::kRstd)};

// --- rope

struct Rotation {
  enum In : InputName { kX, kPositions };
  enum Out : OutputName { kY };
};

// Returns an operator that applies to each row a linear function that depends on the row's position.
// kApply(op, from, to, backward) maps the input to the output or, if `backward`, the output's gradient to the
// input's.
template <void (*kApply)(OperatorCall&, const Tensor&, const Tensor&, bool)>
constexpr Operator by_position(std::string_view name) {
  return {.name = name,
          .operator_class = OperatorClass::kRope,
          // If the call runs in place, the output occupies the input's memory, so the function reads its
          // input from the output tensor.
          .forward =
              [](OperatorCall& op) {
                kApply(op, op.in_or_out(Rotation::kX, Rotation::kY), op.out(Rotation::kY), false);
              },
          // Transforms the output's gradient in place, and passes the result on as the input's gradient. This
          // is safe because only this operator reads the output's gradient.
          .backward_input =
              [](OperatorCall& op) {
                kApply(op, op.d_out(Rotation::kY), op.complete_d_out(Rotation::kY), true);
                op.pass_d_in(Rotation::kX, Rotation::kY);
              },
          .for_input = saves(Rotation::kPositions),
          .in_place = true};
}

template <class Attributes>
Value record_by_position(const Operator& function, const Value& x, const Value& positions,
                         const Attributes& attributes) {
  return x.tape().record(function, {{Rotation::kX, x}, {Rotation::kPositions, positions}}, nullptr,
                         {{Rotation::kY, x.dtype(), x.shape()}}, attributes)[Rotation::kY];
}

struct RopeAttributes {
  Tensor table;
  RopeShape shape;
};

void rotate(OperatorCall& op, const Tensor& x, const Tensor& y, bool backward) {
  const auto a = op.attributes<RopeAttributes>();
  launch(op.context(), turbo::Rope{.x = x,
                                   .y = y,
                                   .positions = op.in(Rotation::kPositions),
                                   .table = a.table,
                                   .heads = a.shape.heads,
                                   .head_dim = a.shape.head_dim,
                                   .rotary_dim = a.shape.rotary_dim,
                                   .rotary_begin = a.shape.rotary_begin,
                                   .interleaved = a.shape.interleaved,
                                   .inverse = backward != a.shape.inverse});
}

constexpr Operator kRope = by_position<rotate>("rope");

// --- scale_by_position

// The gradient is multiplied by the same factors as the input.
void scale_rows(OperatorCall& op, const Tensor& x, const Tensor& y, bool /*backward*/) {
  const auto a = op.attributes<PositionScaling>();
  launch(op.context(), turbo::PositionScale{.x = x,
                                            .y = y,
                                            .positions = op.in(Rotation::kPositions),
                                            .cols = a.cols,
                                            .floor_scale = a.floor_scale,
                                            .attn_scale = a.attn_scale,
                                            .first = a.first});
}

constexpr Operator kScaleByPosition = by_position<scale_rows>("scale_by_position");

// --- attention

struct AttentionAttributes {
  turbo::AttentionShape shape;
  bool statistics;  // the call also computes the log-sum-exp
};

struct Attention {
  enum In : InputName { kQkv, kFirstKey };  // kFirstKey: each query's first visible key
  enum Out : OutputName { kOut, kLse };     // the log-sum-exp, in training
};

void attention_forward(OperatorCall& op) {
  const auto a = op.attributes<AttentionAttributes>();
  const FusedColumns at(a.shape);
  const Tensor qkv = op.in(Attention::kQkv);
  launch(op.context(), turbo::AttentionForward{.shape = a.shape,
                                               .q = qkv,
                                               .k = qkv.from(at.k),
                                               .v = qkv.from(at.v),
                                               .q_stride = at.width,
                                               .k_stride = at.width,
                                               .v_stride = at.width,
                                               .first_key = op.optional_in(Attention::kFirstKey),
                                               .sinks = optional_weight(op),
                                               .out = op.out(Attention::kOut),
                                               .lse = a.statistics ? op.out(Attention::kLse) : Tensor(),
                                               .workspace = {}});
}

void attention_backward_input(OperatorCall& op) {
  const auto a = op.attributes<AttentionAttributes>();
  const FusedColumns at(a.shape);
  const Tensor qkv = op.in(Attention::kQkv);
  const auto [d_qkv, previous] = op.fresh_d_in(Attention::kQkv);
  launch(op.context(), turbo::AttentionBackward{.shape = a.shape,
                                                .q = qkv,
                                                .k = qkv.from(at.k),
                                                .v = qkv.from(at.v),
                                                .q_stride = at.width,
                                                .k_stride = at.width,
                                                .v_stride = at.width,
                                                .first_key = op.optional_in(Attention::kFirstKey),
                                                .out = op.out(Attention::kOut),
                                                .lse = op.out(Attention::kLse),
                                                .d_out = op.d_out(Attention::kOut),
                                                .d_q = d_qkv,
                                                .d_k = d_qkv.from(at.k),
                                                .d_v = d_qkv.from(at.v),
                                                .d_q_stride = at.width,
                                                .d_k_stride = at.width,
                                                .d_v_stride = at.width,
                                                .workspace = {}});
  add_previous(op, {d_qkv, previous});
}

// Computes the gradient of the sinks, the operator's parameter. This gradient needs only the log-sum-exp and
// the output.
void attention_backward_weight(OperatorCall& op) {
  const auto a = op.attributes<AttentionAttributes>();
  write_fp32_weight_gradient(op, [&](const Tensor& d_sinks, bool accumulate) {
    launch(op.context(), turbo::AttentionBackwardSinks{.heads = a.shape.heads,
                                                       .value_dim = a.shape.value_dim,
                                                       .sinks = op.weight(),
                                                       .out = op.out(Attention::kOut),
                                                       .lse = op.out(Attention::kLse),
                                                       .d_out = op.d_out(Attention::kOut),
                                                       .d_sinks = d_sinks,
                                                       .accumulate = accumulate});
  });
}

constexpr Operator kAttention{
    .name = "attention",
    .operator_class = OperatorClass::kAttention,
    .forward = attention_forward,
    .backward_input = attention_backward_input,
    .backward_weight = attention_backward_weight,
    .for_input = saves(Attention::kQkv, Attention::kFirstKey, Attention::kOut, Attention::kLse),
    .for_weight = saves(Attention::kOut, Attention::kLse),
    .weight_reads_parameter = true};

struct CachedAttentionAttributes {
  turbo::PagedSequences sequences;
  std::int64_t heads, kv_heads, head_dim, value_dim, window, chunk;
  std::int64_t rows;  // number of rows in the cache pages of all sequences
  float scale, score_cap;
  void* k;
  void* v;
};

struct CachedAttention {
  enum In : InputName { kQkv };
  enum Out : OutputName { kOut };
};

void cached_attention_forward(OperatorCall& op) {
  const auto a = op.attributes<CachedAttentionAttributes>();
  const FusedColumns at(a.heads, a.kv_heads, a.head_dim, a.value_dim);
  const Tensor qkv = op.in(CachedAttention::kQkv);
  const std::int64_t k_width = a.kv_heads * a.head_dim, v_width = a.kv_heads * a.value_dim;
  const Tensor k(a.k, qkv.dtype, {a.rows, k_width}), v(a.v, qkv.dtype, {a.rows, v_width});
  launch(op.context(), turbo::PagedAppend{.sequences = a.sequences,
                                          .rows = qkv.from(at.k),
                                          .pages = k,
                                          .tokens = qkv.rows(),
                                          .cols = k_width,
                                          .stride = at.width,
                                          .to_stride = k_width,
                                          .more_rows = qkv.from(at.v),
                                          .more_pages = v,
                                          .more_cols = v_width,
                                          .more_to_stride = v_width});
  launch(op.context(), turbo::PagedAttention{.sequences = a.sequences,
                                             .tokens = qkv.rows(),
                                             .heads = a.heads,
                                             .kv_heads = a.kv_heads,
                                             .head_dim = a.head_dim,
                                             .value_dim = a.value_dim,
                                             .scale = a.scale,
                                             .window = a.window,
                                             .chunk = a.chunk,
                                             .score_cap = a.score_cap,
                                             .q = qkv,
                                             .k = k,
                                             .v = v,
                                             .q_stride = at.width,
                                             .k_stride = k_width,
                                             .v_stride = v_width,
                                             .sinks = optional_weight(op),
                                             .out = op.out(CachedAttention::kOut),
                                             .workspace = {}});
}

constexpr Operator kCachedAttention{.name = "cached_attention",
                                    .operator_class = OperatorClass::kAttention,
                                    .forward = cached_attention_forward};

}  // namespace

// --- functions for model code

Value head_norm(const Value& x, Parameter* weight, const turbo::HeadNormShape& shape, double epsilon) {
  const Shape statistics{x.shape()[0], shape.normed()};
  return x.tape().record(
      kHeadNorm, {{HeadNorm::kX, x}}, weight,
      {{HeadNorm::kY, x.dtype(), x.shape()}, {HeadNorm::kRstd, DType::kF32, statistics, false}},
      HeadNormAttributes{shape, static_cast<float>(epsilon)})[HeadNorm::kY];
}

Value rope(Value x, const Value& positions, const Tensor& table, const RopeShape& shape) {
  return record_by_position(kRope, x, positions, RopeAttributes{table, shape});
}

Value scale_by_position(Value x, const Value& positions, const PositionScaling& scaling) {
  return record_by_position(kScaleByPosition, x, positions, scaling);
}

Value attention(const Value& qkv, turbo::AttentionShape shape, const AttentionOptions& options) {
  if (options.context) return context_attention(qkv, shape, options);
  Tape& tape = qkv.tape();
  const std::int64_t tokens = shape.batch * shape.seq_q;
  const Shape out{tokens, shape.heads * shape.value_dim};
  shape.seq_k = shape.capacity_k = shape.seq_q;
  if (const KvCacheLayer* layer = options.cache.layer) {
    PRIMUS_CHECK("attention", !tape.training() && !options.first_key && shape.causal);
    return tape.record(kCachedAttention, {{CachedAttention::kQkv, qkv}}, options.sinks,
                       {{CachedAttention::kOut, qkv.dtype(), out}},
                       CachedAttentionAttributes{.sequences = *options.cache.sequences,
                                                 .heads = shape.heads,
                                                 .kv_heads = shape.kv_heads,
                                                 .head_dim = shape.head_dim,
                                                 .value_dim = shape.value_dim,
                                                 .window = shape.window,
                                                 .chunk = shape.chunk,
                                                 .rows = layer->k.rows(),
                                                 .scale = shape.scale,
                                                 .score_cap = shape.score_cap,
                                                 .k = layer->k.data,
                                                 .v = layer->v.data})[CachedAttention::kOut];
  }
  const AttentionAttributes attributes{shape, tape.training()};
  if (!tape.training()) {
    return tape.record(kAttention, {{Attention::kQkv, qkv}, {Attention::kFirstKey, options.first_key}},
                       options.sinks, {{Attention::kOut, qkv.dtype(), out}}, attributes)[Attention::kOut];
  }
  const Tape::Output lse{Attention::kLse, DType::kF32, Shape{shape.heads, tokens}, false};
  return tape.record(kAttention, {{Attention::kQkv, qkv}, {Attention::kFirstKey, options.first_key}},
                     options.sinks, {{Attention::kOut, qkv.dtype(), out}, lse}, attributes)[Attention::kOut];
}

}  // namespace primus::engine
