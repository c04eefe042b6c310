// Tests models made from experiments. The keys of every family take effect. If a family does not support a
// setting, the error names the key.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "config/experiment.h"
#include "config/keys.h"
#include "config/trainer_config.h"
#include "lm/model/config_reader.h"
#include "lm/model/family.h"
#include "lm/model/layer_pattern.h"
#include "lm/model/model_config.h"
#include "lm/model/model_fields.h"
#include "lm/model/setting_names.h"

namespace primus {
namespace {

ModelConfig model(const std::string& overrides, const std::string& data = "mock_data: true",
                  const std::string& layers = "4") {
  config::LoadOptions options;
  options.environment = [](const std::string&) { return std::nullopt; };
  options.preset_dirs.emplace();
  const std::string text =
      "work_group: g\nuser_name: u\nexp_name: e\nworkspace: w\nmodules:\n  pre_trainer:\n    overrides:\n"
      "      num_layers: " +
      layers +
      "\n      hidden_size: 64\n      ffn_hidden_size: 96\n      num_attention_heads: 4\n"
      "      vocab_size: 256\n      " +
      data + "\n" + overrides;  // starts at line 14
  return model_config_of(config::load_experiment_text(text, "exp.yaml", {}, options), std::nullopt,
                         builtin_families());
}

// Returns "line: message" of the error; "" if there is none.
std::string refusal(const std::string& overrides, const std::string& data = "mock_data: true") {
  try {
    model(overrides, data);
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    return error.location().substr(0, error.location().rfind(':')) + ": " + error.what();
  }
  return "";
}

const std::string kMixtral = "      model_type: mixtral\n      num_experts: 8\n";
const std::string kDeepseek =
    "      model_type: deepseek_v3\n      multi_latent_attention: true\n      kv_lora_rank: 16\n"
    "      qk_head_dim: 16\n      qk_pos_emb_head_dim: 8\n      v_head_dim: 16\n      num_experts: 8\n"
    "      moe_ffn_hidden_size: 32\n      moe_shared_expert_intermediate_size: 64\n"
    "      moe_router_num_groups: 4\n      moe_router_group_topk: 2\n"
    "      moe_router_topk_scaling_factor: 2.5\n      moe_layer_freq: ([0]*1+[1]*3)\n";

TEST(ModelSettings, SwitchesMustAgreeWithTheFamily) {
  for (const char* fine : {"      model_type: qwen2\n      add_qkv_bias: true\n",
                           "      model_type: qwen3\n      qk_layernorm: true\n",
                           "      swiglu: true\n      add_bias_linear: false\n"}) {
    EXPECT_EQ(refusal(fine), "") << fine;
  }
  EXPECT_EQ(refusal("      model_type: qwen2\n      add_qkv_bias: false\n"),
            "exp.yaml:15: model_type qwen2 has add_qkv_bias: true");
  EXPECT_EQ(refusal("      qk_layernorm: true\n"), "exp.yaml:14: model_type llama has qk_layernorm: false");
  EXPECT_EQ(refusal("      softmax_type: learnable\n"),
            "exp.yaml:14: model_type llama has softmax_type: vanilla");
  EXPECT_EQ(refusal("      activation_func_clamp_value: 7.0\n"),
            "exp.yaml:14: model_type llama has activation_func_clamp_value: null");
  EXPECT_EQ(refusal("      model_type: lama\n"),
            "exp.yaml:14: model_type 'lama' is not a supported model family");
}

// Packing documents or conversations into one sequence is refused, because pooling would mix tokens of
// different documents.
TEST(ModelSettings, PooledLatentsDoNotSupportDocuments) {
  const std::string pooled =
      "      model_type: deepseek_v4\n      num_query_groups: 1\n      kv_channels: 16\n"
      "      qk_pos_emb_head_dim: 8\n      q_lora_rank: 20\n      compress_ratios: [4, 128, 4, 0]\n"
      "      attn_sliding_window: 8\n      hybrid_attention_enabled: true\n      attn_sink: true\n"
      "      compress_rope_theta: 160000\n      index_n_heads: 2\n      index_head_dim: 8\n"
      "      index_topk: 3\n      o_groups: 2\n      o_lora_rank: 6\n      hc_mult: 2\n      num_experts: 8\n"
      "      moe_ffn_hidden_size: 24\n      moe_shared_expert_intermediate_size: 24\n"
      "      num_hash_layers: 1\n      swiglu_limit: 7\n";
  const std::string sft = "      stage: sft\n      enable_packed_sequences: true\n",
                    data = "sft_dataset_name: conversations.jsonl";
  EXPECT_EQ(refusal(pooled + sft, data), "");
  EXPECT_THAT(refusal(pooled + "      reset_attention_mask: true\n"),
              testing::HasSubstr("do not support document boundaries"));
  EXPECT_THAT(refusal(pooled + sft + "      use_packed_attention: true\n", data),
              testing::HasSubstr("do not support document boundaries"));
  EXPECT_THAT(refusal(pooled + "      stage: distill\n      teacher_model_name_or_path: teacher\n"
                               "      distillation_on_policy_share: 1\n",
                      data),
              testing::HasSubstr("cannot generate answers"));
}

// Megatron-LM's presets call every model "gpt", so the parts of a model determine its family.
TEST(ModelSettings, GptBecomesTheFamilyOfItsParts) {
  const auto family = [](const std::string& parts) {
    return model("      model_type: gpt\n" + parts).family;
  };
  const std::string experts = "      num_experts: 8\n";
  EXPECT_EQ(family(""), "llama");
  EXPECT_EQ(family("      add_qkv_bias: true\n"), "qwen2");
  EXPECT_EQ(family("      qk_layernorm: true\n"), "qwen3");
  EXPECT_EQ(family("      add_qkv_bias: true\n      qk_layernorm: true\n"), "primus_gpt");
  EXPECT_EQ(family(experts), "mixtral");
  EXPECT_EQ(family(experts + "      qk_layernorm: true\n      moe_ffn_hidden_size: 32\n"), "qwen3_moe");
  EXPECT_EQ(family(experts + "      moe_ffn_hidden_size: 32\n"), "primus_gpt");
  EXPECT_EQ(family(experts + "      moe_shared_expert_intermediate_size: 64\n"), "primus_gpt");
  EXPECT_EQ(family(experts + "      moe_router_pre_softmax: true\n"), "primus_gpt");
  EXPECT_EQ(family("      use_sink_attention: true\n      sink_sliding_window: 8\n"), "primus_gpt");
  EXPECT_EQ(family("      rotary_percent: 0.5\n"), "primus_gpt");
  EXPECT_EQ(family("      final_logit_softcapping: 30\n"), "primus_gpt");
  EXPECT_EQ(family("      final_logit_softcapping: 0\n"), "llama");
  EXPECT_EQ(family(experts + "      router_logit_softcapping: 30\n"), "primus_gpt");
  const std::string convolutions =
      "      qk_layernorm: true\n      lfm_layer_types: [conv, full_attention, conv, conv]\n";
  EXPECT_EQ(family(convolutions), "lfm2");
  EXPECT_EQ(family(convolutions + "      add_qkv_bias: true\n"), "primus_gpt");
  EXPECT_EQ(family("      lfm_layer_types: [conv, conv, conv, conv]\n"), "primus_gpt");
  EXPECT_EQ(family(convolutions + experts), "primus_gpt");  // LFM2 with experts in AMD Primus
  EXPECT_EQ(family(convolutions + experts + "      moe_router_score_function: sigmoid\n"), "lfm2_moe");
  const std::string latent =
      "      multi_latent_attention: true\n      qk_layernorm: true\n      kv_lora_rank: 16\n      "
      "qk_head_dim: 16\n"
      "      qk_pos_emb_head_dim: 8\n      v_head_dim: 16\n      moe_ffn_hidden_size: 32\n"
      "      moe_shared_expert_intermediate_size: 64\n" +
      experts;
  EXPECT_EQ(family(latent + "      moe_router_pre_softmax: true\n"), "deepseek_v2");
  EXPECT_EQ(family(latent +
                   "      moe_router_score_function: sigmoid\n      moe_router_enable_expert_bias: true\n"),
            "deepseek_v3");
  const std::string sparse =
      latent +
      "      moe_router_score_function: sigmoid\n      moe_router_enable_expert_bias: true\n"
      "      experimental_attention_variant: dsa\n      dsa_indexer_n_heads: 4\n      dsa_indexer_head_dim: "
      "32\n"
      "      dsa_indexer_topk: 16\n";
  EXPECT_EQ(family(sparse + "      q_lora_rank: 24\n"), "deepseek_v32");
  EXPECT_THAT(refusal("      model_type: gpt\n" + sparse), testing::HasSubstr("q_lora_rank"));
  EXPECT_THAT(refusal("      dsa_indexer_n_heads: 4\n"), testing::HasSubstr("has dsa_indexer_n_heads: 0"));
}

TEST(ModelSettings, DeepseekWithOrdinaryAttention) {
  const std::string plain =
      "      model_type: deepseek_v3\n      multi_latent_attention: false\n      qk_layernorm: true\n"
      "      num_query_groups: 2\n      num_experts: 8\n      moe_ffn_hidden_size: 32\n"
      "      moe_shared_expert_intermediate_size: 64\n      moe_router_topk: 4\n      moe_router_num_groups: "
      "4\n"
      "      moe_router_group_topk: 2\n      moe_router_topk_scaling_factor: 2.5\n"
      "      moe_router_score_function: sigmoid\n      moe_router_enable_expert_bias: true\n"
      "      moe_layer_freq: ([0]*1+[1]*3)\n";
  const ModelConfig m = model(plain);
  EXPECT_EQ(m.family, "primus_gpt");
  EXPECT_EQ(m.attention.latent.kv_rank, 0);
  EXPECT_EQ(m.kv_heads, 2);
  EXPECT_TRUE(m.attention.qk_norm);
  EXPECT_FALSE(m.attention.qkv_bias);
  EXPECT_EQ(m.moe.router.scoring, turbo::RouterRule::Scoring::kSigmoid);
  EXPECT_EQ(m.moe.router.group_score, turbo::RouterRule::GroupScore::kTwoBest);
  EXPECT_TRUE(m.moe.router.normalise);
  EXPECT_TRUE(m.moe.choice_bias);
  EXPECT_EQ(m.moe.shared_ffn, 64);
  EXPECT_EQ(m.dense_layers(), (std::vector<std::int64_t>{0}));
  EXPECT_EQ(m.rope_scaling.kind, RopeScaling::Kind::kNone);
  // The written config.json reads back as an equal model.
  ModelConfig again = read_model_config(write_model_config(m, DType::kBF16, builtin_families()),
                                        "config.json", builtin_families());
  again.moe.training = m.moe.training;
  EXPECT_EQ(again, m);
  // Defaults of V3 that no key overrides also apply with ordinary attention.
  std::string unsaid = kDeepseek;
  unsaid.replace(unsaid.find("latent_attention: true"), 22, "latent_attention: false");
  const ModelConfig u = model(unsaid);
  EXPECT_EQ(u.moe.router.scoring, turbo::RouterRule::Scoring::kSigmoid);
  EXPECT_TRUE(u.moe.choice_bias);
  EXPECT_FALSE(u.attention.qk_norm);
  // A deepseek_v3 without multi_latent_attention is still refused.
  EXPECT_EQ(refusal("      model_type: deepseek_v3\n      num_experts: 8\n"),
            "exp.yaml:14: model_type deepseek_v3 has multi_latent_attention: true");
}

TEST(ModelSettings, CapsOnLogits) {
  const std::string capped =
      "      model_type: primus_gpt\n      num_experts: 8\n      rotary_percent: 0.5\n"
      "      final_logit_softcapping: 50.0\n      router_logit_softcapping: 30.0\n";
  const ModelConfig m = model(capped);
  EXPECT_EQ(m.logit_cap, 50);
  EXPECT_EQ(m.moe.logit_cap, 30);
  EXPECT_EQ(m.rotary_dim(), m.head_dim / 2);
  ModelConfig again = read_model_config(write_model_config(m, DType::kBF16, builtin_families()),
                                        "config.json", builtin_families());
  again.moe.training = m.moe.training;
  EXPECT_EQ(again, m);
  const ModelConfig plain = model("      model_type: primus_gpt\n      final_logit_softcapping: null\n");
  EXPECT_EQ(plain.logit_cap, 0);
  // Families that are published without caps accept none.
  EXPECT_EQ(refusal("      final_logit_softcapping: 30\n"),
            "exp.yaml:14: model_type llama has final_logit_softcapping: 0");
  EXPECT_EQ(refusal(kMixtral + "      router_logit_softcapping: 30\n"),
            "exp.yaml:16: model_type mixtral has router_logit_softcapping: 0");
  EXPECT_EQ(refusal("      model_type: primus_gpt\n      final_logit_softcapping: 1e-5\n"),
            "exp.yaml:15: final_logit_softcapping: in the config.json of a primus_gpt, "
            "'final_logit_softcapping' must be null, 0, or from 0.001 to 1000000, not 1e-05");
}

TEST(ModelSettings, SinksFollowTheFamily) {
  EXPECT_EQ(refusal("      use_sink_attention: true\n"),
            "exp.yaml:14: model_type llama has use_sink_attention: no sinks");
  EXPECT_TRUE(model("      model_type: primus_gpt\n      use_sink_attention: true\n").attention.sinks);
  EXPECT_TRUE(model("      model_type: primus_gpt\n      softmax_type: learnable\n").attention.sinks);
}

TEST(ModelSettings, ExpertsAndTheirRouter) {
  const ModelConfig m = model(kMixtral +
                              "      moe_router_topk: 3\n      moe_aux_loss_coeff: 0.01\n"
                              "      moe_z_loss_coeff: 0.001\n      moe_expert_capacity_factor: 1.25\n"
                              "      moe_token_drop_policy: position\n      moe_input_jitter_eps: 0.02\n"
                              "      moe_router_load_balancing_type: seq_aux_loss\n");
  EXPECT_EQ(m.moe.experts, 8);
  EXPECT_EQ(m.moe.ffn, 96);
  EXPECT_EQ(m.moe.router.top_k, 3);
  EXPECT_TRUE(m.moe.router.normalise);
  EXPECT_EQ(m.moe.training.balance_loss, 0.01);
  EXPECT_TRUE(m.moe.training.balance_sequences);
  EXPECT_EQ(m.moe.training.z_loss, 0.001);
  EXPECT_EQ(m.moe.training.capacity_factor, 1.25);
  EXPECT_FALSE(m.moe.training.drop_lightest);
  EXPECT_EQ(m.moe.training.jitter, 0.02);
  EXPECT_EQ(m.moe.training.forced, turbo::RouterRule::Forced::kNo);
  const std::string forced = kMixtral + "      moe_router_force_load_balancing: true\n";
  EXPECT_EQ(model(forced).moe.training.forced, turbo::RouterRule::Forced::kEven);
  EXPECT_EQ(model(forced + "      moe_router_force_load_balancing_type: uniform\n").moe.training.forced,
            turbo::RouterRule::Forced::kUniform);
  EXPECT_EQ(model(kMixtral + "      moe_router_load_balancing_type: none\n      moe_aux_loss_coeff: 1\n")
                .moe.training.balance_loss,
            0);
}

// Without expert biases, a bias update rate of zero is accepted.
TEST(ModelSettings, ARateOfZeroNeedsNoExpertBias) {
  for (const std::string& text : {kMixtral, std::string()}) {
    EXPECT_EQ(model(text + "      moe_router_bias_update_rate: 0.0\n").moe.training.bias_update_rate, 0);
  }
  EXPECT_EQ(refusal("      moe_router_bias_update_rate: 0.5\n"), "");  // gives a warning
}

TEST(ModelSettings, LatentAttentionAndGroupsOfExperts) {
  const ModelConfig m = model(kDeepseek);
  EXPECT_EQ(m.attention.latent.kv_rank, 16);
  EXPECT_EQ(m.attention.latent.q_rank, 0);
  EXPECT_EQ(m.head_dim, 24);
  EXPECT_EQ(m.kv_heads, 4);
  EXPECT_EQ(m.dense_layers(), (std::vector<std::int64_t>{0}));
  EXPECT_EQ(m.moe.shared_ffn, 64);
  EXPECT_EQ(m.moe.router.groups, 4);
  EXPECT_EQ(m.moe.router.top_groups, 2);
  EXPECT_EQ(m.moe.router.scale, 2.5f);
  EXPECT_EQ(m.mtp.modules(), 0);
  const MtpConfig mtp =
      model(kDeepseek + "      mtp_num_layers: 2\n      mtp_loss_scaling_factor: 0.3\n").mtp;
  EXPECT_EQ(mtp.modules(), 2);
  EXPECT_EQ(mtp.training.loss_scale, 0.3);
  // The family determines the following values.
  EXPECT_EQ(m.moe.router.scoring, turbo::RouterRule::Scoring::kSigmoid);
  EXPECT_EQ(m.moe.router.group_score, turbo::RouterRule::GroupScore::kTwoBest);
  EXPECT_TRUE(m.moe.choice_bias);
  EXPECT_EQ(m.moe.training.bias_update_rate, 1e-3);
  EXPECT_EQ(refusal(kDeepseek + "      moe_router_score_function: sigmoid\n      qk_layernorm: true\n"), "");
}

TEST(ModelSettings, GptOss) {
  const ModelConfig m = model(
      "      model_type: gpt_oss\n      num_experts: 8\n      window_size: [127, 0]\n"
      "      window_attn_skip_freq: 2\n      add_qkv_bias: true\n      add_bias_linear: true\n"
      "      softmax_type: learnable\n      quick_geglu: true\n      glu_linear_offset: 1.0\n"
      "      activation_func_clamp_value: 7.0\n      position_embedding_type: yarn\n"
      "      rope_scaling_factor: 32\n      yarn_correction_range_round_to_int: false\n");
  EXPECT_EQ(m.attention.window, 128);
  EXPECT_EQ(m.local_layers(), (std::vector<std::int64_t>{0, 2}));
  EXPECT_EQ(m.rope_scaling.kind, RopeScaling::Kind::kYarn);
  EXPECT_EQ(m.rope_scaling.factor, 32);
  EXPECT_FALSE(m.rope_scaling.truncate);
  EXPECT_TRUE(m.moe.biases);
  EXPECT_EQ(m.moe.swiglu_limit, 7.0);
}

TEST(ModelSettings, Llama4) {
  const std::string text =
      "      model_type: llama4_text\n      num_experts: 8\n      moe_router_topk: 1\n"
      "      moe_ffn_hidden_size: 32\n      moe_shared_expert_intermediate_size: 32\n"
      "      moe_layer_freq: ([0,1]*2)\n      attention_chunk_size: 64\n      no_rope_freq: 4\n"
      "      attention_temperature_scale: 0.1\n      qk_l2_norm: true\n";
  const ModelConfig m = model(text);
  EXPECT_EQ(m.attention.chunk, 64);
  EXPECT_EQ(m.layers_without_rope(), (std::vector<std::int64_t>{3}));
  EXPECT_EQ(m.local_layers(), (std::vector<std::int64_t>{0, 1, 2}));
  EXPECT_EQ(m.attention.attn_scale, 0.1);
  EXPECT_TRUE(m.attention.head_norm);
  EXPECT_EQ(m.dense_layers(), (std::vector<std::int64_t>{0, 2}));
  EXPECT_EQ(m.moe.ffn, 32);
  EXPECT_EQ(m.ffn, 96);
  EXPECT_TRUE(m.moe.weigh_input);
  std::string shared = text;
  shared.replace(shared.find("size: 32\n      moe_layer"), 8, "size: 64");
  EXPECT_EQ(refusal(shared),
            "exp.yaml:18: moe_shared_expert_intermediate_size is 64, but moe_ffn_hidden_size is 32: "
            "model_type llama4_text has one width for both");
  EXPECT_EQ(refusal(text + "      moe_router_pre_softmax: true\n"),
            "exp.yaml:24: model_type llama4_text has moe_router_pre_softmax: false");
}

// Megatron-LM's keys of Qwen3.5, as in AMD Primus's preset: the parts determine the family.
TEST(ModelSettings, GatedDeltaNetworks) {
  const std::string text =
      "      model_type: gpt\n      num_experts: 8\n      moe_shared_expert_intermediate_size: 40\n"
      "      moe_shared_expert_gate: true\n      moe_router_load_balancing_type: global_aux_loss\n"
      "      moe_aux_loss_coeff: 0.001\n      qk_layernorm: true\n      attention_output_gate: true\n"
      "      apply_layernorm_1p: true\n      rotary_percent: 0.25\n"
      "      experimental_attention_variant: gated_delta_net\n";
  const std::string layers = "      linear_attention_freq: 4\n";
  const ModelConfig m = model(text + layers + "      linear_num_value_heads: 16\n");
  EXPECT_EQ(m.family, "qwen3_5_moe_text");
  EXPECT_EQ(m.layers_keeping(Keeps::kState), (std::vector<std::int64_t>{0, 1, 2}));
  EXPECT_EQ(m.linear.value_heads, 16);
  EXPECT_TRUE(m.moe.training.balance_step);
  EXPECT_FALSE(m.moe.training.balance_sequences);
  EXPECT_EQ(model(text + "      linear_attention_freq: ([1]*2+[0])+[1]\n").layers_keeping(Keeps::kState),
            (std::vector<std::int64_t>{0, 1, 3}));
  EXPECT_EQ(model(text + layers + "      moe_layer_freq: [0,1,1,1]\n").family, "qwen3_next");
  std::string dense = text;
  for (const char* key :
       {"num_experts: 8", "moe_shared_expert_intermediate_size: 40", "moe_shared_expert_gate: true"})
    dense.erase(dense.find(key) - 6, std::strlen(key) + 7);
  EXPECT_EQ(model(dense + layers).family, "qwen3_5_text");
  std::string without = text;
  without.erase(without.find("attention_output_gate") - 6, 34);
  EXPECT_THAT(refusal(without + layers), ::testing::HasSubstr("without attention_output_gate"));
  EXPECT_THAT(refusal(text), ::testing::HasSubstr("gated_delta_net needs linear_attention_freq"));
  EXPECT_THAT(refusal(text + layers + "      mtp_num_layers: 1\n"),
              ::testing::HasSubstr("multi-token prediction does not support models with linear attention"));
  EXPECT_THAT(refusal(layers), ::testing::HasSubstr("model_type llama has linear_attention_freq: no layers"));
  // In general, a single 1 is a number, with which no layer has linear attention. In a model of one layer, a
  // single 1 is the list of this layer.
  const std::string gated = "      model_type: gated_deltanet\n      linear_attention_freq: ";
  for (const char* value : {"[1]", "[1,]", "\"[1]\"", "1"}) {
    EXPECT_EQ(model(gated + value + "\n", "mock_data: true", "1").layers_keeping(Keeps::kState),
              std::vector<std::int64_t>{0})
        << value;
  }
  EXPECT_THAT(refusal(gated + "[1]\n"), ::testing::HasSubstr("is 1, which gives no layer linear"));
  const std::string one = "      linear_attention_freq: [1]\n";
  EXPECT_THAT(refusal(one), ::testing::HasSubstr("linear_attention_freq is 1, which gives no layer linear"));
  EXPECT_THAT(refusal("      attention_output_gate: true\n"),
              ::testing::HasSubstr("model_type llama has attention_output_gate: false"));
  EXPECT_THAT(refusal("      linear_key_head_dim: 64\n"),
              ::testing::HasSubstr("model_type llama has linear_key_head_dim: 128"));
}

TEST(ModelSettings, UnsupportedSettingsOfAFamilyAreRefusedAtTheirKey) {
  EXPECT_EQ(refusal("      num_experts: 8\n"), "exp.yaml:14: model_type llama has num_experts: 0");
  EXPECT_EQ(refusal("      model_type: mixtral\n"),
            "exp.yaml:14: num_experts is null, but model_type mixtral is a mixture of experts");
  EXPECT_EQ(refusal(kMixtral + "      moe_ffn_hidden_size: 32\n"),
            "exp.yaml:16: moe_ffn_hidden_size is 32, but ffn_hidden_size is 96: model_type mixtral has one "
            "width for both");
  EXPECT_EQ(refusal(kMixtral + "      moe_router_bias_update_rate: 0.5\n"),
            "exp.yaml:16: model_type mixtral has moe_router_bias_update_rate: no expert bias");
  EXPECT_EQ(refusal(kDeepseek + "      moe_router_bias_update_rate: 0.5\n"), "");
  // If a preset sets both widths, the error names the one that the user changed.
  try {
    const config::Experiment experiment = config::load_experiment_text(
        "work_group: w\nuser_name: u\nexp_name: e\nworkspace: d\nmodules:\n  pre_trainer:\n"
        "    model: mixtral_8x7B_v0.1\n    overrides:\n      mock_data: true\n      ffn_hidden_size: 64\n",
        "exp.yaml");
    model_config_of(experiment, std::nullopt, builtin_families());
    FAIL();
  } catch (const Error& error) {
    EXPECT_TRUE(error.location().starts_with("exp.yaml:10:")) << error.location();
    EXPECT_EQ(error.hint(), "also set moe_ffn_hidden_size to 64");
  }
  EXPECT_EQ(refusal(kMixtral + "      moe_layer_freq: [0, 1, 1, 1]\n"),
            "exp.yaml:16: model_type mixtral has moe_layer_freq: layers 0, 1, 2, 3");
  EXPECT_EQ(refusal(kMixtral + "      moe_router_score_function: sigmoid\n"),
            "exp.yaml:16: model_type mixtral has moe_router_score_function: softmax");
  EXPECT_EQ(refusal(kMixtral + "      moe_router_topk: 9\n"),
            "exp.yaml:16: moe_router_topk is 9, but num_experts is 8");
  EXPECT_EQ(refusal(kMixtral + "      moe_shared_expert_intermediate_size: 96\n"),
            "exp.yaml:16: model_type mixtral has moe_shared_expert_intermediate_size: 0");
  EXPECT_EQ(refusal(kDeepseek + "      moe_router_enable_expert_bias: false\n"),
            "exp.yaml:27: model_type deepseek_v3 has moe_router_enable_expert_bias: true");
  EXPECT_EQ(refusal("      multi_latent_attention: true\n"),
            "exp.yaml:14: model_type llama has multi_latent_attention: false");
  std::string other = kDeepseek;
  other.replace(other.find("num_groups: 4"), 13, "num_groups: 3");
  EXPECT_EQ(
      refusal(other),
      "exp.yaml:23: moe_router_num_groups: in the config.json of a deepseek_v3, 'n_group' does not divide "
      "n_routed_experts");
  EXPECT_EQ(
      refusal(kMixtral + "      rotary_percent: 0.5\n"),
      "exp.yaml:16: rotary_percent: in the config.json of a mixtral, 'partial_rotary_factor': 0.5 is not "
      "supported for this model family");
  other = kDeepseek;
  other.replace(other.find("num_experts: 8"), 14, "num_experts: 128");
  other.replace(other.find("num_groups: 4"), 13, "num_groups: 128");
  other.replace(other.find("group_topk: 2"), 13, "group_topk: 100");
  EXPECT_EQ(refusal(other),
            "exp.yaml:23: moe_router_num_groups: in the config.json of a deepseek_v3, 'n_group' must be an "
            "integer from 1 to 64, not 128");
  other = kMixtral + "      moe_router_topk: 65\n";
  other.replace(other.find("num_experts: 8"), 14, "num_experts: 128");
  EXPECT_EQ(refusal(other),
            "exp.yaml:16: moe_router_topk: in the config.json of a mixtral, 'num_experts_per_tok' must be an "
            "integer from 1 to 64, not 65");
  EXPECT_EQ(refusal("      window_size: [128, 0]\n"), "exp.yaml:14: model_type llama has window_size: 0");
  EXPECT_EQ(refusal("      no_rope_freq: 4\n"), "exp.yaml:14: model_type llama has no_rope_freq: no layers");
}

TEST(ModelSettings, Windows) {
  const std::string qwen = "      model_type: qwen2\n      window_size: ";
  EXPECT_EQ(model(qwen + "[127, 0]\n").attention.window, 128);
  EXPECT_EQ(model(qwen + "(127, 0)\n      window_attn_skip_freq: [0, 0, 1, 1]\n").local_layers(),
            (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(model(qwen + "(127, 0)\n      window_attn_skip_freq: 2\n").local_layers(),
            (std::vector<std::int64_t>{0, 2}));
  EXPECT_EQ(refusal(qwen + "wide\n"), "exp.yaml:15: window_size is 'wide'");
  EXPECT_EQ(refusal("      window_attn_skip_freq: 2\n"),
            "exp.yaml:14: window_attn_skip_freq needs window_size");
}

// One line in model_fields.def is enough for a field. The field's setting reaches the model, and is filled
// into an experiment without this setting. Errors about the field's keys name the setting.
TEST(ModelFields, GoFromSettingsToTheModelAndBack) {
  const ModelConfig untouched;
  int fields = 0;
  for_each_model_field([&](const auto& field) {
    ++fields;
    const config::KeySpec* const key = config::find_key(field.name);
    ASSERT_NE(key, nullptr) << field.name;
    config::TrainerConfig said;
    const bool flag = key->type == config::KeyType::kBool;
    const bool now = config::current_value(*key, said).boolean;
    const config::Value value = config::plain_scalar(flag ? now ? "false" : "true"
                                                     : key->type == config::KeyType::kInt ? "6"
                                                     : key->upper == 0                    ? "-0.75"
                                                                                          : "0.75",
                                                     {});
    config::assign(*key, value, said);
    ModelConfig model;
    field.read(said, model);
    EXPECT_NE(field.of(model), field.of(untouched)) << field.name;
    config::TrainerConfig filled;
    field.write(model, filled);
    EXPECT_TRUE(config::same_value(*key, said, filled)) << field.name;
    std::istringstream keys{std::string(field.config_keys)};
    for (std::string config_key; keys >> config_key;) {
      const auto settings = settings_behind(config_key);
      EXPECT_NE(std::ranges::find(settings, field.name), settings.end()) << config_key;
    }
  });
  EXPECT_GT(fields, 30);
}

TEST(ModelFields, AnErrorAboutAConfigJsonCarriesItsKey) {
  const auto key_of = [](const std::string& key, const std::string& value) {
    nlohmann::json json =
        nlohmann::json::parse(write_model_config(model(""), DType::kF32, builtin_families()));
    json[key] = nlohmann::json::parse(value);
    try {
      read_model_config(json.dump(), "config.json", builtin_families());
    } catch (const ConfigKeyError& error) {
      EXPECT_TRUE(error.location().starts_with("config.json")) << error.location();
      return error.key();
    }
    return std::string("none");
  };
  EXPECT_EQ(key_of("hidden_size", "0"), "hidden_size");
  EXPECT_EQ(key_of("head_dim", "15"), "head_dim");
  EXPECT_EQ(key_of("num_key_value_heads", "3"), "num_key_value_heads");
  EXPECT_EQ(key_of("attention_bias", "true"), "attention_bias");
  EXPECT_EQ(key_of("partial_rotary_factor", "0.5"), "partial_rotary_factor");
  EXPECT_EQ(key_of("rope_scaling", R"({"rope_type": "dynamic"})"), "rope_type");
  EXPECT_EQ(key_of("num_hidden_layers", "10000"), "none");
}

std::string text_of(const std::vector<std::string>& words) {
  const auto pattern = parse_layer_pattern(words, 100);
  if (!pattern) return "none";
  if (pattern->every > 0) return "every " + std::to_string(pattern->every);
  std::string text;
  for (const bool bit : pattern->per_layer) text += bit ? '1' : '0';
  return text;
}

TEST(LayerPattern, ParsesNumbersListsAndPythonsNotation) {
  EXPECT_EQ(text_of({"3"}), "every 3");
  EXPECT_EQ(text_of({"0", "1", "1"}), "011");
  EXPECT_EQ(text_of({"([0]*3+[1]*2)"}), "00011");
  EXPECT_EQ(text_of({"([0]", "*", "3", "+", "[1])"}), "0001");
  EXPECT_EQ(text_of({"[0,1]*3"}), "010101");
  EXPECT_EQ(text_of({"2*([0]+[1]*2)"}), "011011");
  EXPECT_EQ(text_of({"[1]"}), "1");
}

TEST(LayerPattern, RefusesOtherText) {
  for (const char* text :
       {"", "0", "-1", "[2]", "[0", "[0]*", "[0]+", "(([0])", "[0]*101", "[0]*99999999999999999999", "[]",
        "x", "[0]]", "((((((((([0])))))))))", "[0]*50*3"}) {
    EXPECT_EQ(text_of({text}), "none") << text;
  }
  EXPECT_EQ(text_of({}), "none");
  EXPECT_EQ(text_of({"0", "2"}), "none");
}

}  // namespace
}  // namespace primus
