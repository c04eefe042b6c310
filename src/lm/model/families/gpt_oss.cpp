// gpt-oss (OpenAI 2025, arXiv:2508.10925): a mixture of clamped SwiGLU experts in every block, biases
// everywhere, attention with learned sinks, and a window in every second layer. Checkpoints store all experts
// in one tensor [experts, in, out], with gate and up columns interleaved.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "lm/model/blocks/layers.h"
#include "lm/model/blocks/mixture_of_experts.h"
#include "lm/model/config_reader.h"
#include "lm/model/families/families.h"

namespace primus {
namespace {

constexpr const char* kLocal = "sliding_attention";
constexpr double kSwigluLimit = 7.0;
constexpr std::int64_t kWindow = 128;
constexpr const char* kDefaults =
    R"({"num_key_value_heads": 8, "head_dim": 64, "max_position_embeddings": 131072,
  "rms_norm_eps": 1e-5, "rope_theta": 150000.0, "rope_parameters": {"rope_type": "yarn", "factor": 32.0,
  "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false, "original_max_position_embeddings": 4096},
  "sliding_window": 128, "num_local_experts": 128, "num_experts_per_tok": 4})";
const std::vector<FamilySwitch> kSwitches = {{"add_qkv_bias", "true"},
                                             {"add_bias_linear", "true"},
                                             {"softmax_type", "learnable"},
                                             {"swiglu", kEither},
                                             {"quick_geglu", "true"},
                                             {"glu_linear_offset", "1"},
                                             {"activation_func_clamp_value", "7"}};

void read(const nlohmann::json& json, ModelConfig& c) {
  refuse_unless(json, "attention_bias", true);
  refuse_unless(json, "hidden_act", "silu");
  refuse_unless(json, "swiglu_limit", kSwigluLimit);
  refuse_unless(json, "swiglu_alpha", 1.702);
  const ConfigReader r(json);
  c.attention.window = r.integer("sliding_window", 1, ConfigReader::kMaxWidth);
  read_local_layers(json, kLocal, c,
                    [](const nlohmann::json&, std::int64_t layer) { return layer % 2 == 0; });
  if (c.local_layers().empty()) c.attention.window = 0;
  read_expert_counts(r, "num_local_experts", c);
  c.moe.ffn = c.ffn;
  c.moe.biases = true;
  c.moe.swiglu_limit = kSwigluLimit;
}

void write(const ModelConfig& c, nlohmann::json& json) {
  json["attention_bias"] = true;
  json["attention_dropout"] = 0.0;
  json["hidden_act"] = "silu";
  json["swiglu_limit"] = kSwigluLimit;
  // If no layer has a window, writes the default of transformers.
  json["sliding_window"] = c.attention.window > 0 ? c.attention.window : kWindow;
  write_layer_types(c, kLocal, json);
  json["num_local_experts"] = c.moe.experts;
  json["num_experts_per_tok"] = json["experts_per_token"] = c.moe.router.top_k;
  json["output_router_logits"] = false;
  json["router_aux_loss_coef"] = c.moe.training.balance_loss;
}

ExpertParts expert_parts(const ModelConfig& c) {
  const std::int64_t e = c.moe.experts, ffn = c.moe.ffn, hidden = c.hidden;
  const std::string at = ".mlp.experts.";
  return {.router = ".mlp.router.weight",
          .router_bias = ".mlp.router.bias",
          .gate_up = {{at + "gate_up_proj",
                       0,
                       e * 2 * ffn,
                       {{e, 2, ffn, hidden}, {0, 3, 2, 1}, {e, hidden, 2 * ffn}}}},
          .gate_up_bias = {{at + "gate_up_proj_bias", 0, e, {{e, 2, ffn}, {0, 2, 1}, {e, 2 * ffn}}}},
          .down = {{at + "down_proj", 0, e * hidden, {{e, hidden, ffn}, {0, 2, 1}, {e, ffn, hidden}}}},
          .down_bias = {{at + "down_proj_bias", 0, e}}};
}

std::unique_ptr<Block> make_block(const ModelConfig& config, engine::ParameterStore& store,
                                  std::int64_t layer, int chunk) {
  const BlockParameters parameters(config, store, layer, chunk);
  SelfAttentionOptions options = attention_options(config, layer);
  options.qkv_bias = options.out_bias = options.sinks = true;
  return std::make_unique<DecoderBlock>(
      config, parameters, [&] { return self_attention(config, parameters, options); },
      [&] { return mixture_of_experts(config, parameters, expert_parts(config)); });
}

}  // namespace

extern const FamilyEntry kGptOss{[]() -> Family {
  Family family{"gpt_oss", "GptOssForCausalLM", read, write, make_block, kSwitches, kDefaults};
  family.other_keys = {"initial_context_length", "swiglu_alpha"};
  family.aliases = {{"num_experts", "num_local_experts"}};
  return family;
}};

}  // namespace primus
