#include "lm/model/language_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/check.h"
#include "base/error.h"
#include "engine/operators/score_head.h"
#include "engine/operators/select_rows.h"
#include "lm/model/blocks/block_parameters.h"
#include "lm/model/layer_kind.h"
#include "lm/model/rope_table.h"
#include "turbo/elementwise/elementwise.h"

namespace primus {

using engine::Initializer;
using engine::Value;

std::int64_t conv_ring(std::int64_t width) { return width - 1 + kSpareTokens; }

LanguageModel::LanguageModel(const ModelConfig& config, const FamilyRegistry& families,
                             engine::ParameterStore& store, const ModelParts& parts)
    : config_(config), mesh_(store.mesh()), vocabulary_(shared_vocabulary(config, store)) {
  const Family& family = families.find(config.family);
  const Initializer normal = Initializer::normal(config.init_std);
  const std::vector<std::int64_t> blocks = parts.blocks.empty() ? std::vector{config.layers} : parts.blocks;
  std::int64_t block = 0;
  for (std::size_t part = 0; part < blocks.size(); ++part) {
    const std::int64_t begin = block;
    block += blocks[part];
    if (!parts.own.empty() && std::ranges::find(parts.own, static_cast<int>(part)) == parts.own.end())
      continue;
    chunks_.push_back({begin, block, part == 0, part + 1 == blocks.size()});
  }
  PRIMUS_CHECK("LanguageModel", block == config.layers && !chunks_.empty());
  const bool has_first = chunks_.front().first, has_last = chunks_.back().last;
  const int last_chunk = has_last ? chunks() - 1 : -1;
  const int modules = static_cast<int>(config.mtp.modules());
  const bool last_embeds = config.ties_head() || modules > 0;

  engine::ParameterStore::Group& embedding_group = store.begin_group("embedding");
  embedding_group.here = has_first || (has_last && last_embeds);
  embedding_group.counts = has_first;
  embedding_group.at_both_ends = last_embeds && has_first != has_last;
  const Share of_vocabulary = vocabulary_share(vocabulary_, config.hidden);
  embedding_ = &declare(store, 0, "embedding", of_vocabulary.shape, normal,
                        {{std::string(family.embedding), 0, config.vocab}}, of_vocabulary.placement);
  embedding_->vocabulary = true;
  if (!has_first) embedding_->uses.clear();
  add_embedding_adapter(store, family.embedding, has_first);
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    const int chunk = chunk_with(layer);
    store.begin_group("layers." + std::to_string(layer)).here = chunk >= 0;
    blocks_.push_back(family.make_block(config, store, layer, chunk));
  }
  store.begin_group("head").here = has_last;
  final_norm_ = &declare(store, last_chunk, "final_norm", {config.hidden},
                         Initializer::constant(1 - config.norm_offset()),
                         {{std::string(family.final_norm), 0, config.hidden}});
  PRIMUS_CHECK("LanguageModel", config.streams() == 1 || family.make_stream_ends);
  if (config.streams() > 1) ends_ = family.make_stream_ends(config, store, 0, last_chunk);
  final_norm_->norm_offset = config.norm_offset();
  if (config.scores) {
    if (modules > 0) {
      throw unsupported("a model with scores has no multi-token prediction",
                        "set enable_mtp to false, or load a model without it");
    }
    head_ = &declare(store, last_chunk, "head", {1, config.hidden}, normal, {{"score.weight", 0, 1}});
    head_->initializer.if_missing = true;
    store.leave_out(std::string(family.head));
  } else if (config.tied_embeddings) {
    head_ = embedding_;
    if (has_last) head_->uses.push_back(last_chunk);
  } else {
    head_ = &declare(store, last_chunk, "head", of_vocabulary.shape, normal,
                     {{std::string(family.head), 0, config.vocab}}, of_vocabulary.placement);
    head_->vocabulary = true;
  }
  for (int depth = 1; depth <= modules; ++depth) {
    mtp_.emplace_back(config, family, store, *embedding_, *head_, depth, last_chunk);
    store.groups().back().here = has_last;
  }
  for (std::int64_t layer = config.layers + modules; layer < config.layers + config.mtp.layers; ++layer) {
    store.leave_out("model.layers." + std::to_string(layer) + ".");
  }
  for (const std::string_view prefix : family.left_out) store.leave_out(std::string(prefix));
  if (config.lora) freeze_base(store);
}

