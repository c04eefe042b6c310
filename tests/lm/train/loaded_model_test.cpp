// Tests the model settings of an experiment that loads weights: each setting is applied, refused, or ignored
// with a note.
#include "lm/train/settings/loaded_model.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "config/keys.h"
#include "config/trainer_config.h"
#include "lm/model/family.h"

namespace primus {
namespace {

using config::KeySpec;
using config::KeyType;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Experiments with all model settings, each for another family or kind of RoPE.
const std::map<std::string, std::string> kExperiments = {
    {"llama", "ffn_hidden_size: 112, num_query_groups: 2, kv_channels: 16, rotary_base: 500000"},
    {"llama_llama3",
     "ffn_hidden_size: 112, num_query_groups: 2, untie_embeddings_and_output_weights: false,"
     "rope_scaling_type: llama3, rope_scaling_factor: 8, original_max_position_embeddings: 32"},
    {"llama_linear", "ffn_hidden_size: 112, rope_scaling_type: linear, rope_scaling_factor: 3"},
    {"qwen2",
     "model_type: qwen2, ffn_hidden_size: 112, num_query_groups: 2, window_size: [7, 0],"
     "window_attn_skip_freq: [0, 1]"},
    {"gpt_oss_by_sinks",
     "model_type: gpt_oss, ffn_hidden_size: 48, num_experts: 4, use_sink_attention: true,"
     "sink_sliding_window: 8, position_embedding_type: yarn, rope_scaling_factor: 4,"
     "yarn_correction_range_round_to_int: false"},
    {"mixtral",
     "model_type: mixtral, ffn_hidden_size: 112, num_experts: 4, moe_router_force_load_balancing: true"},
    {"qwen3_moe",
     "model_type: qwen3_moe, ffn_hidden_size: 112, num_experts: 8, moe_ffn_hidden_size: 24, moe_router_topk: "
     "3,"
     "moe_router_pre_softmax: true, moe_layer_freq: [1, 0]"},
    {"deepseek_v2",
     "model_type: deepseek_v2, ffn_hidden_size: 112, multi_latent_attention: true, q_lora_rank: 20,"
     "kv_lora_rank: 16, qk_head_dim: 12, qk_pos_emb_head_dim: 8, v_head_dim: 12, num_experts: 6,"
     "moe_ffn_hidden_size: 24, moe_shared_expert_intermediate_size: 24, moe_router_pre_softmax: true,"
     "moe_router_num_groups: 3, moe_router_group_topk: 2, rope_type: yarn, rope_scaling_factor: 4,"
     "mscale: 0.707, mscale_all_dim: 0.707, original_max_position_embeddings: 32"},
    {"deepseek_v3",
     "model_type: deepseek_v3, ffn_hidden_size: 112, multi_latent_attention: true, kv_lora_rank: 16,"
     "qk_head_dim: 12, qk_pos_emb_head_dim: 8, v_head_dim: 12, num_experts: 8, moe_ffn_hidden_size: 24,"
     "moe_shared_expert_intermediate_size: 24, moe_router_num_groups: 4, moe_router_group_topk: 2,"
     "moe_router_topk_scaling_factor: 2.5, moe_layer_freq: [0, 1], mtp_num_layers: 1"},
    {"glm_moe_dsa",
     "model_type: glm_moe_dsa, ffn_hidden_size: 112, multi_latent_attention: true, q_lora_rank: 32,"
     "kv_lora_rank: 16, qk_head_dim: 12, qk_pos_emb_head_dim: 8, v_head_dim: 20, num_experts: 8,"
     "moe_ffn_hidden_size: 24, moe_shared_expert_intermediate_size: 24, moe_router_topk: 3,"
     "moe_router_topk_scaling_factor: 2.5, moe_layer_freq: [0, 1], dsa_indexer_n_heads: 6,"
     "dsa_indexer_head_dim: 16, dsa_indexer_topk: 12"},
    {"gpt_oss",
     "model_type: gpt_oss, ffn_hidden_size: 48, num_experts: 4, window_size: [7, 0], window_attn_skip_freq: "
     "2,"
     "position_embedding_type: yarn, rope_scaling_factor: 4, yarn_correction_range_round_to_int: false"},
    {"llama4",
     "model_type: llama4_text, ffn_hidden_size: 80, num_experts: 4, moe_router_topk: 1,"
     "moe_ffn_hidden_size: 40, moe_shared_expert_intermediate_size: 40, moe_layer_freq: [0, 1],"
     "attention_chunk_size: 16, no_rope_freq: 2, attention_temperature_scale: 0.1, qk_l2_norm: true"},
    {"lfm2",
     "model_type: lfm2, ffn_hidden_size: 112, num_query_groups: 2, qk_layernorm: true, conv_L_cache: 4,"
     "conv_bias: true, lfm_layer_types: [conv, full_attention], untie_embeddings_and_output_weights: false"},
    {"lfm2_moe",
     "model_type: lfm2_moe, ffn_hidden_size: 112, num_query_groups: 2, num_experts: 8, moe_ffn_hidden_size: "
     "24,"
     "moe_router_topk: 3, moe_router_topk_scaling_factor: 1.5, moe_layer_freq: [0, 1],"
     "moe_router_enable_expert_bias: false, lfm_layer_types: [full_attention, conv]"},
    {"qwen3_next",
     "model_type: qwen3_next, ffn_hidden_size: 112, num_query_groups: 2, kv_channels: 16, qk_layernorm: "
     "true, "
     "num_experts: 8, moe_ffn_hidden_size: 24, moe_router_topk: 3, moe_shared_expert_intermediate_size: 40, "
     "moe_layer_freq: [1, 0], linear_attention_freq: [1, 0], linear_num_key_heads: 2, "
     "linear_num_value_heads: 4, "
     "linear_key_head_dim: 16, linear_value_head_dim: 8, rotary_percent: 0.5"},
    {"qwen3_5_moe",
     "model_type: qwen3_5_moe_text, num_query_groups: 2, kv_channels: 16, attention_output_gate: true, "
     "num_experts: 8, moe_ffn_hidden_size: 24, moe_router_topk: 3, moe_shared_expert_intermediate_size: 40, "
     "moe_shared_expert_gate: true, linear_attention_freq: 2, linear_num_key_heads: 2, "
     "linear_num_value_heads: 4, "
     "linear_key_head_dim: 16, linear_value_head_dim: 8, rotary_percent: 0.25"},
    {"kimi_linear",
     "model_type: kimi_linear, ffn_hidden_size: 112, kv_lora_rank: 16, qk_head_dim: 12, qk_pos_emb_head_dim: "
     "8, v_head_dim: 16, mla_use_nope: true, num_experts: 8, moe_ffn_hidden_size: 24,"
     "moe_shared_expert_intermediate_size: 24, moe_router_topk: 3, moe_router_topk_scaling_factor: 1.5,"
     "moe_layer_freq: [0, 1], linear_attention_freq: [1, 0], linear_num_key_heads: 4,"
     "linear_num_value_heads: 4, linear_key_head_dim: 16, linear_value_head_dim: 16"},
    {"kimi_k3",
     "model_type: kimi_k3, ffn_hidden_size: 112, q_lora_rank: 24, kv_lora_rank: 16, qk_head_dim: 12,"
     "qk_pos_emb_head_dim: 8, v_head_dim: 16, mla_use_nope: true, mla_use_output_gate: true, num_experts: 8,"
     "moe_ffn_hidden_size: 24, moe_shared_expert_intermediate_size: 48, moe_router_topk: 3,"
     "moe_layer_freq: [0, 1], routed_expert_hidden_size: 32, latent_moe_use_norm: true,"
     "linear_attention_freq: [1, 0], linear_num_key_heads: 4, linear_num_value_heads: 4,"
     "linear_key_head_dim: 16, linear_value_head_dim: 16, kda_gate_lower_bound: -5,"
     "kda_use_full_rank_gate: true, attn_res_block_size: 1, activation_situ_beta: 4,"
     "activation_situ_linear_beta: 25, moe_router_bias_update_rule: quantile"},
    {"deepseek_v4",
     "model_type: deepseek_v4, ffn_hidden_size: 24, num_query_groups: 1, kv_channels: 16,"
     "qk_pos_emb_head_dim: 8, q_lora_rank: 20, compress_ratios: [4, 128], attn_sliding_window: 8,"
     "hybrid_attention_enabled: true, attn_sink: true, compress_rope_theta: 160000, index_n_heads: 2,"
     "index_head_dim: 8, index_topk: 3, o_groups: 2, o_lora_rank: 6, hc_mult: 2, num_experts: 8,"
     "moe_ffn_hidden_size: 24, moe_shared_expert_intermediate_size: 24, moe_router_topk: 2,"
     "num_hash_layers: 1, swiglu_limit: 7, rope_type: yarn, rotary_scaling_factor: 4,"
     "original_max_position_embeddings: 32"},
    {"qwen3_5",
     "model_type: qwen3_5_text, ffn_hidden_size: 112, num_query_groups: 2, kv_channels: 16, "
     "apply_layernorm_1p: true, "
     "experimental_attention_variant: gated_delta_net, linear_attention_freq: 2, linear_num_key_heads: 4, "
     "linear_num_value_heads: 4, linear_key_head_dim: 16, linear_value_head_dim: 8, rotary_percent: 0.25, "
     "untie_embeddings_and_output_weights: false"},
    {"gated_deltanet",
     "model_type: gated_deltanet, ffn_hidden_size: 112, num_query_groups: 2, rotary_base: 5000,"
     "linear_attention_freq: [1, 0], linear_num_key_heads: 2, linear_num_value_heads: 4,"
     "linear_key_head_dim: 16, linear_value_head_dim: 8"},
    {"gated_deltanet_latent",
     "model_type: gated_deltanet, ffn_hidden_size: 112, multi_latent_attention: true, q_lora_rank: 20,"
     "kv_lora_rank: 16, qk_head_dim: 12, qk_pos_emb_head_dim: 8, v_head_dim: 12,"
     "linear_attention_freq: [0, 1], linear_num_key_heads: 2, linear_num_value_heads: 4,"
     "linear_key_head_dim: 16, linear_value_head_dim: 16, untie_embeddings_and_output_weights: false"},
    {"kda",
     "model_type: kda, ffn_hidden_size: 112, linear_attention_freq: [1, 1], linear_num_key_heads: 2,"
     "linear_num_value_heads: 4, linear_key_head_dim: 8, linear_value_head_dim: 16"},
    {"mistral", "model_type: mistral, ffn_hidden_size: 112, num_query_groups: 2, window_size: [7, 0]"},
    {"ministral",
     "model_type: ministral, ffn_hidden_size: 112, num_query_groups: 2, window_size: [7, 0],"
     "window_attn_skip_freq: [0, 1]"},
    // Heads of 12 columns: RoPE has two frequencies.
    {"phi3",
     "model_type: phi3, ffn_hidden_size: 112, num_query_groups: 2, rotary_percent: 0.34,"
     "rope_scaling_type: longrope, rope_scaling_factor: 4, original_max_position_embeddings: 32,"
     "rope_short_factor: [1, 2], rope_long_factor: [2, 5.5]"},
    {"smollm3",
     "model_type: smollm3, ffn_hidden_size: 112, num_query_groups: 2, no_rope_freq: [0, 1],"
     "untie_embeddings_and_output_weights: false"},
    {"olmo2", "model_type: olmo2, ffn_hidden_size: 112, qk_layernorm: true"},
    {"glm4",
     "model_type: glm4, ffn_hidden_size: 112, num_query_groups: 2, add_qkv_bias: true, rotary_percent: 0.5,"
     "rotary_interleaved: true"},
    {"glm4_moe",
     "model_type: glm4_moe, ffn_hidden_size: 112, num_query_groups: 2, qk_layernorm: true, rotary_percent: "
     "0.5, num_experts: 8, moe_ffn_hidden_size: 24, moe_shared_expert_intermediate_size: 24, "
     "moe_router_topk: "
     "3, moe_router_num_groups: 4, moe_router_group_topk: 2, moe_router_topk_scaling_factor: 2.5,"
     "moe_layer_freq: [0, 1]"},
    {"granite",
     "model_type: granite, ffn_hidden_size: 112, num_query_groups: 2, embedding_multiplier: 3,"
     "residual_multiplier: 0.4, attention_multiplier: 0.3, logits_scaling: 5"},
    {"granitemoeshared",
     "model_type: granitemoeshared, ffn_hidden_size: 24, num_query_groups: 2, embedding_multiplier: 3,"
     "num_experts: 4, moe_router_topk: 2, moe_shared_expert_intermediate_size: 40"},
    {"gemma2",
     "model_type: gemma2, ffn_hidden_size: 112, num_query_groups: 2, window_size: [7, 0],"
     "window_attn_skip_freq: 2, attn_logit_softcapping: 50, final_logit_softcapping: 30,"
     "attention_multiplier: 0.2, untie_embeddings_and_output_weights: false"},
    {"gemma3",
     "model_type: gemma3_text, ffn_hidden_size: 112, num_query_groups: 2, window_size: [7, 0],"
     "window_attn_skip_freq: 2, rotary_base: 1000000, rotary_base_local: 10000,"
     "rope_scaling_type: linear, rope_scaling_factor: 8, untie_embeddings_and_output_weights: false"},
    {"ministral3",
     "model_type: ministral3, ffn_hidden_size: 112, num_query_groups: 2, rope_scaling_type: yarn,"
     "rope_scaling_factor: 4, original_max_position_embeddings: 32, mscale: 1, mscale_all_dim: 1,"
     "attention_temperature_scale: 0.1, attention_temperature_floor: 32"}};

const FamilyRegistry& families() {
  static const FamilyRegistry registry = builtin_families();
  return registry;
}

config::Experiment experiment(const std::string& settings, const std::vector<std::string>& command_line) {
  config::LoadOptions options;
  options.environment = [](const std::string&) { return std::nullopt; };
  options.preset_dirs.emplace();
  return config::load_experiment_text(
      "{work_group: g, user_name: u, exp_name: e, workspace: w, modules: {pre_trainer: {overrides: {"
      "mock_data: true, num_layers: 2, hidden_size: 48, num_attention_heads: 4, vocab_size: 320,"
      "max_position_embeddings: 128, " +
          settings + "}}}}",
      "exp.yaml", command_line, options);
}

ModelConfig model(const config::Experiment& e) { return model_config_of(e, std::nullopt, families()); }

// Returns the model as it is read from the folder that a run with these settings saves.
ModelConfig saved(const std::string& settings) {
  return read_model_config(write_model_config(model(experiment(settings, {})), DType::kF32, families()),
                           "config.json", families());
}

LoadedModel load(const ModelConfig& folder, const config::Experiment& e) {
  return reconcile_with_loaded(e, model(e), folder, "config.json");
}

// Returns values for a key on the command line. Most of them differ from the key's current value.
std::vector<std::string> values_for(const KeySpec& key, const config::TrainerConfig& now) {
  std::vector<std::string> values(key.choices.begin(), key.choices.end());
  if (!values.empty()) return values;
  const config::Value value = config::current_value(key, now);
  switch (key.type) {
    case KeyType::kBool:
      return {"true", "false"};
    case KeyType::kInt:
      values = {"1", "2", "3", "4", "8", "1024"};
      if (!value.is_null()) values.push_back(fmt::format("{}", 2 * value.integer));
      return values;
    case KeyType::kFloat:
      return {"0", "0.25", "0.5", "1", "2", "16", "100"};
    case KeyType::kString:
      return {"llama", "qwen3"};
    default:
      return {"[3,0]", "[0,0]", "[1,1]", "[0,1]", "[1,0]", "1", "2", "[conv,conv]"};
  }
}

// Keys that change nothing, with the reason.
const std::map<std::string_view, const char*> kSilent = {
    {"group_query_attention", "only checked against num_query_groups"}};

enum class Outcome : std::uint8_t { kNothing, kSaid, kTaken };

// An experiment, and the folder that its run would save.
struct Reloading {
  explicit Reloading(const std::string& text) : settings(text) {}
  std::string settings;
  config::Experiment unchanged = experiment(settings, {});
  ModelConfig before = model(unchanged), folder = saved(settings);
  LoadedModel loaded = load(folder, unchanged);
};

// Returns the effect of a command-line setting when the saved folder is loaded.
Outcome outcome_of(const KeySpec& key, const Reloading& run, const std::string& value) {
  if (key.name == "vocab_size" && std::stoll(value) < run.folder.vocab)
    return Outcome::kNothing;  // skips this value, because the data's vocabulary is larger
  std::optional<config::Experiment> changed;
  try {
    changed = experiment(run.settings, {fmt::format("{}={}", key.name, value)});
  } catch (const Error&) {
    return key.native_values.empty() ? Outcome::kNothing : Outcome::kSaid;
  }
  try {
    if (model(*changed) == run.before) return Outcome::kNothing;
    const LoadedModel loaded = load(run.folder, *changed);
    if (!loaded.notes.empty() || changed->warnings.size() > run.unchanged.warnings.size())
      return Outcome::kSaid;
    // Only training settings may change without a note.
    ModelConfig is = loaded.config;
    const ModelConfig& was = run.loaded.config;
    EXPECT_FALSE(is == was) << key.name << "=" << value << " was dropped";
    is.moe.training = was.moe.training;
    is.mtp = was.mtp;
    EXPECT_TRUE(is == was) << key.name << "=" << value << " was applied without a note";
    return Outcome::kTaken;
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    return Outcome::kSaid;
  }
}

TEST(LoadedModel, NoSettingOfTheModelIsDropped) {
  std::map<std::string, Reloading> runs;
  for (const auto& [name, settings] : kExperiments) {
    const Reloading& run = runs.emplace(name, settings).first->second;
    EXPECT_THAT(run.loaded.notes, IsEmpty()) << name;
  }
  for (const KeySpec& key : config::all_keys()) {
    if (key.group != "model" && key.group != "latent" && key.group != "compressed" && key.group != "moe")
      continue;
    if (std::holds_alternative<std::monostate>(key.field)) continue;
    bool felt = false;
    for (const auto& [name, run] : runs) {
      SCOPED_TRACE(name);
      for (const std::string& value : values_for(key, run.unchanged.trainer)) {
        if (outcome_of(key, run, value) != Outcome::kNothing) felt = true;
      }
    }
    EXPECT_NE(felt, kSilent.contains(key.name)) << key.name;
  }
}

// A folder defines the whole model: an experiment needs no model settings.
TEST(LoadedModel, TheFolderAloneDefinesTheModel) {
  config::LoadOptions options;
  options.environment = [](const std::string&) { return std::nullopt; };
  options.preset_dirs.emplace();
  const auto bare = [&](const std::vector<std::string>& command_line) {
    return config::load_experiment_text(
        "{work_group: g, user_name: u, exp_name: e, workspace: w, modules: {pre_trainer: {overrides: {"
        "mock_data: true, load: folder}}}}",
        "exp.yaml", command_line, options);
  };
  const auto filled = [](config::Experiment e, const ModelConfig& folder) {
    fill_model_settings(e, folder);
    return e;
  };
  for (const auto& [name, settings] : kExperiments) {
    SCOPED_TRACE(name);
    const ModelConfig folder = saved(settings);
    config::Experiment e = filled(bare({}), folder);
    const ModelConfig ours = model_config_of(e, folder.vocab, families());
    const LoadedModel loaded = reconcile_with_loaded(e, ours, folder, "config.json");
    for (const std::string& note : loaded.notes) EXPECT_THAT(note, HasSubstr("mtp_num_layers"));
    ModelConfig is = loaded.config;
    is.moe.training = folder.moe.training;
    is.mtp = folder.mtp;
    EXPECT_TRUE(is == folder);
    // Without reconcile_with_loaded(), the filled settings already equal the folder's config.json. Only
    // fields that no setting has are missing.
    EXPECT_EQ(ours.layers, folder.layers);
    EXPECT_EQ(ours.moe.experts, folder.moe.experts);
    EXPECT_EQ(ours.attention.window, folder.attention.window);
    EXPECT_EQ(ours.local_layers(), folder.local_layers());
    EXPECT_EQ(ours.rope_scaling.kind, folder.rope_scaling.kind);
    // Filling the settings a second time changes nothing.
    EXPECT_EQ(filled(e, folder).trainer, e.trainer);
    // Settings of the experiment still apply.
    const config::Experiment longer = filled(bare({"rotary_base=123456"}), folder);
    const ModelConfig stretched = model_config_of(longer, folder.vocab, families());
    EXPECT_EQ(reconcile_with_loaded(longer, stretched, folder, "config.json").config.rope_theta, 123456);
  }
}

// Returns the model that an experiment with only `load` and these overrides makes of a folder.
LoadedModel loaded_from(const ModelConfig& folder, const std::vector<std::string>& command_line) {
  config::LoadOptions options;
  options.environment = [](const std::string&) { return std::nullopt; };
  options.preset_dirs.emplace();
  config::Experiment e = config::load_experiment_text(
      "{work_group: g, user_name: u, exp_name: e, workspace: w, modules: {pre_trainer: {overrides: {"
      "mock_data: true, load: folder}}}}",
      "exp.yaml", command_line, options);
  fill_model_settings(e, folder);
  return reconcile_with_loaded(e, model_config_of(e, folder.vocab, families()), folder, "config.json");
}

// A run keeps the router losses with which a loaded folder was trained, unless the experiment sets them. A
// note names these losses.
TEST(LoadedModel, LossesOfRoutersContinue) {
  struct Taken {
    ModelConfig config;
    std::vector<std::string> notes;
  };
  const auto taken = [](const ModelConfig& folder, const std::vector<std::string>& command_line) {
    const LoadedModel loaded = loaded_from(folder, command_line);
    Taken result{loaded.config, loaded.notes};
    std::erase_if(result.notes,
                  [](const std::string& note) { return note.find("mtp_num_layers") != note.npos; });
    return result;
  };
  int mixtures = 0;
  for (const auto& [name, settings] : kExperiments) {
    if (model(experiment(settings, {})).moe.experts == 0) continue;
    SCOPED_TRACE(name);
    ++mixtures;
    const ModelConfig folder =
        saved(settings +
              ", moe_aux_loss_coeff: 0.02, moe_z_loss_coeff: 0.001, moe_router_load_balancing_type: "
              "seq_aux_loss");
    EXPECT_EQ(folder.moe.training.balance_loss, 0.02);
    EXPECT_EQ(folder.moe.training.z_loss, 0.001);
    EXPECT_TRUE(folder.moe.training.balance_sequences);
    const Taken silent = taken(folder, {});
    EXPECT_EQ(silent.config.moe.training.balance_loss, 0.02);
    EXPECT_EQ(silent.config.moe.training.z_loss, 0.001);
    EXPECT_TRUE(silent.config.moe.training.balance_sequences);
    EXPECT_THAT(silent.notes, ::testing::Contains(
                                  "the balance loss of experts (seq_aux_loss) is trained with "
                                  "moe_aux_loss_coeff 0.02, as config.json says (moe_aux_loss_coeff=0 turns "
                                  "it off)"));
    EXPECT_THAT(silent.notes, ::testing::Contains(HasSubstr("moe_z_loss_coeff 0.001, as config.json says")));
    const Taken stated = taken(folder, {"moe_aux_loss_coeff=0"});
    EXPECT_EQ(stated.config.moe.training.balance_loss, 0);
    EXPECT_THAT(stated.notes,
                ::testing::Contains("moe_aux_loss_coeff is 0, but config.json has 0.02: 0 is used"));
    const Taken none = taken(folder, {"moe_router_load_balancing_type=none"});
    EXPECT_EQ(none.config.moe.training.balance_loss, 0);
    EXPECT_THAT(none.notes, ::testing::Contains(HasSubstr("moe_router_load_balancing_type is none")));
  }
  EXPECT_GE(mixtures, 10);
  // For gpt-oss, transformers' default coefficient gives a note and stays in an export, but is not used for
  // training.
  const auto published_with = [](const char* family, double balance) {
    ModelConfig config = saved(kExperiments.at(family));
    config.moe.training.balance_loss = balance;
    return read_model_config(write_model_config(config, DType::kF32, families()), "config.json", families());
  };
  const ModelConfig published = published_with("gpt_oss", 0.9);
  EXPECT_EQ(published.moe.training.balance_loss, 0.9);
  const Taken unused = taken(published, {});
  EXPECT_EQ(unused.config.moe.training.balance_loss, 0);
  EXPECT_THAT(unused.notes,
              ElementsAre(HasSubstr("but the balance loss of experts (aux_loss) is not trained: no published "
                                    "model of this family was trained with it")));
  EXPECT_EQ(taken(published, {"moe_aux_loss_coeff=0.9"}).config.moe.training.balance_loss, 0.9);
  // Any other coefficient, and any coefficient of another family, is a choice of the model's authors and is
  // used for training.
  EXPECT_EQ(taken(published_with("gpt_oss", 0.7), {}).config.moe.training.balance_loss, 0.7);
  EXPECT_EQ(taken(published_with("mixtral", 0.9), {}).config.moe.training.balance_loss, 0.9);
}

// The saved model has the length of its training sequences, so evaluation and generation accept sequences of
// this length.
TEST(LoadedModel, SequencesLongerThanTheModelWasMadeForAreNotedAndSaved) {
  ModelConfig folder = saved("ffn_hidden_size: 112, num_query_groups: 2");
  folder.max_positions = 64;
  const auto with = [&](const std::vector<std::string>& command_line) {
    return loaded_from(folder, command_line);
  };
  const LoadedModel longer = with({"seq_length=128"});
  EXPECT_THAT(longer.notes,
              ElementsAre(HasSubstr("seq_length is 128, but config.json was made for 64 positions "
                                    "(max_position_embeddings)")));
  EXPECT_EQ(longer.config.max_positions, 128);
  const LoadedModel same = with({"seq_length=64"});
  EXPECT_THAT(same.notes, IsEmpty());
  EXPECT_EQ(same.config.max_positions, 64);
  // If both are set, both apply (with a warning when the settings are read).
  EXPECT_EQ(with({"seq_length=128", "max_position_embeddings=64"}).config.max_positions, 64);
}

// RoPE scaling keys of the experiment apply even if it does not name the kind of scaling.
TEST(LoadedModel, RopeIsStretchedKeyByKey) {
  const std::string plain = "ffn_hidden_size: 112, num_query_groups: 2, ";
  const std::string llama3 = plain + "rope_scaling_type: llama3, original_max_position_embeddings: 32";
  for (const auto& [setting, note] :
       {std::pair{"rope_scaling_factor=32", "rope_scaling_factor is 32, but config.json has 8"},
        {"rope_low_freq_factor=2", "rope_low_freq_factor is 2, but config.json has 1"},
        {"rope_high_freq_factor=5", "rope_high_freq_factor is 5, but config.json has 4"},
        {"original_max_position_embeddings=64",
         "original_max_position_embeddings is 64, but config.json has 32"}}) {
    const LoadedModel loaded = load(saved(llama3), experiment(plain, {setting}));
    EXPECT_THAT(loaded.notes, ElementsAre(note + std::string(": the experiment's value is used")));
    EXPECT_EQ(loaded.config.rope_scaling.kind, RopeScaling::Kind::kLlama3);
  }
  EXPECT_EQ(load(saved(llama3), experiment(plain, {"rope_scaling_factor=32"})).config.rope_scaling.factor,
            32);
  // With another kind of scaling, the original context length is the weights' context length, not 128 / 16,
  // which the experiment's values give.
  const RopeScaling yarn =
      load(saved(llama3), experiment(plain, {"rope_scaling_type=yarn", "rope_scaling_factor=16"}))
          .config.rope_scaling;
  EXPECT_EQ(yarn.kind, RopeScaling::Kind::kYarn);
  EXPECT_EQ(yarn.original_max_positions, 32);
}

TEST(LoadedModel, AnExperimentMaySetYarnsTemperature) {
  const std::string& settings = kExperiments.at("deepseek_v2");
  const LoadedModel loaded = load(saved(settings), experiment(settings, {"mscale=1", "mscale_all_dim=0.5"}));
  EXPECT_THAT(
      loaded.notes,
      ElementsAre("mscale is 1, but config.json has 0.707: the experiment's value is used",
                  "mscale_all_dim is 0.5, but config.json has 0.707: the experiment's value is used"));
  EXPECT_EQ(loaded.config.rope_scaling.mscale, 1);
  EXPECT_EQ(loaded.config.rope_scaling.mscale_all_dim, 0.5);
  ModelConfig silent = saved(settings);
  silent.rope_scaling.mscale.reset();
  EXPECT_THAT(load(silent, experiment(settings, {})).notes,
              ElementsAre("mscale is 0.707, but config.json has nothing: the experiment's value is used"));
}

TEST(LoadedModel, SettingsThatTheWeightsWereTrainedWithAreFixed) {
  const auto refusal = [](const std::string& name, const std::string& setting) -> std::string {
    const std::string& settings = kExperiments.at(name);
    const config::Experiment e = experiment(settings, {setting});
    try {
      load(saved(settings), e);
    } catch (const Error& error) {
      EXPECT_THAT(error.hint(), HasSubstr("omit it"));
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(refusal("llama4", "qk_l2_norm=false"), "qk_l2_norm is false, but config.json has true");
  EXPECT_EQ(refusal("llama4", "attention_temperature_scale=0.2"),
            "attention_temperature_scale is 0.2, but config.json has 0.1");
  EXPECT_EQ(refusal("llama4", "attention_temperature_floor=16"),
            "attention_temperature_floor is 16, but config.json has 8192");
  EXPECT_EQ(refusal("llama4", "no_rope_freq=1"), "no_rope_freq is layers 0, 1, but config.json has layers 1");
  EXPECT_EQ(refusal("qwen2", "window_attn_skip_freq=[1,1]"),
            "window_attn_skip_freq is layers 0, 1, but config.json has layers 1");
  EXPECT_EQ(refusal("qwen3_moe", "moe_router_pre_softmax=false"),
            "moe_router_pre_softmax is false, but config.json has true");
  EXPECT_EQ(refusal("lfm2_moe", "moe_router_enable_expert_bias=true"),
            "moe_router_enable_expert_bias is true, but config.json has false");
  EXPECT_EQ(refusal("mixtral", "moe_router_topk=1"), "moe_router_topk is 1, but config.json has 2");
}

TEST(LoadedModel, TheWeightsDetermineWhichLayersConvolve) {
  const std::string& settings = kExperiments.at("lfm2");
  try {
    load(saved(settings), experiment(settings, {"lfm_layer_types=[conv,conv]"}));
    ADD_FAILURE() << "the setting was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()),
              "lfm_layer_types is convolutions in layers 0, 1, but config.json has convolutions in layers 0");
    EXPECT_THAT(error.hint(), HasSubstr("remove the model preset"));
  }
}

}  // namespace
}  // namespace primus
