#include "engine/operators.h"

#include <algorithm>

#include "turbo/elementwise/elementwise.h"
#include "turbo/embedding/embedding.h"
#include "turbo/linear/linear.h"
#include "turbo/rms_norm/rms_norm.h"
#include "turbo/rope/rope.h"
#include "turbo/swiglu/swiglu.h"

namespace primus::engine {
namespace {

using turbo::launch;

constexpr std::uint8_t bit(int i) { return static_cast<std::uint8_t>(1U << i); }

struct NoAttributes {};

// --- embedding
// -------------------------------------------------------------------------------------------------------

void embedding_forward(Step& s) {
  launch(s.context(), turbo::EmbeddingForward{.tokens = s.in(0), .table = s.weight(), .out = s.out(0)});
}

void embedding_backward_weight(Step& s) {
  const auto [d_table, accumulate] = s.d_weight();
  launch(s.context(),
         turbo::EmbeddingBackwardWeight{
             .tokens = s.in(0), .d_out = s.d_out(0), .d_table = d_table, .accumulate = accumulate});
}

constexpr Operator kEmbedding{.name = "embedding",
                              .operator_class = OperatorClass::kEmbedding,
                              .forward = embedding_forward,
                              .backward_weight = embedding_backward_weight,
                              .for_weight = {.inputs = bit(0)}};

// --- norm
// ------------------------------------------------------------------------------------------------------------

struct NormAttributes {
  float epsilon;
};

// Both norms keep what was normalised and its rstd; `x`, `rstd` and `d_y` say where this one has them.
void norm_input_gradient(Step& s, const Tensor& x, const Tensor& rstd, const Tensor& d_y,
                         const Tensor& previous, const Tensor& d_x) {
  launch(s.context(),
         turbo::RmsNormBackwardInput{
             .x = x, .weight = s.weight(), .rstd = rstd, .d_y = d_y, .d_sum = previous, .d_x = d_x});
}

void norm_weight_gradient(Step& s, const Tensor& x, const Tensor& rstd, const Tensor& d_y) {
  const auto [d_weight, accumulate] = s.d_weight();
  launch(s.context(), turbo::RmsNormBackwardWeight{
                          .x = x, .rstd = rstd, .d_y = d_y, .d_weight = d_weight, .accumulate = accumulate});
}

// Inputs: x. Outputs: y, rstd.
void norm_forward(Step& s) {
  launch(s.context(), turbo::RmsNormForward{.x = s.in(0),
                                            .weight = s.weight(),
                                            .y = s.out(0),
                                            .rstd = s.out(1),
                                            .eps = s.attributes<NormAttributes>().epsilon});
}

void norm_backward_input(Step& s) {
  const auto [d_x, previous] = s.d_in(0);
  norm_input_gradient(s, s.in(0), s.out(1), s.d_out(0), previous, d_x);
}

void norm_backward_weight(Step& s) { norm_weight_gradient(s, s.in(0), s.out(1), s.d_out(0)); }

constexpr Operator kNorm{.name = "norm",
                         .operator_class = OperatorClass::kNorm,
                         .forward = norm_forward,
                         .backward_input = norm_backward_input,
                         .backward_weight = norm_backward_weight,
                         .for_input = {.inputs = bit(0), .outputs = bit(1)},
                         .for_weight = {.inputs = bit(0), .outputs = bit(1)}};

// Inputs: x, delta. Outputs: sum, y, rstd.
void add_norm_forward(Step& s) {
  launch(s.context(), turbo::RmsNormForward{.x = s.in(0),
                                            .delta = s.in(1),
                                            .weight = s.weight(),
                                            .sum = s.out(0),
                                            .y = s.out(1),
                                            .rstd = s.out(2),
                                            .eps = s.attributes<NormAttributes>().epsilon});
}

// The gradient of the sum, complete once the norm's own part is in, is the gradient of both addends.
void add_norm_backward_input(Step& s) {
  const Tensor d_sum = s.d_out(0), d_y = s.d_out(1);
  if (!d_y.absent()) norm_input_gradient(s, s.out(0), s.out(2), d_y, d_sum, s.complete_d_out(0));
  s.pass_d_in(0, 0);
  s.pass_d_in(1, 0);
}

void add_norm_backward_weight(Step& s) {
  const Tensor d_y = s.d_out(1);
  if (!d_y.absent()) norm_weight_gradient(s, s.out(0), s.out(2), d_y);  // absent: only the sum was used
}

constexpr Operator kAddNorm{.name = "add_norm",
                            .operator_class = OperatorClass::kNorm,
                            .forward = add_norm_forward,
                            .backward_input = add_norm_backward_input,
                            .backward_weight = add_norm_backward_weight,
                            .for_input = {.outputs = bit(0) | bit(2)},
                            .for_weight = {.outputs = bit(0) | bit(2)}};

// --- add
// -------------------------------------------------------------------------------------------------------------

void add_forward(Step& s) { launch(s.context(), turbo::Add{.a = s.in(0), .b = s.in(1), .out = s.out(0)}); }

void add_backward_input(Step& s) {
  if (s.needs_d_in(0)) s.pass_d_in(0, 0);
  if (s.needs_d_in(1)) s.pass_d_in(1, 0);
}

constexpr Operator kAdd{.name = "add",
                        .operator_class = OperatorClass::kAdd,
                        .forward = add_forward,
                        .backward_input = add_backward_input};

// --- linear
// ----------------------------------------------------------------------------------------------------------

void linear_forward(Step& s) {
  launch(s.context(), turbo::Gemm{.role = turbo::GemmRole::kForward,
                                  .a = s.in(0),
                                  .b = s.weight(),
                                  .c = s.out(0),
                                  .accumulate = false,
                                  .workspace = {}});
}

void linear_backward_input(Step& s) {
  if (!s.needs_d_in(0)) return;
  const auto [d_x, previous] = s.d_in(0);
  const bool in_place = !previous.absent() && previous.data == d_x.data;
  launch(s.context(), turbo::Gemm{.role = turbo::GemmRole::kInputGradient,
                                  .a = s.d_out(0),
                                  .b = s.weight(),
                                  .c = d_x,
                                  .accumulate = in_place,
                                  .workspace = {}});
  if (!previous.absent() && !in_place) launch(s.context(), turbo::Add{.a = previous, .b = d_x, .out = d_x});
}

void linear_backward_weight(Step& s) {
  const auto [d_weight, accumulate] = s.d_weight();
  launch(s.context(), turbo::Gemm{.role = turbo::GemmRole::kWeightGradient,
                                  .a = s.d_out(0),
                                  .b = s.in(0),
                                  .c = d_weight,
                                  .accumulate = accumulate,
                                  .workspace = {}});
}

constexpr Operator kLinear{.name = "linear",
                           .operator_class = OperatorClass::kLinear,
                           .forward = linear_forward,
                           .backward_input = linear_backward_input,
                           .backward_weight = linear_backward_weight,
                           .for_weight = {.inputs = bit(0)}};

// --- rope
// ------------------------------------------------------------------------------------------------------------

struct RopeAttributes {
  Tensor table;
  RopeShape shape;
};

void rotate(Step& s, const Tensor& x, const Tensor& y, bool inverse) {
  const auto a = s.attributes<RopeAttributes>();
  launch(s.context(), turbo::Rope{.x = x,
                                  .y = y,
                                  .positions = s.in(1),
                                  .table = a.table,
                                  .heads = a.shape.heads,
                                  .head_dim = a.shape.head_dim,
                                  .rotary_dim = a.shape.rotary_dim,
                                  .inverse = inverse});
}

// Inputs: x, positions. Its own input is gone when it ran in place, so the rotation reads what it writes.
void rope_forward(Step& s) { rotate(s, s.in_or_out(0), s.out(0), false); }

void rope_backward_input(Step& s) {
  // In place on the gradient of the output, which nobody else needs, and then passed on.
  rotate(s, s.d_out(0), s.complete_d_out(0), true);
  s.pass_d_in(0, 0);
}

constexpr Operator kRope{.name = "rope",
                         .operator_class = OperatorClass::kRope,
                         .forward = rope_forward,
                         .backward_input = rope_backward_input,
                         .for_input = {.inputs = bit(1)},
                         .in_place = true};

// --- attention
// -------------------------------------------------------------------------------------------------------

struct AttentionAttributes {
  turbo::AttentionShape shape;
  bool statistics;  // output 1 is the log-sum-exp
};

// Where q, k and v begin in a row of the fused projection.
struct FusedColumns {
  std::int64_t k, v, width;
  explicit FusedColumns(const turbo::AttentionShape& s)
      : k(s.heads * s.head_dim), v(k + s.kv_heads * s.head_dim), width(v + s.kv_heads * s.value_dim) {}
};

Tensor columns_from(const Tensor& rows, std::int64_t column) {
  void* address = rows.data ? static_cast<char*>(rows.data) + column * size_of(rows.dtype) : nullptr;
  return {address, rows.dtype, rows.shape};
}

void attention_forward(Step& s) {
  const auto a = s.attributes<AttentionAttributes>();
  const FusedColumns at(a.shape);
  const Tensor qkv = s.in(0);
  launch(s.context(), turbo::AttentionForward{.shape = a.shape,
                                              .q = qkv,
                                              .k = columns_from(qkv, at.k),
                                              .v = columns_from(qkv, at.v),
                                              .q_stride = at.width,
                                              .k_stride = at.width,
                                              .v_stride = at.width,
                                              .out = s.out(0),
                                              .lse = a.statistics ? s.out(1) : Tensor(),
                                              .workspace = {}});
}

void attention_backward_input(Step& s) {
  const auto a = s.attributes<AttentionAttributes>();
  const FusedColumns at(a.shape);
  const Tensor qkv = s.in(0);
  const auto [d_qkv, previous] = s.fresh_d_in(0);
  launch(s.context(), turbo::AttentionBackward{.shape = a.shape,
                                               .q = qkv,
                                               .k = columns_from(qkv, at.k),
                                               .v = columns_from(qkv, at.v),
                                               .q_stride = at.width,
                                               .k_stride = at.width,
                                               .v_stride = at.width,
                                               .out = s.out(0),
                                               .lse = s.out(1),
                                               .d_out = s.d_out(0),
                                               .d_q = d_qkv,
                                               .d_k = columns_from(d_qkv, at.k),
                                               .d_v = columns_from(d_qkv, at.v),
                                               .d_q_stride = at.width,
                                               .d_k_stride = at.width,
                                               .d_v_stride = at.width,
                                               .workspace = {}});
  if (!previous.absent()) launch(s.context(), turbo::Add{.a = previous, .b = d_qkv, .out = d_qkv});
}

constexpr Operator kAttention{.name = "attention",
                              .operator_class = OperatorClass::kAttention,
                              .forward = attention_forward,
                              .backward_input = attention_backward_input,
                              .for_input = {.inputs = bit(0), .outputs = bit(0) | bit(1)}};

struct CachedAttentionAttributes {
  turbo::AttentionShape shape;
  void* k;
  void* v;
};
static_assert(sizeof(CachedAttentionAttributes) <= Entry::kMaxAttributeBytes);

void cached_attention_forward(Step& s) {
  const auto a = s.attributes<CachedAttentionAttributes>();
  const FusedColumns at(a.shape);
  const Tensor qkv = s.in(0);
  const std::int64_t k_width = a.shape.kv_heads * a.shape.head_dim;
  const std::int64_t v_width = a.shape.kv_heads * a.shape.value_dim;
  const Shape k_shape{a.shape.batch * a.shape.capacity_k, k_width};
  const Shape v_shape{a.shape.batch * a.shape.capacity_k, v_width};
  const Tensor k(a.k, qkv.dtype, k_shape), v(a.v, qkv.dtype, v_shape);
  const std::int64_t first_new = a.shape.seq_k - a.shape.seq_q;
  auto append = [&](const Tensor& cache, std::int64_t column, std::int64_t width) {
    launch(s.context(), turbo::CopyRows{.from = columns_from(qkv, column),
                                        .to = columns_from(cache, first_new * width),
                                        .rows = a.shape.batch * a.shape.seq_q,
                                        .cols = width,
                                        .from_stride = at.width,
                                        .to_stride = width,
                                        .group_rows = a.shape.seq_q,
                                        .to_group_stride = a.shape.capacity_k * width});
  };
  append(k, at.k, k_width);
  append(v, at.v, v_width);
  launch(s.context(), turbo::AttentionForward{.shape = a.shape,
                                              .q = qkv,
                                              .k = k,
                                              .v = v,
                                              .q_stride = at.width,
                                              .k_stride = k_width,
                                              .v_stride = v_width,
                                              .out = s.out(0),
                                              .lse = {},
                                              .workspace = {}});
}

constexpr Operator kCachedAttention{.name = "cached_attention",
                                    .operator_class = OperatorClass::kAttention,
                                    .forward = cached_attention_forward};

// --- swiglu
// ----------------------------------------------------------------------------------------------------------

void swiglu_forward(Step& s) {
  launch(s.context(), turbo::SwigluForward{.gate_up = s.in(0), .out = s.out(0)});
}

void swiglu_backward_input(Step& s) {
  const auto [d_gate_up, previous] = s.fresh_d_in(0);
  launch(s.context(), turbo::SwigluBackward{.gate_up = s.in(0), .d_out = s.d_out(0), .d_gate_up = d_gate_up});
  if (!previous.absent()) launch(s.context(), turbo::Add{.a = previous, .b = d_gate_up, .out = d_gate_up});
}

constexpr Operator kSwiglu{.name = "swiglu",
                           .operator_class = OperatorClass::kActivation,
                           .forward = swiglu_forward,
                           .backward_input = swiglu_backward_input,
                           .for_input = {.inputs = bit(0)}};

}  // namespace

// --- what model code calls
// -------------------------------------------------------------------------------------------

Value embedding(const Value& tokens, Parameter& table) {
  const Shape shape{tokens.shape()[0], table.shape[1]};
  return tokens.tape().record(kEmbedding, {&tokens}, &table, {{table.value.dtype, shape}}, NoAttributes{})[0];
}

Value norm(const Value& x, Parameter& weight, double epsilon) {
  const Shape rows{x.shape()[0]};
  return x.tape().record(kNorm, {&x}, &weight, {{x.dtype(), x.shape()}, {DType::kF32, rows, false}},
                         NormAttributes{static_cast<float>(epsilon)})[0];
}

Value norm(Residual& x, Parameter& weight, double epsilon) {
  if (!x.pending) return norm(x.sum, weight, epsilon);
  const Shape rows{x.sum.shape()[0]};
  auto [sum, y, rstd] = x.sum.tape().record(
      kAddNorm, {&x.sum, &x.pending}, &weight,
      {{x.sum.dtype(), x.sum.shape()}, {x.sum.dtype(), x.sum.shape()}, {DType::kF32, rows, false}},
      NormAttributes{static_cast<float>(epsilon)});
  x = {std::move(sum), {}};
  return std::move(y);
}

void add(Residual& x, Value y) {
  flush(x);
  x.pending = std::move(y);
}

void flush(Residual& x) {
  if (!x.pending) return;
  x.sum = x.sum.tape().record(kAdd, {&x.sum, &x.pending}, nullptr, {{x.sum.dtype(), x.sum.shape()}},
                              NoAttributes{})[0];
  x.pending = {};
}

BlockScope::BlockScope(Residual& x, std::int64_t layer) : tape_(x.sum.tape()) {
  const RecomputePolicy& policy = tape_.recompute();
  if (policy.full(layer) && layer % policy.layers_per_group == 0) flush(x);
  tape_.enter_block(layer);
}

Value linear(const Value& x, Parameter& weight) {
  const Shape shape{x.shape()[0], weight.shape[0]};
  return x.tape().record(kLinear, {&x}, &weight, {{x.dtype(), shape}}, NoAttributes{})[0];
}

Value rope(Value x, const Value& positions, const Tensor& table, const RopeShape& shape) {
  return x.tape().record(kRope, {&x, &positions}, nullptr, {{x.dtype(), x.shape()}},
                         RopeAttributes{table, shape})[0];
}

Value attention(const Value& qkv, turbo::AttentionShape shape, KvCacheLayer* cache) {
  Tape& tape = qkv.tape();
  const std::int64_t tokens = shape.batch * shape.seq_q;
  const Shape out{tokens, shape.heads * shape.value_dim};
  shape.seq_k = shape.capacity_k = shape.seq_q;
  if (cache) {
    shape.seq_k = cache->length + shape.seq_q;
    shape.capacity_k = cache->capacity;
    return tape.record(kCachedAttention, {&qkv}, nullptr, {{qkv.dtype(), out}},
                       CachedAttentionAttributes{shape, cache->k.data, cache->v.data})[0];
  }
  if (!tape.training()) {
    return tape.record(kAttention, {&qkv}, nullptr, {{qkv.dtype(), out}},
                       AttentionAttributes{shape, false})[0];
  }
  const Shape statistics{shape.heads, tokens};
  return tape.record(kAttention, {&qkv}, nullptr, {{qkv.dtype(), out}, {DType::kF32, statistics, false}},
                     AttentionAttributes{shape, true})[0];
}

Value swiglu(const Value& gate_up) {
  const Shape shape{gate_up.shape()[0], gate_up.shape()[1] / 2};
  return gate_up.tape().record(kSwiglu, {&gate_up}, nullptr, {{gate_up.dtype(), shape}}, NoAttributes{})[0];
}

}  // namespace primus::engine
