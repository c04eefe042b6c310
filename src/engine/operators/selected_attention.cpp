#include "engine/operators/selected_attention.h"

#include "base/check.h"
#include "engine/operators/fp32_weight_gradient.h"
#include "engine/runtime/parameter_values.h"
#include "turbo/elementwise/elementwise.h"
#include "turbo/layer_norm/layer_norm.h"

namespace primus::engine {
namespace {

using turbo::LatentProject;
using turbo::launch;

// --- select_keys

struct SelectAttributes {
  turbo::IndexerShape shape;
};

struct SelectKeys {
  enum In : InputName { kQ, kK, kW, kFirstRow, kEndRow };
  enum Out : OutputName { kSelected };
};

void select_forward(OperatorCall& op) {
  const auto a = op.attributes<SelectAttributes>();
  launch(op.context(), turbo::IndexerSelect{.shape = a.shape,
                                            .q = op.in(SelectKeys::kQ),
                                            .k = op.in(SelectKeys::kK),
                                            .w = op.in(SelectKeys::kW),
                                            .first_row = op.optional_in(SelectKeys::kFirstRow),
                                            .end_row = op.optional_in(SelectKeys::kEndRow),
                                            .selected = op.out(SelectKeys::kSelected),
                                            .workspace = {}});
}

constexpr Operator kSelectKeys{
    .name = "select_keys", .operator_class = OperatorClass::kAttention, .forward = select_forward};

struct SelectCachedAttributes {
  turbo::PagedSequences sequences;
  std::int64_t heads, head_dim, top_k;
  Tensor pages;
};

// Appends `rows`, the rows of the new tokens, to the pages, whose rows have the same width.
void append(OperatorCall& op, const turbo::PagedSequences& sequences, const Tensor& rows,
            const Tensor& pages) {
  launch(op.context(), turbo::PagedAppend{.sequences = sequences,
                                          .rows = rows,
                                          .pages = pages,
                                          .tokens = rows.rows(),
                                          .cols = rows.cols(),
                                          .stride = rows.cols(),
                                          .to_stride = rows.cols()});
}

Tensor rows_of(const Tensor& pages) { return pages.reshaped({pages.rows(), pages.cols()}); }

void select_cached_forward(OperatorCall& op) {
  const auto a = op.attributes<SelectCachedAttributes>();
  append(op, a.sequences, op.in(SelectKeys::kK), a.pages);
  launch(op.context(), turbo::PagedIndexerSelect{.sequences = a.sequences,
                                                 .heads = a.heads,
                                                 .head_dim = a.head_dim,
                                                 .top_k = a.top_k,
                                                 .q = op.in(SelectKeys::kQ),
                                                 .pages = a.pages,
                                                 .w = op.in(SelectKeys::kW),
                                                 .selected = op.out(SelectKeys::kSelected),
                                                 .workspace = {}});
}

constexpr Operator kSelectCachedKeys{.name = "select_cached_keys",
                                     .operator_class = OperatorClass::kAttention,
                                     .forward = select_cached_forward};

// --- selected_attention

struct AttendAttributes {
  turbo::SelectedAttentionShape shape;
  bool statistics;  // the call also computes the log-sum-exp
};

struct SelectedAttention {
  enum In : InputName { kQ, kKv, kSelected };
  enum Out : OutputName { kOut, kLse };
};

void attend(OperatorCall& op, const turbo::SelectedAttentionShape& shape, const Tensor& kv,
            const Tensor& lse) {
  launch(op.context(), turbo::SelectedAttentionForward{.shape = shape,
                                                       .q = op.in(SelectedAttention::kQ),
                                                       .kv = kv,
                                                       .selected = op.in(SelectedAttention::kSelected),
                                                       .sinks = op.has_parameter() ? op.weight() : Tensor(),
                                                       .out = op.out(SelectedAttention::kOut),
                                                       .lse = lse,
                                                       .workspace = {}});
}

void attend_forward(OperatorCall& op) {
  const auto a = op.attributes<AttendAttributes>();
  attend(op, a.shape, op.in(SelectedAttention::kKv),
         a.statistics ? op.out(SelectedAttention::kLse) : Tensor());
}

void attend_backward_input(OperatorCall& op) {
  const OperatorCall::Target d_q = op.fresh_d_in(SelectedAttention::kQ),
                             d_kv = op.fresh_d_in(SelectedAttention::kKv);
  launch(op.context(), turbo::SelectedAttentionBackward{.shape = op.attributes<AttendAttributes>().shape,
                                                        .q = op.in(SelectedAttention::kQ),
                                                        .kv = op.in(SelectedAttention::kKv),
                                                        .selected = op.in(SelectedAttention::kSelected),
                                                        .out = op.out(SelectedAttention::kOut),
                                                        .lse = op.out(SelectedAttention::kLse),
                                                        .d_out = op.d_out(SelectedAttention::kOut),
                                                        .d_q = d_q.out,
                                                        .d_kv = d_kv.out,
                                                        .workspace = {}});
  for (const OperatorCall::Target& target : {d_q, d_kv}) add_previous(op, target);
}

// The operator's parameter holds the sinks.
void attend_backward_weight(OperatorCall& op) {
  const turbo::SelectedAttentionShape shape = op.attributes<AttendAttributes>().shape;
  write_fp32_weight_gradient(op, [&](const Tensor& d_sinks, bool accumulate) {
    launch(op.context(), turbo::AttentionBackwardSinks{.heads = shape.heads,
                                                       .value_dim = shape.value_dim,
                                                       .sinks = op.weight(),
                                                       .out = op.out(SelectedAttention::kOut),
                                                       .lse = op.out(SelectedAttention::kLse),
                                                       .d_out = op.d_out(SelectedAttention::kOut),
                                                       .d_sinks = d_sinks,
                                                       .accumulate = accumulate});
  });
}

constexpr Operator kSelectedAttention{
    .name = "selected_attention",
    .operator_class = OperatorClass::kAttention,
    .forward = attend_forward,
    .backward_input = attend_backward_input,
    .backward_weight = attend_backward_weight,
    .for_input = saves(SelectedAttention::kQ, SelectedAttention::kKv, SelectedAttention::kSelected,
                       SelectedAttention::kOut, SelectedAttention::kLse),
    .for_weight = saves(SelectedAttention::kOut, SelectedAttention::kLse),
    .weight_reads_parameter = true};

struct AttendCachedAttributes {
  turbo::PagedSequences sequences;
  turbo::SelectedAttentionShape shape;
  Tensor pages;
};

// SelectedAttention::kKv has only the rows of new tokens, which join the earlier rows in the pages.
void attend_cached_forward(OperatorCall& op) {
  const auto a = op.attributes<AttendCachedAttributes>();
  append(op, a.sequences, op.in(SelectedAttention::kKv), a.pages);
  attend(op, a.shape, a.pages, {});
}

constexpr Operator kSelectedCachedAttention{.name = "selected_cached_attention",
                                            .operator_class = OperatorClass::kAttention,
                                            .forward = attend_cached_forward};

// --- latent_project

struct ProjectAttributes {
  turbo::LatentShape shape;
  LatentProject::Side side;
};

void project_forward(OperatorCall& op) {
  const auto a = op.attributes<ProjectAttributes>();
  launch(op.context(), LatentProject{.shape = a.shape,
                                     .side = a.side,
                                     .x = op.in(Unary::kX),
                                     .up = op.weight(),
                                     .out = op.out(Unary::kY),
                                     .workspace = {}});
}

void project_backward_input(OperatorCall& op) {
  const auto a = op.attributes<ProjectAttributes>();
  const OperatorCall::Target d_x = op.fresh_d_in(Unary::kX);
  launch(op.context(), turbo::LatentProjectBackwardInput{.shape = a.shape,
                                                         .side = a.side,
                                                         .d_out = op.d_out(Unary::kY),
                                                         .up = op.weight(),
                                                         .d_x = d_x.out,
                                                         .workspace = {}});
  add_previous(op, d_x);
}

// Queries and values write different rows of the weight gradient, so the first contribution zeroes all rows.
void project_backward_weight(OperatorCall& op) {
  const auto a = op.attributes<ProjectAttributes>();
  const auto [d_up, accumulate] = op.d_weight();
  if (!accumulate) launch(op.context(), turbo::Fill{.out = d_up, .value = 0});
  launch(op.context(), turbo::LatentProjectBackwardWeight{.shape = a.shape,
                                                          .side = a.side,
                                                          .x = op.in(Unary::kX),
                                                          .d_out = op.d_out(Unary::kY),
                                                          .d_up = d_up,
                                                          .workspace = {}});
}

constexpr Operator kLatentProject{.name = "latent_project",
                                  .operator_class = OperatorClass::kLinear,
                                  .forward = project_forward,
                                  .backward_input = project_backward_input,
                                  .backward_weight = project_backward_weight,
                                  .for_weight = saves(Unary::kX)};

// --- layer_norm

struct LayerNorm {
  enum In : InputName { kX, kBias };
  enum Out : OutputName { kY };
};

void layer_norm_forward(OperatorCall& op) {
  launch(op.context(), turbo::LayerNorm{.x = op.in(LayerNorm::kX),
                                        .weight = op.weight(),
                                        .bias = op.in(LayerNorm::kBias),
                                        .y = op.out(LayerNorm::kY),
                                        .eps = op.attributes<float>()});
}

constexpr Operator kLayerNorm{
    .name = "layer_norm", .operator_class = OperatorClass::kNorm, .forward = layer_norm_forward};

void set_extents(turbo::SelectedAttentionShape& shape, const Value& q, const Tensor& kv,
                 const Value& selected) {
  shape.tokens = q.shape()[0];
  shape.rows = kv.rows();
  shape.selected = selected.shape()[1];
}

}  // namespace

Value select_keys(const Value& q, const Value& k, const Value& w, const turbo::IndexerShape& shape,
                  const Value& first_row, const Value& end_row) {
  return q.tape().record(kSelectKeys,
                         {{SelectKeys::kQ, q},
                          {SelectKeys::kK, k},
                          {SelectKeys::kW, w},
                          {SelectKeys::kFirstRow, first_row},
                          {SelectKeys::kEndRow, end_row}},
                         nullptr,
                         {{SelectKeys::kSelected, DType::kI32, Shape{shape.tokens(), shape.top_k}, false}},
                         SelectAttributes{shape})[SelectKeys::kSelected];
}

Value select_cached_keys(const Value& q, const Value& k, const Value& w, const turbo::IndexerShape& shape,
                         const CachedSequences& cache) {
  PRIMUS_CHECK("select_cached_keys", !q.tape().training());
  return q.tape().record(kSelectCachedKeys, {{SelectKeys::kQ, q}, {SelectKeys::kK, k}, {SelectKeys::kW, w}},
                         nullptr,
                         {{SelectKeys::kSelected, DType::kI32, Shape{q.shape()[0], shape.top_k}, false}},
                         SelectCachedAttributes{*cache.sequences, shape.heads, shape.head_dim, shape.top_k,
                                                rows_of(cache.layer->index)})[SelectKeys::kSelected];
}

Value selected_attention(const Value& q, const Value& kv, const Value& selected,
                         turbo::SelectedAttentionShape shape, Parameter* sinks) {
  Tape& tape = q.tape();
  set_extents(shape, q, Tensor(nullptr, kv.dtype(), kv.shape()), selected);
  const Tape::Output out{SelectedAttention::kOut, q.dtype(),
                         Shape{shape.tokens, shape.heads * shape.value_dim}};
  const AttendAttributes attributes{shape, tape.training()};
  if (!tape.training())
    return tape.record(
        kSelectedAttention,
        {{SelectedAttention::kQ, q}, {SelectedAttention::kKv, kv}, {SelectedAttention::kSelected, selected}},
        sinks, {out}, attributes)[SelectedAttention::kOut];
  const Tape::Output lse{SelectedAttention::kLse, DType::kF32, Shape{shape.heads, shape.tokens}, false};
  return tape.record(
      kSelectedAttention,
      {{SelectedAttention::kQ, q}, {SelectedAttention::kKv, kv}, {SelectedAttention::kSelected, selected}},
      sinks, {out, lse}, attributes)[SelectedAttention::kOut];
}

Value selected_cached_attention(const Value& q, const Value& kv, const Value& selected,
                                turbo::SelectedAttentionShape shape, const CachedSequences& cache) {
  PRIMUS_CHECK("selected_cached_attention", !q.tape().training());
  const Tensor pages = rows_of(cache.layer->k);
  set_extents(shape, q, pages, selected);
  return q.tape().record(
      kSelectedCachedAttention,
      {{SelectedAttention::kQ, q}, {SelectedAttention::kKv, kv}, {SelectedAttention::kSelected, selected}},
      nullptr, {{SelectedAttention::kOut, q.dtype(), Shape{shape.tokens, shape.heads * shape.value_dim}}},
      AttendCachedAttributes{*cache.sequences, shape, pages})[SelectedAttention::kOut];
}

Value latent_project(const Value& x, Parameter& up, LatentProject::Side side,
                     const turbo::LatentShape& shape) {
  const std::int64_t width =
      side == LatentProject::Side::kQueries ? shape.rank + shape.rope_dim : shape.value_dim;
  return x.tape().record(kLatentProject, {{Unary::kX, x}}, &up,
                         {{Unary::kY, x.dtype(), Shape{x.shape()[0], shape.heads * width}}},
                         ProjectAttributes{shape, side})[Unary::kY];
}

Value layer_norm(const Value& x, Parameter& weight, Parameter& bias, double epsilon) {
  PRIMUS_CHECK("layer_norm", !weight.trainable && !bias.trainable);
  const Value shift = parameter_values(x.tape(), bias);
  return x.tape().record(kLayerNorm, {{LayerNorm::kX, x}, {LayerNorm::kBias, shift}}, &weight,
                         {{LayerNorm::kY, x.dtype(), x.shape()}}, static_cast<float>(epsilon))[LayerNorm::kY];
}

}  // namespace primus::engine
