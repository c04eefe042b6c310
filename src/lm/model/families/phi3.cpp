// Phi-3 and Phi-4 (Abdin et al. 2024, arXiv:2404.14219 and 2412.08905): Llama with checkpoints that fuse
// queries, keys and values in one matrix, and gate and up in another matrix. A part of each head may be
// rotated, longrope may stretch the frequencies, and all layers may have a window.
#include <nlohmann/json.hpp>

#include "lm/model/blocks/layers.h"
#include "lm/model/config_reader.h"
#include "lm/model/families/families.h"

namespace primus {
namespace {

constexpr const char* kDefaults = R"({"max_position_embeddings": 4096, "rms_norm_eps": 1e-5,
  "original_max_position_embeddings": 4096})";

void read(const nlohmann::json& json, ModelConfig& config) {
  refuse_unless(json, "hidden_act", "silu");
  refuse_unless(json, "attention_bias", false);
  refuse_unless(json, "embd_pdrop", 0);
  refuse_unless(json, "resid_pdrop", 0);
  // For this family, transformers treats yarn as longrope and supports no other kind.
  const RopeScaling::Kind kind = config.rope_scaling.kind;
  if (kind != RopeScaling::Kind::kNone && kind != RopeScaling::Kind::kLongrope) {
    throw ConfigReader(json).not_supported("rope_type", " is not supported for this model family",
                                           "choose default or longrope");
  }
  read_common_window(json, config);
}

void write(const ModelConfig& config, nlohmann::json& json) {
  json["attention_bias"] = false;
  json["attention_dropout"] = json["embd_pdrop"] = json["resid_pdrop"] = 0.0;
  json["hidden_act"] = "silu";
  // This key is also written outside of rope_parameters, because transformers would otherwise assume 4096.
  if (config.rope_scaling.kind == RopeScaling::Kind::kLongrope)
    json["original_max_position_embeddings"] = config.rope_scaling.original_max_positions;
  write_common_window(config, json);
}

std::unique_ptr<Block> make_block(const ModelConfig& config, engine::ParameterStore& store,
                                  std::int64_t layer, int chunk) {
  const BlockParameters parameters(config, store, layer, chunk);
  SelfAttentionOptions options = attention_options(config, layer);
  options.fused_qkv = true;
  return std::make_unique<DecoderBlock>(
      config, parameters, [&] { return self_attention(config, parameters, options); },
      [&] {
        return feed_forward(config, parameters, config.ffn, ".ffn", ".mlp", {.gate_up = "gate_up_proj"});
      });
}

}  // namespace

extern const FamilyEntry kPhi3{[]() -> Family {
  Family family{"phi3", "Phi3ForCausalLM", read, write, make_block, {}, kDefaults};
  family.partial_rotary = true;
  // Keys of the image encoders of other models with the same model_type.
  family.other_keys = {"embd_layer", "img_processor"};
  return family;
}};

}  // namespace primus