// Declares the adapter of the embedding, if the model has one. Its A is stored as a table with a row for each
// token, and published as the transposed matrix.
void LanguageModel::add_embedding_adapter(engine::ParameterStore& store, std::string_view published,
                                          bool here) {
  std::string module(published.substr(0, published.rfind('.')));
  const MatrixAdapters::Matrix* const settings = config_.lora.by_matrix.find(module);
  if (!settings) return;
  const std::int64_t dim = settings->dim, vocab = config_.vocab;
  Share table = vocabulary_share(vocabulary_, dim);
  engine::Parameter& down = declare(store, 0, "embedding.lora_A", table.shape, Initializer::constant(0),
                                    {{module + ".lora_embedding_A",
                                      0,
                                      vocab,
                                      {.dims = {1, vocab, dim}, .axes = {0, 2, 1}, .shape = {dim, vocab}}}},
                                    table.placement);
  engine::Parameter& up = declare(store, 0, "embedding.lora_B", {config_.hidden, dim}, Initializer::normal(1),
                                  {{module + ".lora_embedding_B", 0, config_.hidden}});
  down.is_low_rank = up.is_low_rank = true;
  if (!here) {
    down.uses.clear();
    up.uses.clear();
  }
  embedding_->low_rank.parts.push_back(
      {.down = &down, .up = &up, .scale = static_cast<float>(settings->scale)});
}

// Freezes all parameters except adapters and the modules in MatrixAdapters::saved.
void LanguageModel::freeze_base(engine::ParameterStore& store) const {
  const MatrixAdapters& adapters = config_.lora.by_matrix;
  for (engine::Parameter& p : store.parameters()) {
    const auto saved = std::ranges::count_if(p.parts, [&](const engine::CheckpointPart& part) {
      return adapters.saves(std::string_view(part.name).substr(0, part.name.rfind('.')));
    });
    if (saved != 0 && saved != static_cast<std::ptrdiff_t>(p.parts.size())) {
      throw unsupported(
          fmt::format("modules_to_save names only some of the matrices that Primus stores together: {}",
                      p.parts.front().name),
          "name all of them (such as q_proj, k_proj and v_proj, or gate_proj and up_proj), or none");
    }
    p.trainable = p.is_low_rank || saved != 0;
    // As in bitsandbytes and PEFT, the embedding, the head, routers and norms keep the compute type.
    const bool linear = (p.linear_of >= 0 || p.low_rank.possible) && !p.vocabulary;
    if (linear && !p.trainable && !p.reads_full_precision && !p.full_precision)
      p.four_bit.format = config_.lora.training.base;
  }
}

int LanguageModel::chunk_with(std::int64_t block) const {
  for (std::size_t i = 0; i < chunks_.size(); ++i) {
    if (chunks_[i].begin <= block && block < chunks_[i].end) return static_cast<int>(i);
  }
  return -1;
}

bool LanguageModel::needs_tokens(int chunk) const {
  const Chunk& part = chunks_[static_cast<std::size_t>(chunk)];
  return part.first || part.begin < std::min(part.end, config_.moe.hash_layers);
}

void LanguageModel::allocate_tables(engine::Rank& rank, std::int64_t positions) {
  const auto allocate = [&](const ModelConfig& config) {
    const Tensor on_device = rank.persistent(DType::kF32, {positions, config.rotary_dim()});
    if (rank.measuring()) return on_device;
    const std::vector<float> table = make_rope_table(config, positions);
    rank.compute().copy_to_device(on_device.data, table.data(), on_device.bytes());
    rank.compute().synchronize();
    return on_device;
  };
  if (!config_.any_keeps(Keeps::kPooled)) {
    rope_table_ = allocate(config_);
    if (config_.attention.local_theta == 0 || config_.local_layers().empty()) return;
    ModelConfig local = config_;
    local.rope_theta = config_.attention.local_theta;
    local.rope_scaling = {};
    local_rope_table_ = allocate(local);
    return;
  }
  // Only layers with pooled latents use stretched rotary frequencies.
  ModelConfig plain = config_, compressed = config_;
  plain.rope_scaling = {};
  compressed.rope_theta = config_.attention.pooled.theta;
  rope_table_ = allocate(plain);
  compressed_rope_table_ = allocate(compressed);
}

BlockInputs LanguageModel::block_inputs(const ModelInputs& in) const {
  BlockInputs inputs = in.blocks;
  inputs.rope_table = rope_table_;
  inputs.compressed_rope_table = compressed_rope_table_;
  inputs.local_rope_table = local_rope_table_;
  inputs.tokens = in.tokens;
  return inputs;
}

