#include "lm/model/multi_token_prediction.h"

#include <string>
#include <utility>

#include "engine/operators/low_rank.h"
#include "engine/operators/row_adapters.h"
#include "lm/model/blocks/block_parameters.h"

namespace primus {
engine::Value embed(const engine::Value& tokens, engine::Parameter& table,
                    const engine::SharedVocabulary& vocabulary, const EmbeddingScale& scaling) {
  const auto rows_of = [&](const engine::Value& ids, engine::Parameter& from) {
    return scatter_tokens(embedding(ids, from, vocabulary), vocabulary.group);
  };
  const auto with_adapters = [&](engine::Value rows, const engine::Value& ids, engine::Parameter& from) {
    return with_part_adapters(std::move(rows), from, [&](const engine::LowRank& adapter) {
      return product(rows_of(ids, *adapter.down), *adapter.up);
    });
  };
  engine::Value x =
      with_row_adapters(with_adapters(rows_of(tokens, table), tokens, table), tokens, table, with_adapters);
  if (scaling.factor == 1) return x;
  auto factor = static_cast<float>(scaling.factor);
  if (scaling.rounded && x.dtype() == DType::kBF16) factor = static_cast<float>(BFloat16(factor));
  return scale(std::move(x), factor);
}

MultiTokenPrediction::MultiTokenPrediction(const ModelConfig& config, const Family& family,
                                           engine::ParameterStore& store, engine::Parameter& embedding,
                                           engine::Parameter& head, int depth, int chunk)
    : layer_(config.layers + depth - 1),
      epsilon_(config.norm_epsilon),
      embedding_scale_(config.embedding_factor()),
      vocabulary_(shared_vocabulary(config, store)),
      embedding_(embedding) {
  const std::string at = "layers." + std::to_string(layer_);
  store.begin_group(at).if_missing =
      "these weights have no multi-token prediction of that depth: set mtp_num_layers to the number that "
      "they "
      "have (0: train without)";
  const BlockParameters parameters(config, store, layer_, chunk);
  embedding_norm_ = &parameters.norm(".enorm", ".enorm.weight");
  hidden_norm_ = &parameters.norm(".hnorm", ".hnorm.weight");
  join_ = &parameters.add(".eh_proj", {config.hidden, 2 * config.hidden}, parameters.matrix(),
                          {{".eh_proj.weight", 0, config.hidden}});
  block_ = family.make_block(config, store, layer_, chunk);
  if (config.streams() > 1) ends_ = family.make_stream_ends(config, store, depth, chunk);
  final_norm_ = &parameters.norm(".final_norm", ".shared_head.norm.weight");
  if (chunk >= 0) {
    embedding.uses.push_back(chunk);
    head.uses.push_back(chunk);
  }
  embedding.parts.front().copies.push_back("model." + at + ".embed_tokens.weight");
  head.parts.front().copies.push_back("model." + at + ".shared_head.head.weight");
}

engine::Value MultiTokenPrediction::forward(const engine::Value& hidden, const engine::Value& tokens,
                                            const BlockInputs& inputs) const {
  engine::Tape& tape = hidden.tape();
  tape.enter_block(layer_);  // the embedding, norms and projection below are recomputed with the block
  const engine::Value embedded = embed(tokens, embedding_, vocabulary_, embedding_scale_);
  engine::Value joined = linear(
      concat(norm(embedded, *embedding_norm_, epsilon_), norm(hidden, *hidden_norm_, epsilon_)), *join_);
  engine::Residual stream{ends_ ? ends_->widen(joined) : std::move(joined), {}};
  block_->forward(stream, inputs);
  if (ends_) stream = {ends_->contract(stream), {}};
  tape.leave_block();
  return norm(stream, *final_norm_, epsilon_);
}

}  // namespace primus
