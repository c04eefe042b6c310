// Attention over a fused projection, with gradients, and over a cache, without.
#include "engine/operators.h"
#include "turbo/elementwise/elementwise.h"

namespace primus::engine {
namespace {

using turbo::launch;

struct AttentionAttributes {
  turbo::AttentionShape shape;
  bool documents;   // input 1 is the first key of each query
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
                                              .first_key = a.documents ? s.in(1) : Tensor(),
                                              .sinks = s.has_parameter() ? s.weight() : Tensor(),
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
                                               .first_key = a.documents ? s.in(1) : Tensor(),
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

// The parameter is the sinks; the log-sum-exp and the output hold all that their gradient needs.
void attention_backward_weight(Step& s) {
  const auto a = s.attributes<AttentionAttributes>();
  const auto [d_sinks, accumulate] = s.d_weight();
  launch(s.context(), turbo::AttentionBackwardSinks{.heads = a.shape.heads,
                                                    .value_dim = a.shape.value_dim,
                                                    .sinks = s.weight(),
                                                    .out = s.out(0),
                                                    .lse = s.out(1),
                                                    .d_out = s.d_out(0),
                                                    .d_sinks = d_sinks,
                                                    .accumulate = accumulate});
}

constexpr Operator kAttention{.name = "attention",
                              .operator_class = OperatorClass::kAttention,
                              .forward = attention_forward,
                              .backward_input = attention_backward_input,
                              .backward_weight = attention_backward_weight,
                              .for_input = {.inputs = bit(0) | bit(1), .outputs = bit(0) | bit(1)},
                              .for_weight = {.outputs = bit(0) | bit(1)}};

struct CachedAttentionAttributes {
  turbo::AttentionShape shape;
  void* k;
  void* v;
};

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
                                              .first_key = {},
                                              .sinks = s.has_parameter() ? s.weight() : Tensor(),
                                              .out = s.out(0),
                                              .lse = {},
                                              .workspace = {}});
}

constexpr Operator kCachedAttention{.name = "cached_attention",
                                    .operator_class = OperatorClass::kAttention,
                                    .forward = cached_attention_forward};

}  // namespace

Value attention(const Value& qkv, turbo::AttentionShape shape, const AttentionOptions& options) {
  Tape& tape = qkv.tape();
  const std::int64_t tokens = shape.batch * shape.seq_q;
  const Tape::Output out{qkv.dtype(), Shape{tokens, shape.heads * shape.value_dim}};
  shape.seq_k = shape.capacity_k = shape.seq_q;
  if (KvCacheLayer* cache = options.cache) {
    assert(!tape.training() && !options.first_key);
    shape.seq_k = cache->length + shape.seq_q;
    shape.capacity_k = cache->capacity;
    return tape.record(kCachedAttention, {&qkv}, options.sinks, {out},
                       CachedAttentionAttributes{shape, cache->k.data, cache->v.data})[0];
  }
  const Value* documents = options.first_key ? &options.first_key : nullptr;
  const AttentionAttributes attributes{shape, documents != nullptr, tape.training()};
  if (!tape.training()) {
    return tape.record(kAttention, {&qkv, documents}, options.sinks, {out}, attributes)[0];
  }
  const Tape::Output statistics{DType::kF32, Shape{shape.heads, tokens}, false};
  return tape.record(kAttention, {&qkv, documents}, options.sinks, {out, statistics}, attributes)[0];
}

}  // namespace primus::engine
