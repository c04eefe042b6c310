// Llama 4's language model (Meta 2025): most layers rotate neighbouring pairs and attend within chunks; every
// fourth layer has no positions and scales its queries instead. Some layers have a mixture of experts with a
// shared expert. Routing weights multiply the inputs of the experts. Checkpoints store all experts in one
// tensor [experts, in, out].
#include <algorithm>
#include <nlohmann/json.hpp>

#include "lm/model/blocks/layers.h"
#include "lm/model/blocks/mixture_of_experts.h"
#include "lm/model/config_reader.h"
#include "lm/model/families/families.h"

namespace primus {

// QK norm, for families in which only some models have it.
PRIMUS_MODEL_FIELD(ATTENTION, bool, head_norm, false, qk_l2_norm, kFixed, "use_qk_norm");

namespace {

constexpr const char* kLocal = "chunked_attention";
constexpr const char* kDefaults =
    R"({"num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 131072,
  "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "intermediate_size_mlp": 16384, "attention_chunk_size": 8192,
  "num_local_experts": 16, "num_experts_per_tok": 1})";

void read_positions(const ConfigReader& r, const nlohmann::json& json, ModelConfig& c) {
  read_layers_without_rope(r, c);
  c.attention.chunk = r.integer("attention_chunk_size", 1, ConfigReader::kMaxWidth);
  if (const auto types = json.find("layer_types"); types != json.end() && !types->is_null()) {
    read_local_layers(json, kLocal, c, nullptr);
  } else {
    for (std::int64_t layer = 0; layer < c.layers; ++layer) c.at(layer).local = c.spec(layer).rope;
  }
  c.attention.floor_scale = r.integer_or("floor_scale", 8192, 1, std::int64_t{1} << 40);
  // Published files have the value true or 4.
  const nlohmann::json* const tuning = r.find("attn_temperature_tuning");
  const bool tuned = tuning != nullptr && tuning->is_number() ? r.number_or("attn_temperature_tuning", 0) != 0
                                                              : r.flag_or("attn_temperature_tuning", true);
  c.attention.attn_scale = tuned ? r.positive_or("attn_scale", 0.1) : 0;
  c.attention.head_norm = r.flag_or("use_qk_norm", true);
}

void read(const nlohmann::json& json, ModelConfig& c) {
  refuse_unless(json, "attention_bias", false);
  refuse_unless(json, "hidden_act", "silu");
  const ConfigReader r(json);
  read_positions(r, json, c);
  c.moe.ffn = c.moe.shared_ffn = c.ffn;
  c.ffn = r.integer("intermediate_size_mlp", 1, ConfigReader::kMaxWidth);
  read_expert_counts(r, "num_local_experts", c);
  c.moe.router.scoring = turbo::RouterRule::Scoring::kSigmoid;
  c.moe.router.normalise = false;
  c.moe.weigh_input = true;
  const bool listed = r.find("moe_layers") != nullptr;
  const std::vector<std::int64_t> routed = r.integers("moe_layers", 0, c.layers - 1);
  const std::int64_t step = r.integer_or("interleave_moe_layer_step", 1, 1, c.layers);
  for (std::int64_t layer = 0; layer < c.layers; ++layer) {
    const bool is_routed =
        listed ? std::find(routed.begin(), routed.end(), layer) != routed.end() : (layer + 1) % step == 0;
    if (!is_routed) c.at(layer).feed_forward = &kDenseFeedForward;
  }
}

void write(const ModelConfig& c, nlohmann::json& json) {
  json["attention_bias"] = false;
  json["attention_dropout"] = 0.0;
  json["hidden_act"] = "silu";
  json["intermediate_size"] = c.moe.ffn;
  json["intermediate_size_mlp"] = c.ffn;
  json["num_local_experts"] = c.moe.experts;
  json["num_experts_per_tok"] = c.moe.router.top_k;
  json["moe_layers"] = nlohmann::json::array();
  for (std::int64_t layer = 0; layer < c.layers; ++layer) {
    if (c.routed(layer)) json["moe_layers"].push_back(layer);
  }
  write_layers_without_rope(c, json);
  json["attention_chunk_size"] = c.attention.chunk;
  json["attn_temperature_tuning"] = c.attention.attn_scale != 0;
  if (c.attention.attn_scale != 0) json["attn_scale"] = c.attention.attn_scale;
  json["floor_scale"] = c.attention.floor_scale;
  json["use_qk_norm"] = c.attention.head_norm;
  write_layer_types(c, kLocal, json);
  json["router_aux_loss_coef"] = c.moe.training.balance_loss;
  json["router_jitter_noise"] = 0.0;
}

ExpertParts expert_parts(const ModelConfig& c) {
  const std::int64_t e = c.moe.experts, ffn = c.moe.ffn, hidden = c.hidden;
  const std::string at = ".feed_forward.experts.";
  return {.router = ".feed_forward.router.weight",
          .gate_up = {{at + "gate_up_proj",
                       0,
                       e * 2 * ffn,
                       {{e, 2 * ffn, hidden}, {0, 2, 1}, {e, hidden, 2 * ffn}}}},
          .down = {{at + "down_proj", 0, e * hidden, {{e, hidden, ffn}, {0, 2, 1}, {e, ffn, hidden}}}},
          .shared = ".feed_forward.shared_expert"};
}

std::unique_ptr<Block> make_block(const ModelConfig& config, engine::ParameterStore& store,
                                  std::int64_t layer, int chunk) {
  const BlockParameters parameters(config, store, layer, chunk);
  SelfAttentionOptions options = attention_options(config, layer);
  options.interleaved = true;
  if (options.rope) {
    if (config.attention.head_norm) options.head_norm = SelfAttentionOptions::HeadNorm::kAfterRope;
  } else {
    options.floor_scale = static_cast<double>(config.attention.floor_scale);
    options.attn_scale = config.attention.attn_scale;
  }
  return std::make_unique<DecoderBlock>(
      config, parameters, [&] { return self_attention(config, parameters, options); },
      [&] {
        if (config.routed(layer)) return mixture_of_experts(config, parameters, expert_parts(config));
        return feed_forward(config, parameters, config.ffn, ".ffn", ".feed_forward");
      });
}

}  // namespace

extern const FamilyEntry kLlama4{[]() -> Family {
  Family family{"llama4_text", "Llama4ForCausalLM", read, write, make_block, {{"rotary_interleaved", "true"}},
                kDefaults};
  family.other_keys = {"attn_scale", "for_llm_compressor", "interleave_moe_layer_step",
                       "no_rope_layer_interval"};
  return family;
}};

}  // namespace primus