engine::DropoutSource LanguageModel::dropout_source(const BlockInputs& in) const {
  engine::DropoutSource source = *in.dropout;
  source.of_layer = own_tokens(in.token_numbers, mesh_ ? mesh_->context() : nullptr);
  source.own = own_tokens(source.of_layer, vocabulary_.group);
  return source;
}

Value LanguageModel::forward(int chunk, const ModelInputs& in, Value x) const {
  const Chunk& part = chunks_[static_cast<std::size_t>(chunk)];
  if (part.first) x = embed(in.tokens, *embedding_, vocabulary_, config_.embedding_factor());
  if (part.first && ends_) x = ends_->widen(x);
  engine::Residual stream = ends_ && !part.first ? ends_->unpack(x, part.begin) : engine::Residual{x, {}};
  x = {};
  const BlockInputs inputs = block_inputs(in);
  std::optional<engine::DropoutScope> dropout;
  if (inputs.dropout) dropout.emplace(stream.sum.tape(), dropout_source(inputs));
  for (std::int64_t i = part.begin; i < part.end; ++i) blocks_[i]->forward(stream, inputs);
  if (part.last && ends_) stream = {ends_->contract(stream), {}};
  if (part.last) return norm(stream, *final_norm_, config_.norm_epsilon);
  if (ends_) return ends_->pack(stream);
  flush(stream);
  return stream.sum;
}

Value LanguageModel::forward(const ModelInputs& in) const {
  Value x;
  for (int chunk = 0; chunk < chunks(); ++chunk) x = forward(chunk, in, std::move(x));
  return x;
}

Value LanguageModel::before_head(const Value& hidden) const {
  return config_.logit_divisor == 1 ? hidden : scale(hidden, static_cast<float>(1 / config_.logit_divisor));
}

Value LanguageModel::loss(const Value& hidden, const ModelInputs& in) const {
  if (config_.scores) return engine::score_head(hidden, *head_, in.loss_weights, vocabulary_.group);
  return loss(hidden, in.labels, in.loss_weights);
}

Value LanguageModel::loss(const Value& hidden, const Value& labels, const Value& loss_weights) const {
  // This value stays in the stash, because the backward pass begins with it.
  const Value all = gather_tokens(before_head(hidden), vocabulary_.group, engine::Gathered::kKept);
  return lm_head_loss(all, *head_, labels, loss_weights, vocabulary_, config_.logit_cap);
}

Value LanguageModel::weighed_loss(const Value& hidden, const ModelInputs& in, const TokenNeeds& needs,
                                  FunctionRef<void(const TokenValues& tokens)> weigh) const {
  if (config_.scores) {
    PRIMUS_CHECK("LanguageModel::weighed_loss", !needs.statistics && !needs.entropy_weights);
    Value scores = loss(hidden, in);
    weigh({.losses = scores.tensor()});
    return scores;
  }
  const Value all = gather_tokens(before_head(hidden), vocabulary_.group, engine::Gathered::kKept);
  engine::Tape& tape = all.tape();
  Value entropy_weights;
  TokenValues tokens;
  if (needs.entropy_weights) {
    entropy_weights = tape.input(DType::kF32, in.loss_weights.shape(), false);
    tokens.entropy_weights = entropy_weights.tensor();
    turbo::launch(tape.context(), turbo::Fill{.out = tokens.entropy_weights, .value = 0});
  }
  {
    const Value ones = tape.input(DType::kF32, in.loss_weights.shape(), false);
    turbo::launch(tape.context(), turbo::Fill{.out = ones.tensor(), .value = 1});
    engine::TokenStatistics values;
    if (needs.statistics) {
      values = engine::token_statistics(all, *head_, in.labels, ones, vocabulary_, config_.logit_cap);
      tokens.entropies = values.entropies.tensor();
      tokens.collisions = values.collisions.tensor();
    } else {
      values.losses = engine::token_losses(all, *head_, in.labels, ones, vocabulary_, config_.logit_cap);
    }
    tokens.losses = values.losses.tensor();
    weigh(tokens);
  }
  return lm_head_loss(all, *head_, in.labels, in.loss_weights, vocabulary_, config_.logit_cap,
                      entropy_weights);
}

Value LanguageModel::distilled_loss(const Value& hidden, const ModelInputs& in,
                                    const engine::Teacher& teacher) const {
  PRIMUS_CHECK("LanguageModel::distilled_loss", !config_.scores);
  const Value all = gather_tokens(before_head(hidden), vocabulary_.group, engine::Gathered::kKept);
  return engine::distilled_loss(all, *head_, in.labels, in.loss_weights, vocabulary_, teacher);
}

