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
  const turbo::PagedSequences* sequences;  // the call runs immediately, while the object still exists
  LatentShape latent;
  std::int64_t rows;  // rows in the pages of all sequences
  float scale;
  void* cache;
  LatentRows joined = {};  // used if the input kRopeKey is absent
};

struct CachedLatentAttention {
  // Without kRopeKey, kLatent has the columns of both, before their norm and rotation; kPositions then gives
  // the positions, or is absent if nothing is rotated.
  enum In : InputName { kQ, kLatent, kRopeKey, kPositions };
  enum Out : OutputName { kOut };
};

turbo::PagedAppend append_joined(const turbo::PagedSequences& sequences, const Tensor& joined,
                                 const Tensor& positions, const Tensor& cache, const LatentRows& a) {
  return {.sequences = sequences,
          .rows = joined,
          .pages = cache,
          .tokens = joined.rows(),
          .cols = joined.cols(),
          .stride = joined.cols(),
          .to_stride = joined.cols(),
          .around = {.norm = a.norm->value,
                     .eps = a.epsilon,
                     .positions = positions,
                     .table = positions.absent() ? Tensor() : a.table,
                     .interleaved = a.interleaved}};
}

// The operator's parameter is the up-projection.
void cached_latent_attention_forward(OperatorCall& op) {
  const auto a = op.attributes<CachedLatentAttributes>();
  const LatentShape& shape = a.latent;
  const Tensor q = op.in(CachedLatentAttention::kQ);
  const std::int64_t tokens = q.rows(), width = shape.rank + shape.rope_dim;
  const Tensor cache(a.cache, q.dtype, {a.rows, width});
  const auto append = [&](const Tensor& rows, std::int64_t column) {
    launch(op.context(), turbo::PagedAppend{.sequences = *a.sequences,
                                            .rows = rows,
                                            .pages = cache.from(column),
                                            .tokens = tokens,
                                            .cols = rows.cols(),
                                            .stride = rows.cols(),
                                            .to_stride = width});
  };
  const Tensor latent = op.in(CachedLatentAttention::kLatent),
               rope_key = op.optional_in(CachedLatentAttention::kRopeKey);
  if (rope_key.absent()) {
    launch(op.context(), append_joined(*a.sequences, latent,
                                       op.optional_in(CachedLatentAttention::kPositions), cache, a.joined));
  } else {
    append(latent, 0);
    append(rope_key, shape.rank);
  }

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
  launch(op.context(), turbo::PagedAttention{.sequences = *a.sequences,
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
                         CachedLatentAttributes{cache.sequences, shape, cache.layer->k.rows(), scale,
                                                cache.layer->k.data})[CachedLatentAttention::kOut];
}

bool takes_latent_rows(const Value& joined, const LatentRows& rows, const CachedSequences& cache) {
  const Tensor pages(cache.layer->k.data, joined.dtype(), {cache.layer->k.rows(), joined.shape()[1]});
  return rows.norm->norm_offset == 0 &&
         is_taken(joined.tape().context().device,
                  append_joined(*cache.sequences, joined.tensor(), {}, pages, rows));
}

Value cached_latent_attention(const Value& q, const Value& joined, const LatentRows& rows,
                              const Value& positions, Parameter& up, const LatentShape& shape, float scale,
                              const CachedSequences& cache) {
  PRIMUS_CHECK("cached_latent_attention", !q.tape().training());
  const Shape out{q.shape()[0], shape.heads * shape.value_dim};
  return q.tape().record(kCachedLatentAttention,
                         {{CachedLatentAttention::kQ, q},
                          {CachedLatentAttention::kLatent, joined},
                          {CachedLatentAttention::kRopeKey, Value()},
                          {CachedLatentAttention::kPositions, positions}},
                         &up, {{CachedLatentAttention::kOut, q.dtype(), out}},
                         CachedLatentAttributes{cache.sequences, shape, cache.layer->k.rows(), scale,
                                                cache.layer->k.data, rows})[CachedLatentAttention::kOut];
}

}  // namespace primus::engine
