// DeepSeek-V3 (arXiv:2412.19437): experts scored by sigmoids and balanced by a bias that affects only the
// choice of experts.
#include <nlohmann/json.hpp>

#include "lm/model/families/deepseek.h"
#include "lm/model/families/families.h"

namespace primus {
namespace {

constexpr const char* kDefaults =
    R"({"max_position_embeddings": 4096, "q_lora_rank": 1536, "kv_lora_rank": 512,
  "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 256,
  "n_shared_experts": 1, "moe_intermediate_size": 2048, "first_k_dense_replace": 3, "routed_scaling_factor": 2.5,
  "num_experts_per_tok": 8, "n_group": 8, "topk_group": 4})";

void read(const nlohmann::json& json, ModelConfig& c) {
  deepseek::read_common(json, c);
  // transformers' V3 class rotates head_dim columns of a key. V2's class rotates qk_rope_head_dim columns.
  refuse_unless(json, "head_dim", c.attention.latent.rope_dim);
  refuse_unless(json, "scoring_func", "sigmoid");
  refuse_unless(json, "topk_method", "noaux_tc");
  deepseek::read_sigmoid_scores(json, c);
}

void write(const ModelConfig& c, nlohmann::json& json) {
  deepseek::write_common(c, json);
  json["scoring_func"] = "sigmoid";
  json["topk_method"] = "noaux_tc";
  json["rope_interleave"] = true;
}

}  // namespace

extern const FamilyEntry kDeepseekV3{[]() -> Family {
  Family family{"deepseek_v3",        "DeepseekV3ForCausalLM", read,     write,
                deepseek::make_block, deepseek::switches(),    kDefaults};
  family.other_names = {"kimi_k2"};
  family.other_keys = deepseek::other_keys();
  family.aliases = {{"num_local_experts", "n_routed_experts"},
                    {"num_mtp_layers", "num_nextn_predict_layers"}};
  return family;
}};

}  // namespace primus