Value LanguageModel::head_inputs(const Value& hidden) const {
  return gather_tokens(before_head(hidden), vocabulary_.group);
}

Value LanguageModel::entropies(const Value& hidden, const ModelInputs& in) const {
  PRIMUS_CHECK("LanguageModel::entropies", !config_.scores);
  const Value all = gather_tokens(before_head(hidden), vocabulary_.group);
  engine::Tape& tape = all.tape();
  const Value ones = tape.input(DType::kF32, in.loss_weights.shape(), false);
  turbo::launch(tape.context(), turbo::Fill{.out = ones.tensor(), .value = 1});
  return engine::token_statistics(all, *head_, in.labels, ones, vocabulary_, config_.logit_cap).entropies;
}

std::vector<Value> LanguageModel::mtp_losses(const Value& hidden, const ModelInputs& in) const {
  const BlockInputs inputs = block_inputs(in);
  std::optional<engine::DropoutScope> dropout;
  if (inputs.dropout) dropout.emplace(hidden.tape(), dropout_source(inputs));
  std::vector<Value> losses;
  Value h = hidden;
  for (std::size_t i = 0; i < mtp_.size(); ++i) {
    const MtpInputs& depth = in.mtp[i];
    h = mtp_[i].forward(h, depth.tokens, inputs);
    losses.push_back(loss(h, depth.labels, depth.loss_weights));
  }
  return losses;
}

Value LanguageModel::logits(const Value& hidden) const {
  PRIMUS_CHECK("LanguageModel::logits", !config_.scores);
  Value logits =
      gather_logits(linear(gather_tokens(before_head(hidden), vocabulary_.group), *head_), vocabulary_);
  return config_.logit_cap > 0 ? soft_cap(std::move(logits), config_.logit_cap) : logits;
}

bool LanguageModel::has_loss_logits() const {
  return !config_.scores && !vocabulary_.group && config_.logit_cap == 0;
}

Value LanguageModel::loss_logits(const Value& hidden) const {
  PRIMUS_CHECK("LanguageModel::loss_logits", has_loss_logits());
  return engine::head_logits(before_head(hidden), *head_);
}

Value LanguageModel::select(const Value& hidden, const Value& rows) const {
  return engine::select_rows(gather_tokens(hidden, vocabulary_.group), rows);
}

RoutingStep LanguageModel::make_routing_step(engine::Rank& rank) const {
  const auto table = [&](DType dtype, std::int64_t columns) {
    return rank.persistent(dtype, {config_.layers + config_.mtp.modules(), columns});
  };
  RoutingStep step{.load = table(DType::kI32, config_.moe.experts + 1), .losses = table(DType::kF32, 2)};
  if (config_.moe.training.balance_step) step.running = table(DType::kI32, config_.moe.experts);
  const std::int64_t bins = config_.moe.experts * config_.moe.training.quantile_bins;
  if (bins > 0) step.margins = table(DType::kI32, bins);
  return step;
}

void LanguageModel::end_step(turbo::Context& context, const RoutingStep& step) const {
  for (const Chunk& chunk : chunks_) {
    for (std::int64_t i = chunk.begin; i < chunk.end; ++i) blocks_[i]->end_step(context, step);
    if (!chunk.last) continue;
    for (const MultiTokenPrediction& module : mtp_) module.end_step(context, step);
  }
}

KvCache LanguageModel::make_kv_cache(engine::Phase& phase, DType dtype, std::int64_t sequences,
                                     std::int64_t capacity, std::int64_t pages,
                                     std::int64_t page_size) const {
  KvCache cache;
  const std::int64_t blocks = (capacity + page_size - 1) / page_size;
  cache.sequences = {.query_starts = phase.tensor(DType::kI32, {sequences + 1}),
                     .key_lengths = phase.tensor(DType::kI32, {sequences}),
                     .block_table = phase.tensor(DType::kI32, {sequences, blocks}),
                     .page_size = page_size};
  const CacheRequest request{.dtype = dtype,
                             .sequences = sequences,
                             .pages = pages,
                             .page_size = page_size,
                             .tensor_ranks = vocabulary_.group ? vocabulary_.group->size() : 1};
  cache.layers.resize(static_cast<std::size_t>(config_.layers));
  for (std::int64_t layer = 0; layer < config_.layers; ++layer) {
    if (chunk_with(layer) < 0) continue;
    engine::KvCacheLayer& entry = cache.layers[static_cast<std::size_t>(layer)];
    config_.spec(layer).attention->make_cache(config_, request, phase, entry);
  }
  return cache;
}

}  // namespace primus
