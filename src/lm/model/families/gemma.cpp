// Gemma 2 (Google 2024, arXiv:2408.00118) and Gemma 3 (2025, arXiv:2503.19786): Llama with norms before and
// after each branch, feed-forwards gated by GELU, and embeddings multiplied by the square root of their
// width. Some layers have a window. Gemma 2 caps scores and logits. Gemma 3 has QK norm, and a different
// rotary base in window layers. Checkpoints contain norm weights minus one.
#include <cmath>
#include <nlohmann/json.hpp>

#include "lm/model/blocks/layers.h"
#include "lm/model/config_reader.h"
#include "lm/model/families/families.h"

namespace primus {
namespace {

constexpr const char *kLocal = "sliding_attention", *kGelu = "gelu_pytorch_tanh";
constexpr const char *kScoreCap = "attn_logit_softcapping", *kLogitCap = "final_logit_softcapping",
                     *kQueries = "query_pre_attn_scalar", *kPattern = "sliding_window_pattern";
constexpr std::int64_t kWindow = 4096;
constexpr const char* kDefaults2 =
    R"({"num_hidden_layers": 26, "hidden_size": 2304, "intermediate_size": 9216,
  "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 256000,
  "max_position_embeddings": 8192, "tie_word_embeddings": true, "attn_logit_softcapping": 50.0,
  "final_logit_softcapping": 30.0})";
constexpr const char* kDefaults3 =
    R"({"num_hidden_layers": 26, "hidden_size": 2304, "intermediate_size": 9216,
  "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 262208,
  "max_position_embeddings": 131072, "tie_word_embeddings": true})";
constexpr NormNames kNorms{.ffn = ".pre_feedforward_layernorm.weight",
                           .after_attention = ".post_attention_layernorm.weight",
                           .after_ffn = ".post_feedforward_layernorm.weight"};

// Returns whether a layer has a window, for files without layer_types: all layers have a window except every
// n-th layer.
using IsLocal = bool (*)(const nlohmann::json& json, std::int64_t layer);
bool every_other(const nlohmann::json&, std::int64_t layer) { return (layer + 1) % 2 != 0; }
bool by_pattern(const nlohmann::json& json, std::int64_t layer) {
  return (layer + 1) % ConfigReader(json).integer_or(kPattern, 6, 1, ConfigReader::kMaxWidth) != 0;
}

double score_scale(double queries) { return 1 / std::sqrt(queries); }

void read_common(const nlohmann::json& json, ModelConfig& c, IsLocal is_local) {
  refuse_unless(json, "attention_bias", false);
  refuse_unless(json, "hidden_activation", kGelu);
  refuse_unless(json, "use_bidirectional_attention", false);
  const ConfigReader r(json);
  c.centred_norms = c.scaled_by_width = c.gelu_gates = true;
  const double queries = r.positive_or(kQueries, 256);
  c.attention.score_scale = queries == static_cast<double>(c.head_dim) ? 0 : score_scale(queries);
  c.logit_cap = r.optional_number(kLogitCap).value_or(0);
  if (c.logit_cap < 0) throw r.bad(kLogitCap, "must not be negative");
  c.attention.window = r.integer_or("sliding_window", kWindow, 1, ConfigReader::kMaxWidth);
  read_local_layers(json, kLocal, c, is_local);
  if (c.local_layers().empty()) c.attention.window = 0;
}

nlohmann::json cap_or_null(double cap) { return cap > 0 ? nlohmann::json(cap) : nlohmann::json(); }

void write_common(const ModelConfig& c, nlohmann::json& json) {
  json["attention_bias"] = false;
  json["attention_dropout"] = 0.0;
  json["hidden_activation"] = kGelu;
  // Writes an integer if possible, because transformers accepts only integers for this key.
  const double scale = c.attention.score_scale, queries = scale > 0 ? std::round(1 / (scale * scale)) : 0;
  if (scale == 0) {
    json[kQueries] = c.head_dim;
  } else if (queries >= 1 && score_scale(queries) == scale) {
    json[kQueries] = static_cast<std::int64_t>(queries);
  } else {
    json[kQueries] = 1 / (scale * scale);
  }
  json[kLogitCap] = cap_or_null(c.logit_cap);
  json[kScoreCap] = cap_or_null(c.attention.score_cap);
  // If no layer has a window, writes the default of transformers.
  json["sliding_window"] = c.attention.window > 0 ? c.attention.window : kWindow;
  write_layer_types(c, kLocal, json);
}

void read_gemma2(const nlohmann::json& json, ModelConfig& c) {
  read_common(json, c, every_other);
  const ConfigReader r(json);
  c.attention.score_cap = r.optional_number(kScoreCap).value_or(0);
  if (c.attention.score_cap < 0) throw r.bad(kScoreCap, "must not be negative");
}

void read_gemma3(const nlohmann::json& json, ModelConfig& c) {
  refuse_unless(json, kScoreCap, nullptr);
  read_common(json, c, by_pattern);
}

std::unique_ptr<Block> make_block(const ModelConfig& config, engine::ParameterStore& store,
                                  std::int64_t layer, int chunk, SelfAttentionOptions::HeadNorm head_norm) {
  const BlockParameters parameters(config, store, layer, chunk);
  SelfAttentionOptions options = attention_options(config, layer);
  options.head_norm = head_norm;
  return std::make_unique<DecoderBlock>(
      config, parameters, [&] { return self_attention(config, parameters, options); },
      [&] { return feed_forward(config, parameters, config.ffn); }, kNorms);
}

std::unique_ptr<Block> make_gemma2_block(const ModelConfig& config, engine::ParameterStore& store,
                                         std::int64_t layer, int chunk) {
  return make_block(config, store, layer, chunk, SelfAttentionOptions::HeadNorm::kNone);
}

std::unique_ptr<Block> make_gemma3_block(const ModelConfig& config, engine::ParameterStore& store,
                                         std::int64_t layer, int chunk) {
  return make_block(config, store, layer, chunk, SelfAttentionOptions::HeadNorm::kBeforeRope);
}

Family family(const char* model_type, const char* architecture) {
  Family family{model_type, architecture, nullptr, write_common};
  family.switches = {{"swiglu", kEither}, {"apply_layernorm_1p", "true"}};
  family.other_keys = {"hidden_act", "use_bidirectional_attention"};
  return family;
}

}  // namespace

extern const FamilyEntry kGemma2{[]() -> Family {
  Family gemma = family("gemma2", "Gemma2ForCausalLM");
  gemma.read = read_gemma2, gemma.make_block = make_gemma2_block;
  gemma.defaults = kDefaults2;
  return gemma;
}};

// The text_config of multimodal models has this form.
extern const FamilyEntry kGemma3{[]() -> Family {
  Family gemma = family("gemma3_text", "Gemma3ForCausalLM");
  gemma.read = read_gemma3, gemma.make_block = make_gemma3_block;
  gemma.switches.push_back({"qk_layernorm", "true"});
  gemma.defaults = kDefaults3;
  gemma.rope_by_layer_type = true;
  gemma.other_keys.push_back(kPattern);
  return gemma;
}};

}  // namespace primus
