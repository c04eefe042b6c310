// DeepSeek-V2 (arXiv:2405.04434): experts scored by a softmax. Larger models choose experts only from the
// best groups.
#include <nlohmann/json.hpp>

#include "base/terminal/terminal.h"
#include "lm/model/config_reader.h"
#include "lm/model/families/deepseek.h"
#include "lm/model/families/families.h"

namespace primus {
namespace {

// In V2, num_experts_per_tok and groups have no default.
constexpr const char* kDefaults =
    R"({"max_position_embeddings": 2048, "q_lora_rank": 1536, "kv_lora_rank": 512,
  "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 64,
  "n_shared_experts": 2, "moe_intermediate_size": 1407, "first_k_dense_replace": 0, "routed_scaling_factor": 1.0,
  "topk_method": "greedy"})";
void read(const nlohmann::json& json, ModelConfig& c) {
  deepseek::read_common(json, c);
  refuse_unless(json, "scoring_func", "softmax");
  // V2's class in transformers does not normalize routing weights.
  refuse_unless(json, "norm_topk_prob", false);
  c.moe.router.normalise = false;
  const ConfigReader r(json);
  const std::string method = r.text_or("topk_method", "greedy");
  if (method == "group_limited_greedy") {
    deepseek::read_groups(json, c);
  } else if (method != "greedy") {  // "greedy" has no groups
    throw r.not_supported("topk_method", ": \"" + method + "\" is not supported for this model family",
                          "choose greedy or group_limited_greedy");
  }
}

void write(const ModelConfig& c, nlohmann::json& json) {
  deepseek::write_common(c, json);
  json["scoring_func"] = "softmax";
  json["topk_method"] = c.moe.router.groups > 1 ? "group_limited_greedy" : "greedy";
}

}  // namespace

extern const FamilyEntry kDeepseekV2{[]() -> Family {
  Family family{"deepseek_v2",        "DeepseekV2ForCausalLM", read,     write,
                deepseek::make_block, deepseek::switches(),    kDefaults};
  family.other_keys = deepseek::other_keys();
  family.aliases = {{"num_experts", "n_routed_experts"}};
  return family;
}};
}  // namespace primus
