// Multi-head latent attention. Builds rows for ordinary attention, or attends to cached latents.
#include "base/check.h"
#include "engine/operators/operators.h"
#include "tensor/scratch_tensor.h"
#include "turbo/elementwise/elementwise.h"

namespace primus::engine {
namespace {

using turbo::LatentProject;
using turbo::LatentShape;
using turbo::launch;

// --- latent_qkv

struct LatentQkv {
  enum In : InputName { kQ, kKv, kRopeKey };
  enum Out : OutputName { kQkv };
};

void latent_qkv_forward(OperatorCall& op) {
  launch(op.context(), turbo::LatentQkv{.shape = op.attributes<LatentShape>(),
                                        .q = op.in(LatentQkv::kQ),
                                        .kv = op.in(LatentQkv::kKv),
                                        .rope_key = op.in(LatentQkv::kRopeKey),
                                        .qkv = op.out(LatentQkv::kQkv)});
}

void latent_qkv_backward_input(OperatorCall& op) {
  const OperatorCall::Target d_q = op.fresh_d_in(LatentQkv::kQ), d_kv = op.fresh_d_in(LatentQkv::kKv),
                             d_rope_key = op.fresh_d_in(LatentQkv::kRopeKey);
  launch(op.context(), turbo::LatentQkvBackward{.shape = op.attributes<LatentShape>(),
                                                .d_qkv = op.d_out(LatentQkv::kQkv),
                                                .d_q = d_q.out,
                                                .d_kv = d_kv.out,
                                                .d_rope_key = d_rope_key.out});
  for (const OperatorCall::Target& target : {d_q, d_kv, d_rope_key}) add_previous(op, target);
}

constexpr Operator kLatentQkv{.name = "latent_qkv",
                              .operator_class = OperatorClass::kRope,
                              .forward = latent_qkv_forward,
                              .backward_input = latent_qkv_backward_input};

// --- cached_latent_attention

struct CachedLatentAttributes {
  turbo::PagedSequences sequences;
  LatentShape latent;
  std::int64_t rows;  // rows in the pages of all sequences
  float scale;
  void* cache;
};

struct CachedLatentAttention {
  enum In : InputName { kQ, kLatent, kRopeKey };
  enum Out : OutputName { kOut };
};

// The operator's parameter is the up-projection.
void cached_latent_attention_forward(OperatorCall& op) {
  const auto a = op.attributes<CachedLatentAttributes>();
  const LatentShape& shape = a.latent;
  const Tensor q = op.in(CachedLatentAttention::kQ);
  const std::int64_t tokens = q.rows(), width = shape.rank + shape.rope_dim;
  const Tensor cache(a.cache, q.dtype, {a.rows, width});
  const auto append = [&](const Tensor& rows, std::int64_t column) {
    launch(op.context(), turbo::PagedAppend{.sequences = a.sequences,
                                            .rows = rows,
                                            .pages = cache.from(column),
                                            .tokens = tokens,
                                            .cols = rows.cols(),
                                            .stride = rows.cols(),
                                            .to_stride = width});
  };
  append(op.in(CachedLatentAttention::kLatent), 0);
  append(op.in(CachedLatentAttention::kRopeKey), shape.rank);

  // The queries of all heads share the same keys, the latents. The first columns of the latents are also the
  // values.
  Arena& scratch = op.context().scratch;
  const ScratchTensor queries(scratch, q.dtype, {tokens, shape.heads * width});
  const ScratchTensor mixed(scratch, q.dtype, {tokens, shape.heads * shape.rank});
  launch(op.context(), LatentProject{.shape = shape,
                                     .side = LatentProject::Side::kQueries,
                                     .x = q,
                                     .up = op.weight(),
                                     .out = queries.get(),
                                     .workspace = {}});
  launch(op.context(), turbo::PagedAttention{.sequences = a.sequences,
                                             .tokens = tokens,
                                             .heads = shape.heads,
                                             .kv_heads = 1,
                                             .head_dim = width,
                                             .value_dim = shape.rank,
                                             .scale = a.scale,
                                             .window = 0,
                                             .chunk = 0,
                                             .q = queries.get(),
                                             .k = cache,
                                             .v = cache,
                                             .q_stride = shape.heads * width,
                                             .k_stride = width,
                                             .v_stride = width,
                                             .sinks = {},
                                             .out = mixed.get(),
                                             .workspace = {}});
  launch(op.context(), LatentProject{.shape = shape,
                                     .side = LatentProject::Side::kValues,
                                     .x = mixed.get(),
                                     .up = op.weight(),
                                     .out = op.out(CachedLatentAttention::kOut),
                                     .workspace = {}});
}

constexpr Operator kCachedLatentAttention{.name = "cached_latent_attention",
                                          .operator_class = OperatorClass::kAttention,
                                          .forward = cached_latent_attention_forward};

}  // namespace

Value latent_qkv(const Value& q, const Value& kv, const Value& rope_key, const LatentShape& shape) {
  const Shape rows{q.shape()[0], shape.heads * (2 * shape.key_dim() + shape.value_dim)};
  return q.tape().record(kLatentQkv,
                         {{LatentQkv::kQ, q}, {LatentQkv::kKv, kv}, {LatentQkv::kRopeKey, rope_key}}, nullptr,
                         {{LatentQkv::kQkv, q.dtype(), rows}}, shape)[LatentQkv::kQkv];
}

Value cached_latent_attention(const Value& q, const Value& latent, const Value& rope_key, Parameter& up,
                              const LatentShape& shape, float scale, const CachedSequences& cache) {
  PRIMUS_CHECK("cached_latent_attention", !q.tape().training());
  const Shape out{q.shape()[0], shape.heads * shape.value_dim};
  return q.tape().record(kCachedLatentAttention,
                         {{CachedLatentAttention::kQ, q},
                          {CachedLatentAttention::kLatent, latent},
                          {CachedLatentAttention::kRopeKey, rope_key}},
                         &up, {{CachedLatentAttention::kOut, q.dtype(), out}},
                         CachedLatentAttributes{*cache.sequences, shape, cache.layer->k.rows(), scale,
                                                cache.layer->k.data})[CachedLatentAttention::kOut];
}

}  // namespace primus::engine
