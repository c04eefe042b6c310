#include "lm/model/language_model.h"

#include "lm/model/rope_table.h"

namespace primus {

using engine::Initializer;
using engine::Value;

LanguageModel::LanguageModel(const ModelConfig& config, const FamilyRegistry& families,
                             engine::ParameterStore& store, int chunks)
    : config_(config) {
  const Family& family = families.find(config.family);
  const Initializer normal = Initializer::normal(config.init_std);
  for (int chunk = 0; chunk <= chunks; ++chunk) first_block_.push_back(config.layers * chunk / chunks);

  store.begin_group("embedding");
  embedding_ = &declare(store, 0, "embedding", {config.vocab, config.hidden}, normal,
                        {{"model.embed_tokens.weight", 0, config.vocab}});
  for (int chunk = 0; chunk < chunks; ++chunk) {
    for (std::int64_t layer = first_block_[chunk]; layer < first_block_[chunk + 1]; ++layer) {
      store.begin_group("layers." + std::to_string(layer));
      blocks_.push_back(family.make_block(config, store, layer, chunk));
    }
  }
  store.begin_group("head");
  final_norm_ = &declare(store, chunks - 1, "final_norm", {config.hidden}, Initializer::constant(1),
                         {{"model.norm.weight", 0, config.hidden}});
  if (config.tied_embeddings) {
    head_ = embedding_;
    head_->uses.push_back(chunks - 1);
  } else {
    head_ = &declare(store, chunks - 1, "head", {config.vocab, config.hidden}, normal,
                     {{"lm_head.weight", 0, config.vocab}});
  }
  const int modules = static_cast<int>(config.mtp.modules());
  for (int depth = 1; depth <= modules; ++depth) {
    mtp_.emplace_back(config, family, store, *embedding_, *head_, depth, chunks - 1);
  }
  for (std::int64_t layer = config.layers + modules; layer < config.layers + config.mtp.layers; ++layer) {
    store.leave_out("model.layers." + std::to_string(layer) + ".");
  }
}

void LanguageModel::allocate_tables(engine::Rank& rank, std::int64_t positions) {
  rope_positions_ = positions;
  const Shape shape{positions, config_.rotary_dim()};
  rope_table_ =
      Tensor(rank.persistent().allocate(shape.elements() * size_of(DType::kF32)).address, DType::kF32, shape);
  if (rank.measuring()) return;
  const std::vector<float> table = make_rope_table(config_, positions);
  rank.compute().copy_to_device(rope_table_.data, table.data(), rope_table_.bytes());
  rank.compute().synchronize();
}

BlockInputs LanguageModel::block_inputs(const ModelInputs& in) const {
  return {in.batch,     in.sequence, in.positions,     rope_table_, in.cache,
          in.first_key, in.routing,  in.token_numbers, in.trace};
}

Value LanguageModel::forward(int chunk, const ModelInputs& in, Value x) const {
  if (chunk == 0) x = embedding(in.tokens, *embedding_);
  engine::Residual stream{std::move(x), {}};
  const BlockInputs inputs = block_inputs(in);
  for (std::int64_t i = first_block_[chunk]; i < first_block_[chunk + 1]; ++i) {
    blocks_[i]->forward(stream, inputs);
  }
  if (chunk + 1 == chunks()) return norm(stream, *final_norm_, config_.norm_epsilon);
  flush(stream);
  return stream.sum;
}

Value LanguageModel::forward(const ModelInputs& in) const {
  Value x;
  for (int chunk = 0; chunk < chunks(); ++chunk) x = forward(chunk, in, std::move(x));
  return x;
}

Value LanguageModel::loss(const Value& hidden, const ModelInputs& in) const {
  return lm_head_loss(hidden, *head_, in.labels, in.weights);
}

std::vector<Value> LanguageModel::further_losses(const Value& hidden, const ModelInputs& in) const {
  const BlockInputs inputs = block_inputs(in);
  std::vector<Value> losses;
  Value h = hidden;
  for (std::size_t i = 0; i < mtp_.size(); ++i) {
    const FurtherTokens& further = in.further[i];
    h = mtp_[i].forward(h, further.tokens, inputs);
    losses.push_back(lm_head_loss(h, *head_, further.labels, further.weights));
  }
  return losses;
}

Value LanguageModel::logits(const Value& hidden) const { return linear(hidden, *head_); }

RoutingStep LanguageModel::make_routing_step(engine::Rank& rank) const {
  const auto table = [&](DType dtype, std::int64_t columns) {
    const Shape shape{config_.layers + config_.mtp.modules(), columns};
    return Tensor(rank.persistent().allocate(shape.elements() * size_of(dtype)).address, dtype, shape);
  };
  return {.random = {}, .load = table(DType::kI32, config_.moe.experts + 1), .losses = table(DType::kF32, 2)};
}

void LanguageModel::end_step(turbo::Context& context, const RoutingStep& step) const {
  for (const auto& block : blocks_) block->end_step(context, step);
  for (const MultiTokenPrediction& module : mtp_) module.end_step(context, step);
}

KvCache make_kv_cache(engine::Rank& rank, const ModelConfig& config, DType dtype, std::int64_t sequences,
                      std::int64_t capacity, std::int64_t pages, std::int64_t page_size) {
  const auto take = [&](DType type, Shape shape) {
    return Tensor(rank.persistent().allocate(shape.elements() * size_of(type)).address, type, shape);
  };
  KvCache cache;
  const std::int64_t blocks = (capacity + page_size - 1) / page_size;
  cache.sequences = {.query_starts = take(DType::kI32, {sequences + 1}),
                     .key_lengths = take(DType::kI32, {sequences}),
                     .block_table = take(DType::kI32, {sequences, blocks}),
                     .page_size = page_size};
  const LatentConfig& latent = config.attention.latent;
  const bool latents = latent.kv_rank > 0;
  const std::int64_t width = latents ? latent.kv_rank + latent.rope_dim : config.kv_heads * config.head_dim;
  const Shape shape{pages, page_size, width};
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    engine::KvCacheLayer& entry = cache.layers.emplace_back();
    entry.k = take(dtype, shape);
    if (!latents) entry.v = take(dtype, shape);
  }
  return cache;
}

}  // namespace primus
