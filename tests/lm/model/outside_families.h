// Model families for tests of programs that use Primus as a library. Each family is a composition and one
// registry entry.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lm/model/blocks/layers.h"
#include "lm/model/family.h"

namespace primus::test {

// Returns a family with all options of ordinary attention. Odd layers differ from even layers.
inline Family every_attention_option() {
  const auto make_block = [](const ModelConfig& config, engine::ParameterStore& store, std::int64_t layer,
                             int chunk) -> std::unique_ptr<Block> {
    const BlockParameters parameters(config, store, layer, chunk);
    SelfAttentionOptions options = attention_options(config, layer);
    options.qkv_bias = options.out_bias = options.sinks = true;
    options.interleaved = true;
    options.head_norm = layer % 2 == 0 ? SelfAttentionOptions::HeadNorm::kAfterRope
                                       : SelfAttentionOptions::HeadNorm::kBeforeRope;
    if (!options.rope) {
      options.floor_scale = config.attention.floor_scale;
      options.attn_scale = config.attention.attn_scale;
    }
    return std::make_unique<DecoderBlock>(
        config, parameters, [&] { return self_attention(config, parameters, options); },
        [&] { return feed_forward(config, parameters, config.ffn); });
  };
  return {"every_attention_option", "EveryAttentionOption", [](const nlohmann::json&, ModelConfig&) {},
          [](const ModelConfig&, nlohmann::json&) {}, make_block};
}

// Returns a family with latent attention and an ordinary feed-forward.
inline Family latent_family() {
  const auto make_block = [](const ModelConfig& config, engine::ParameterStore& store, std::int64_t layer,
                             int chunk) -> std::unique_ptr<Block> {
    const BlockParameters parameters(config, store, layer, chunk);
    return std::make_unique<DecoderBlock>(
        config, parameters, [&] { return latent_attention(config, parameters); },
        [&] { return feed_forward(config, parameters, config.ffn); });
  };
  return {"latent", "Latent", [](const nlohmann::json&, ModelConfig&) {},
          [](const ModelConfig&, nlohmann::json&) {}, make_block};
}

// Two residual streams: attention adds to the first, and the feed-forward to the second. Each branch reads
// the stream to which the other branch adds.
class TwoStreamBlock final : public Block {
 public:
  TwoStreamBlock(const ModelConfig& config, const BlockParameters& parameters)
      : layer_(parameters.layer()),
        hidden_(config.hidden),
        epsilon_(config.norm_epsilon),
        attention_norm_(parameters.norm(".attention_norm", ".input_layernorm.weight")),
        attention_(self_attention(config, parameters)),
        ffn_norm_(parameters.norm(".ffn_norm", ".post_attention_layernorm.weight")),
        feed_forward_(feed_forward(config, parameters, config.ffn)) {}

  void forward(engine::Residual& x, const BlockInputs& in) const override {
    engine::BlockScope scope(x, layer_);
    flush(x);
    auto [first, second] = split(x.sum, hidden_);
    first = sum(std::move(first), attention_->forward(norm(second, attention_norm_, epsilon_), in));
    second = sum(std::move(second), feed_forward_->forward(norm(first, ffn_norm_, epsilon_), in));
    x = {concat(first, second), {}};
  }

 private:
  std::int64_t layer_, hidden_;
  double epsilon_;
  engine::Parameter& attention_norm_;
  std::unique_ptr<Layer> attention_;
  engine::Parameter& ffn_norm_;
  std::unique_ptr<Layer> feed_forward_;
};

class TwoStreamEnds final : public StreamEnds {
 public:
  TwoStreamEnds(const ModelConfig& config, engine::ParameterStore& store, int depth, int chunk)
      : matrix_(declare(store, chunk, "contract" + std::to_string(depth), {config.hidden, 2 * config.hidden},
                        engine::Initializer::normal(0.2),
                        {{"contract" + std::to_string(depth) + ".weight", 0, config.hidden}})) {}
  engine::Value widen(const engine::Value& hidden) const override { return concat(hidden, hidden); }
  engine::Value contract(engine::Residual& x) const override {
    flush(x);
    return linear(x.sum, matrix_);
  }

