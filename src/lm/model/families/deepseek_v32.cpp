// DeepSeek-V3.2 (arXiv:2512.02556) and GLM-5: DeepSeek-V3's blocks with sparse attention to tokens that an
// indexer selects (blocks/indexer.h). The two models differ in how the indexer rotates its heads.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lm/model/blocks/mixture_of_experts.h"
#include "lm/model/config_reader.h"
#include "lm/model/families/deepseek.h"
#include "lm/model/families/families.h"

namespace primus {
namespace {

constexpr const char* kV32Defaults =
    R"({"max_position_embeddings": 163840, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
  "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 256, "n_shared_experts": 1,
  "moe_intermediate_size": 2048, "first_k_dense_replace": 3, "routed_scaling_factor": 2.5, "num_experts_per_tok": 8,
  "n_group": 8, "topk_group": 4, "index_n_heads": 64, "index_head_dim": 128, "index_topk": 2048})";
constexpr const char* kGlmDefaults =
    R"({"max_position_embeddings": 202752, "rms_norm_eps": 1e-05, "q_lora_rank": 2048, "kv_lora_rank": 512,
  "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "v_head_dim": 256, "n_routed_experts": 256, "n_shared_experts": 1,
  "moe_intermediate_size": 2048, "first_k_dense_replace": 3, "routed_scaling_factor": 2.5, "num_experts_per_tok": 8,
  "n_group": 1, "topk_group": 1, "index_n_heads": 32, "index_head_dim": 128, "index_topk": 2048})";

// Throws if an entry of the list is not `word`.
void refuse_lists_but(const nlohmann::json& json, const char* key, const std::string& word,
                      std::int64_t layers) {
  refuse_unless(json, key, std::vector<std::string>(static_cast<std::size_t>(layers), word));
}

// Reads which layers are dense. This replaces the value of first_k_dense_replace.
void read_dense_layers(const nlohmann::json& json, ModelConfig& c) {
  const ConfigReader r(json);
  const nlohmann::json* const types = r.find("mlp_layer_types");
  if (!types || c.moe.experts == 0) return;
  if (!types->is_array() || static_cast<std::int64_t>(types->size()) != c.layers) {
    throw r.bad("mlp_layer_types", fmt::format("is not a list of {} layers", c.layers));
  }
  for (std::size_t layer = 0; layer < types->size(); ++layer) {
    const nlohmann::json& type = (*types)[layer];
    c.at(static_cast<std::int64_t>(layer)).feed_forward = type == "dense" ? &kDenseFeedForward : &kMixture;
    if (type != "dense" && type != "sparse") {
      throw r.bad("mlp_layer_types", fmt::format("has {}, which is not a layer type", type.dump()));
    }
  }
}

void read(const nlohmann::json& json, ModelConfig& c, bool interleaved) {
  deepseek::read_common(json, c);
  refuse_unless(json, "scoring_func", "sigmoid");
  refuse_unless(json, "topk_method", "noaux_tc");
  refuse_unless(json, "indexer_rope_interleave", interleaved);
  refuse_lists_but(json, "layer_types", "indexed_attention", c.layers);
  // Layers that use the selection of the previous layer are not supported.
  refuse_lists_but(json, "indexer_types", "full", c.layers);
  refuse_unless(json, "index_topk_freq", 1);
  refuse_unless(json, "index_topk_pattern", std::string(static_cast<std::size_t>(c.layers), 'F'));
  read_dense_layers(json, c);
  c.moe.router.scoring = turbo::RouterRule::Scoring::kSigmoid;
  c.moe.router.group_score = turbo::RouterRule::GroupScore::kTwoBest;
  deepseek::read_groups(json, c);
  const ConfigReader r(json);
  c.moe.router.normalise = r.flag_or("norm_topk_prob", true);
  c.moe.choice_bias = c.moe.experts > 0;
  if (c.attention.latent.q_rank == 0) {
    throw r.bad("q_lora_rank", "is missing, but the indexer computes its queries from the query latents");
  }
  const std::int64_t maximum = ConfigReader::kMaxWidth;
  c.attention.indexer = {.heads = r.integer("index_n_heads", 1, maximum),
                         .head_dim = r.integer("index_head_dim", 1, maximum),
                         .top_k = r.integer("index_topk", 1, std::int64_t{1} << 22),
                         .interleaved = interleaved};
  if (c.attention.indexer.head_dim < c.attention.latent.rope_dim) {
    throw r.bad("index_head_dim", "is less than qk_rope_head_dim, the number of rotated columns per head");
  }
}

void read_v32(const nlohmann::json& json, ModelConfig& c) { read(json, c, false); }
void read_glm(const nlohmann::json& json, ModelConfig& c) { read(json, c, true); }

void write(const ModelConfig& c, nlohmann::json& json) {
  deepseek::write_common(c, json);
  const IndexerConfig& indexer = c.attention.indexer;
  json["scoring_func"] = "sigmoid";
  json["topk_method"] = "noaux_tc";
  json["index_n_heads"] = indexer.heads;
  json["index_head_dim"] = indexer.head_dim;
  json["index_topk"] = indexer.top_k;
  std::vector<std::string> types;
  for (std::int64_t layer = 0; layer < c.layers; ++layer)
    types.emplace_back(c.routed(layer) ? "sparse" : "dense");
  json["mlp_layer_types"] = types;
}

Family family(const char* model_type, const char* architecture,
              void (*read_it)(const nlohmann::json&, ModelConfig&), const char* defaults) {
  Family family{model_type,           architecture,         read_it, write,
                deepseek::make_block, deepseek::switches(), defaults};
  family.switches.push_back({"experimental_attention_variant", "dsa"});
  family.other_keys = deepseek::other_keys();
  for (const char* key : {"indexer_rope_interleave", "layer_types", "indexer_types", "index_topk_freq",
                          "index_skip_topk_offset", "index_topk_pattern"}) {
    family.other_keys.emplace_back(key);
  }
  family.aliases = {{"num_local_experts", "n_routed_experts"},
                    {"num_mtp_layers", "num_nextn_predict_layers"}};
  return family;
}

}  // namespace

extern const FamilyEntry kDeepseekV32{
    []() -> Family { return family("deepseek_v32", "DeepseekV32ForCausalLM", read_v32, kV32Defaults); }};

extern const FamilyEntry kGlmMoeDsa{
    []() -> Family { return family("glm_moe_dsa", "GlmMoeDsaForCausalLM", read_glm, kGlmDefaults); }};

}  // namespace primus
