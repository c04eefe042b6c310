// Mixtral (Jiang et al. 2024, arXiv:2401.04088): Llama with a mixture of experts in every block. Routing
// weights are the softmax over the chosen logits.
#include <nlohmann/json.hpp>

#include "lm/model/blocks/layers.h"
#include "lm/model/blocks/mixture_of_experts.h"
#include "lm/model/config_reader.h"
#include "lm/model/families/families.h"

namespace primus {
namespace {

constexpr const char* kDefaults = R"({"num_key_value_heads": 8, "max_position_embeddings": 131072,
  "rms_norm_eps": 1e-5, "rope_theta": 1e6, "num_local_experts": 8, "num_experts_per_tok": 2})";

void read(const nlohmann::json& json, ModelConfig& c) {
  refuse_unless(json, "hidden_act", "silu");
  refuse_unless(json, "sliding_window", nullptr);
  const ConfigReader r(json);
  read_expert_counts(r, "num_local_experts", c);
  c.moe.ffn = c.ffn;
}

void write(const ModelConfig& c, nlohmann::json& json) {
  json["hidden_act"] = "silu";
  json["sliding_window"] = nullptr;
  json["num_local_experts"] = c.moe.experts;
  json["num_experts_per_tok"] = c.moe.router.top_k;
  json["output_router_logits"] = false;
  json["router_aux_loss_coef"] = c.moe.training.balance_loss;
  json["router_jitter_noise"] = 0.0;
}

std::unique_ptr<Block> make_block(const ModelConfig& config, engine::ParameterStore& store,
                                  std::int64_t layer, int chunk) {
  const BlockParameters parameters(config, store, layer, chunk);
  return std::make_unique<DecoderBlock>(
      config, parameters, [&] { return self_attention(config, parameters); },
      [&] {
        return mixture_of_experts(config, parameters,
                                  separate_experts(config, ".block_sparse_moe.gate.weight",
                                                   ".block_sparse_moe.experts", "w1", "w3", "w2"));
      });
}

}  // namespace

extern const FamilyEntry kMixtral{[]() -> Family {
  Family family{"mixtral", "MixtralForCausalLM", read, write, make_block, {}, kDefaults};
  family.aliases = {{"num_experts", "num_local_experts"}};
  return family;
}};

}  // namespace primus