 private:
  engine::Parameter& matrix_;
};

inline Family two_streams() {
  const auto make_block = [](const ModelConfig& config, engine::ParameterStore& store, std::int64_t layer,
                             int chunk) -> std::unique_ptr<Block> {
    return std::make_unique<TwoStreamBlock>(config, BlockParameters(config, store, layer, chunk));
  };
  Family family{"two_streams", "TwoStreams", [](const nlohmann::json&, ModelConfig&) {},
                [](const ModelConfig&, nlohmann::json&) {}, make_block};
  family.make_stream_ends = [](const ModelConfig& config, engine::ParameterStore& store, int depth,
                               int chunk) -> std::unique_ptr<StreamEnds> {
    return std::make_unique<TwoStreamEnds>(config, store, depth, chunk);
  };
  return family;
}

inline FamilyRegistry all_families() {
  FamilyRegistry registry = builtin_families();
  registry.add(every_attention_option());
  registry.add(latent_family());
  registry.add(two_streams());
  return registry;
}

struct NamedConfig {
  std::string name;
  ModelConfig config;
};
inline void PrintTo(const NamedConfig& named, std::ostream* out) { *out << named.name; }

// Returns variants of `base` with each kind of attention.
inline std::vector<NamedConfig> attention_configs(const ModelConfig& base) {
  std::vector<NamedConfig> all;
  all.reserve(16);  // keeps the references from add() valid
  const auto add = [&](const std::string& name, const std::string& family) -> ModelConfig& {
    all.push_back({name, base});
    all.back().config.family = family;
    return all.back().config;
  };
  add("qwen2", "qwen2").tied_embeddings = true;
  ModelConfig& windows = add("qwen2_windows", "qwen2");
  windows.attention.window = 5;
  windows.at(1).local = true;
  add("qwen3", "qwen3").head_dim = 20;
  ModelConfig& convolutions = add("short_convolutions", "lfm2");
  convolutions.at(0).attention = &kShortConvolution;
  convolutions.convolution.width = 4;
  convolutions.convolution.bias = true;
  ModelConfig& linear = add("gated_delta", "qwen3_5_text");
  linear.centred_norms = linear.attention.output_gate = true;
  // Small states are divided by this epsilon; a smaller value would make finite differences inaccurate.
  linear.norm_epsilon = 1e-2;
  linear.linear = {.key_heads = 2, .value_heads = 4, .key_dim = 8, .value_dim = 6, .conv_width = 4};
  linear.at(0).attention = &kGatedDeltaNet;
  ModelConfig& by_head = add("gated_delta_by_head", "qwen3_next");
  by_head.centred_norms = by_head.attention.output_gate = true;
  by_head.norm_epsilon = linear.norm_epsilon;
  by_head.linear = linear.linear;
  by_head.at(1).attention = &kGatedDeltaNet;
  ModelConfig& each = add("gated_delta_beside_latent", "gated_deltanet");
  each.kv_heads = each.heads;
  each.attention.latent = {.q_rank = 20, .kv_rank = 16, .nope_dim = 12, .rope_dim = 8, .value_dim = 10};
  each.head_dim = 20;
  each.norm_epsilon = linear.norm_epsilon;
  each.linear = linear.linear;
  each.set_layers(&LayerSpec::attention, &kLatentAttention);
  each.at(0).attention = &kGatedDeltaNet;
  ModelConfig& channels = add("channel_gated_delta_alone", "kda");
  channels.norm_epsilon = 0.1;
  channels.linear = linear.linear;
  channels.set_layers(&LayerSpec::attention, &kDeltaAttention);
  ModelConfig& options = add("every_option", "every_attention_option");
  options.attention.chunk = 6;
  options.at(0).local = true;
  options.at(1).rope = false;
  options.attention.floor_scale = 4;
  options.attention.attn_scale = 0.3;
  ModelConfig& sparse = add("sparse_latent", "latent");
  sparse.kv_heads = sparse.heads;
  sparse.set_layers(&LayerSpec::attention, &kLatentAttention);
  sparse.attention.latent = {.q_rank = 20, .kv_rank = 16, .nope_dim = 12, .rope_dim = 8, .value_dim = 10};
  sparse.attention.indexer = {.heads = 3, .head_dim = 14, .top_k = 5};
  for (const std::int64_t q_rank : {0, 20}) {
    ModelConfig& latent = add(q_rank > 0 ? "latent_queries" : "latent", "latent");
    latent.kv_heads = latent.heads;
    latent.set_layers(&LayerSpec::attention, &kLatentAttention);
    latent.attention.latent = {
        .q_rank = q_rank, .kv_rank = 16, .nope_dim = 12, .rope_dim = 8, .value_dim = 10};
    latent.rope_scaling = {.kind = RopeScaling::Kind::kYarn, .factor = 4, .original_max_positions = 8};
    latent.rope_scaling.mscale = latent.rope_scaling.mscale_all_dim = 0.707;
  }
  return all;
}

}  // namespace primus::test
