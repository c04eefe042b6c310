// Tests keys of config.json. A key that changes the result of transformers has an effect or is refused. An
// unknown key is always reported.
#include "lm/model/config_keys.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/files/file.h"
#include "config_json.h"
#include "lm/model/family.h"
#include "lm/model/model_config.h"

namespace primus {
namespace {

using nlohmann::json;
using test::golden;
using test::read;
using test::refusal;

const Path kTests = Path(PRIMUS_SOURCE_DIR) / "tests";

std::vector<std::string> notes_of(const json& root) {
  std::vector<std::string> notes;
  read_model_config(root.dump(), "config.json", builtin_families(), &notes);
  return notes;
}

// Returns another value of the same type, which gives a valid model where possible.
json another(const json& value) {
  if (value.is_boolean()) return !value.get<bool>();
  if (value.is_number_integer()) return value.get<std::int64_t>() * 2 + (value == 0 ? 1 : 0);
  if (value.is_number()) return value.get<double>() * 2 + 0.25;
  if (value.is_string()) return value.get<std::string>() + "x";
  if (value.is_null()) return 3;
  json changed = value;
  if (value.is_array()) {
    if (value.empty()) return json::array({0});
    changed.front() = another(value.front());
    return changed;
  }
  for (auto& [key, item] : changed.items()) item = another(item);
  return changed;
}

// transformers_defaults.json has every key of transformers' configuration classes.
TEST(ConfigKeys, EveryKeyOfTransformersIsReadRefusedOrWithoutEffect) {
  // Keys without effect. Forward passes do not return router logits; the width of windows matters only if
  // layers have windows; latent attention uses the widths of its parts, and treats more key heads than query
  // heads as equally many.
  const std::set<std::string> any = {"output_router_logits", "pretraining_tp"};
  const std::set<std::string> windows = {"max_window_layers", "sliding_window"};
  const std::map<std::string, std::set<std::string>> without_say = {
      {"qwen2", windows},
      {"qwen3", windows},
      {"qwen3_moe", {"sliding_window"}},
      {"deepseek_v2", {"head_dim", "num_key_value_heads", "qk_head_dim", "n_group", "topk_group"}},
      {"deepseek_v3", {"num_key_value_heads", "qk_head_dim"}},
      // The list of layers overrides the number of dense layers.
      {"deepseek_v32", {"first_k_dense_replace", "head_dim", "num_key_value_heads", "qk_head_dim"}},
      {"glm_moe_dsa", {"first_k_dense_replace", "head_dim", "num_key_value_heads", "qk_head_dim"}},
      {"llama4_text", {"interleave_moe_layer_step", "no_rope_layer_interval"}},  // lists override them
      {"lfm2", {"full_attn_idxs"}},
      {"kimi_linear", {"head_dim", "num_key_value_heads", "qk_head_dim"}},
      {"phi3", {"original_max_position_embeddings"}},  // only for longrope
      // A list overrides the interval. A single key for windows has no effect, because windows need both
      // keys.
      {"smollm3", {"no_rope_layer_interval", "sliding_window", "use_sliding_window"}},
      // A list overrides the pattern.
      {"gemma3_text", {"_sliding_window_pattern"}},
      // The branches of rope_parameters override these keys.
      {"deepseek_v4", {"compress_rope_theta", "partial_rotary_factor", "rope_theta"}}};
  const json families = json::parse(read_file(kTests / "lm/model/transformers_defaults.json"));
  std::size_t keys = 0;
  for (const auto& [family, config] : families.items()) {
    const json& full = config.at("full");
    const ModelConfig original = read(full);
    EXPECT_EQ(notes_of(full), std::vector<std::string>{}) << family;
    const auto excused = without_say.find(family);
    for (const auto& [key, value] : full.items()) {
      json changed = full;
      changed[key] = another(value);
      const bool silent = refusal(changed) == "accepted" && read(changed) == original;
      const bool expected =
          any.contains(key) || (excused != without_say.end() && excused->second.contains(key));
      EXPECT_EQ(silent, expected) << family << " " << key << ": " << changed[key] << " " << refusal(changed);
      ++keys;
    }
  }
  EXPECT_GT(keys, 150U);
}

// transformers 5.23 fails with fewer key heads than query heads. In V3 it rotates head_dim columns, while
// V2's class overwrites head_dim.
TEST(ConfigKeys, HeadsOfLatentAttention) {
  for (const std::string family : {"deepseek_v2", "deepseek_v3"}) {
    const json root = golden(family);
    const ModelConfig original = read(root);
    const std::string unsupported = " is not supported for this model family";
    for (const json& fine : {json(original.heads), json(128), json(nullptr)}) {
      json changed = root;
      changed["num_key_value_heads"] = fine;
      EXPECT_EQ(read(changed), original) << family << " " << fine;
    }
    json fewer = root;
    fewer["num_key_value_heads"] = original.heads / 2;
    EXPECT_EQ(refusal(fewer), fmt::format("'num_key_value_heads': {}{}", original.heads / 2, unsupported));
    for (const json& fine : {root.at("qk_rope_head_dim"), json(nullptr)}) {
      json changed = root;
      changed["head_dim"] = fine;
      EXPECT_EQ(read(changed), original) << family << " " << fine;
    }
    json wider = root;
    wider["head_dim"] = original.head_dim;
    EXPECT_EQ(refusal(wider), family == "deepseek_v2"
                                  ? "accepted"
                                  : fmt::format("'head_dim': {}{}", original.head_dim, unsupported));
  }
}

TEST(ConfigKeys, WindowKeysMatterOnlyWithWindows) {
  for (const char* family : {"qwen2", "qwen3"}) {
    json root = golden(family);
    root.erase("layer_types");
    root["use_sliding_window"] = true;
    root["sliding_window"] = 8;
    root["max_window_layers"] = 0;
    const ModelConfig original = read(root);
    for (const char* key : {"sliding_window", "max_window_layers"}) {
      json changed = root;
      changed[key] = another(root[key]);
      EXPECT_NE(read(changed), original) << family << " " << key;
    }
  }
}

TEST(ConfigKeys, UnsupportedKeysOfAllTransformersModelsAreRefused) {
  const std::pair<const char*, json> refused[] = {{"is_causal", false},
                                                  {"per_layer_config", {{"0", {{"num_attention_heads", 2}}}}},
                                                  {"pruned_heads", {{"0", {1}}}},
                                                  {"transformers_weights", "other.safetensors"}};
  for (const auto& [key, value] : refused) {
    json root = golden("llama");
    root[key] = value;
    EXPECT_EQ(refusal(root).find("'" + std::string(key) + "'"), 0U) << refusal(root);
  }
  json root = golden("llama");
  root["is_causal"] = true;
  root["pruned_heads"] = json::object();
  EXPECT_EQ(notes_of(root), std::vector<std::string>{});
}

TEST(ConfigKeys, AlternativeNamesOverrideTheUsualNames) {
  const std::tuple<const char*, const char*, const char*> aliases[] = {
      {"mixtral", "num_experts", "num_local_experts"},
      {"gpt_oss", "num_experts", "num_local_experts"},
      {"deepseek_v2", "num_experts", "n_routed_experts"},
      {"deepseek_v3", "num_local_experts", "n_routed_experts"},
      {"deepseek_v3", "num_mtp_layers", "num_nextn_predict_layers"},
      {"qwen3_moe", "num_local_experts", "num_experts"},
      {"lfm2", "block_ff_dim", "intermediate_size"},
      {"kimi_linear", "num_local_experts", "num_experts"},
      {"kimi_linear", "num_shared_experts", "n_shared_experts"},
      {"glm4_moe", "num_local_experts", "n_routed_experts"}};
  for (const auto& [family, alias, key] : aliases) {
    json expected = golden(family), root = expected;
    expected.erase(alias);
    expected[key] = 16;
    root[key] = 8;
    root[alias] = 16;
    EXPECT_EQ(read(root), read(expected)) << family << " " << alias;
    root.erase(key);
    EXPECT_EQ(read(root), read(expected)) << family << " " << alias;
    EXPECT_EQ(notes_of(root), std::vector<std::string>{});
    root[alias] = nullptr;
    root[key] = 16;
    EXPECT_EQ(read(root), read(expected)) << family << " " << alias;
  }
}

TEST(ConfigKeys, IdsOutsideTheVocabularyAreNoted) {
  json root = golden("llama");
  root["vocab_size"] = 100;
  root["bos_token_id"] = 99;
  root["eos_token_id"] = {4, 100};
  EXPECT_EQ(
      notes_of(root),
      std::vector<std::string>{
          "config.json: eos_token_id is 100, but the vocabulary has 100 tokens, so no text contains it"});
  root["eos_token_id"] = -1;
  EXPECT_EQ(notes_of(root).size(), 1U);
}

// Parameters of RoPE may be outside of rope_parameters, or missing, as in transformers 5.23.
TEST(ConfigKeys, RopeParametersMayBeElsewhereOrAbsent) {
  json root = golden("llama");
  root.erase("rope_parameters");
  root["max_position_embeddings"] = 512;
  root["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 64}};
  EXPECT_EQ(read(root).rope_scaling.original_max_positions, 64);
  root["original_max_position_embeddings"] = 32;
  EXPECT_EQ(read(root).rope_scaling.original_max_positions, 32);
  root["rope_scaling"]["factor"] = nullptr;
  EXPECT_EQ(read(root).rope_scaling.factor, 16);
  EXPECT_EQ(notes_of(root), std::vector<std::string>{});
  root["rope_scaling"].erase("factor");
  EXPECT_EQ(refusal(root), "'factor' is missing in 'rope_scaling'");
  root["rope_scaling"] = {{"rope_type", "linear"}, {"factor", nullptr}};
  EXPECT_EQ(refusal(root), "'factor' must be a number");
  root["rope_scaling"] = {{"full_attention", {{"rope_type", "linear"}, {"factor", 2.0}}}};
  EXPECT_NE(refusal(root).find("rotations per layer type"), std::string::npos) << refusal(root);

  json deepseek = golden("deepseek_v3");
  deepseek["rope_parameters"] = {{"rope_type", "linear"}, {"factor", 4.0}, {"mscale_all_dim", 1.0}};
  EXPECT_EQ(refusal(deepseek), "'mscale_all_dim' is not supported with this rope_type");
}

// Only the two branches of DeepSeek-V4 define how positions are rotated, as in transformers 5.24.
TEST(ConfigKeys, NestedRopeParametersOverrideTopLevelKeys) {
  const json root = golden("deepseek_v4");
  json changed = root;
  changed["rope_parameters"]["compress"]["rope_theta"] = 2000.0;
  changed["rope_parameters"]["main"]["rope_theta"] = 500.0;
  EXPECT_EQ(read(changed).attention.pooled.theta, 2000);
  EXPECT_EQ(read(changed).rope_theta, 500);
  changed["rope_parameters"]["compress"].erase("rope_theta");
  EXPECT_EQ(read(changed).attention.pooled.theta, 10000);  // from rope_theta, not compress_rope_theta
  changed = root;
  changed["rope_parameters"]["compress"]["attention_factor"] = 1.3;
  EXPECT_EQ(read(changed).rope_scaling.attention_factor, 1.3);
  changed["rope_parameters"]["compress"].erase("attention_factor");
  EXPECT_EQ(read(changed).rope_scaling.attention_factor, std::nullopt);  // computed from the factor
  EXPECT_EQ(read(json::parse(write_model_config(read(changed), DType::kF32, builtin_families()))),
            read(changed));
  changed = root;
  changed.erase("partial_rotary_factor");
  changed.erase("qk_rope_head_dim");
  EXPECT_EQ(read(changed), read(root));
  changed["rope_parameters"]["main"].erase("partial_rotary_factor");
  EXPECT_EQ(refusal(changed),
            "'partial_rotary_factor' is missing both in a branch of 'rope_parameters' and next to it");
  changed["rope_parameters"]["main"]["partial_rotary_factor"] = 0.5;
  EXPECT_EQ(refusal(changed), "'partial_rotary_factor' differs between the branches of rope_parameters");
  changed = root;
  changed["rope_parameters"]["main"]["rope_type"] = "linear";
  changed["rope_parameters"]["main"]["factor"] = 3.0;
  EXPECT_EQ(refusal(changed), "rope_type 'linear' of 'rope_parameters.main' is not supported");
  changed = root;
  changed["qk_rope_head_dim"] = 12;
  EXPECT_EQ(refusal(changed),
            "'qk_rope_head_dim' differs from the 8 columns that partial_rotary_factor selects");
  changed = root;
  changed["rope_parameters"]["main"]["beta_fast"] = 16;
  changed["rope_parameters"]["rope_type"] = "default";
  EXPECT_EQ(notes_of(changed), std::vector<std::string>{
                                   "config.json: keys rope_parameters.rope_type, "
                                   "rope_parameters.main.beta_fast are unknown to Primus and were ignored"});
  // Older names of the key compress_rates are accepted.
  changed = root;
  changed["compress_rate_csa"] = 3;
  changed["compress_rate_hca"] = 7;
  EXPECT_EQ(read(changed).attention.pooled.sparse_ratio, 3);
  EXPECT_EQ(read(changed).attention.pooled.heavy_ratio, 7);
  // Released files have no branches. YaRN then does not scale rotations, unless the file sets
  // attention_factor.
  json flat = root;
  flat["rope_parameters"] = nullptr;
  flat["rope_scaling"] = {{"type", "yarn"}, {"factor", 16}, {"original_max_position_embeddings", 16}};
  EXPECT_EQ(read(flat).attention.pooled.theta, 160000);
  EXPECT_EQ(read(flat).rope_scaling.attention_factor, 1);
  flat["rope_scaling"]["attention_factor"] = 1.3;
  EXPECT_EQ(read(flat).rope_scaling.attention_factor, 1.3);
  // transformers uses 1 only if the key is missing, and computes the value from `factor` if it is null.
  json computed = flat;
  computed["rope_scaling"]["attention_factor"] = nullptr;
  EXPECT_EQ(read(computed).rope_scaling.attention_factor, std::nullopt);
  computed["rope_scaling"]["mscale"] = 0.5;
  computed["rope_scaling"]["mscale_all_dim"] = 0.25;
  EXPECT_EQ(read(computed).rope_scaling.mscale, 0.5);
  EXPECT_EQ(read(json::parse(write_model_config(read(computed), DType::kF32, builtin_families()))),
            read(computed));
  flat.erase("partial_rotary_factor");
  EXPECT_EQ(read(flat).rotary_dim(), 8);  // from qk_rope_head_dim
  flat.erase("qk_rope_head_dim");
  EXPECT_EQ(refusal(flat),
            "'qk_rope_head_dim' is 3; it must be even, and at most head_dim and index_head_dim");
}

// A list of one entry per layer is refused if it has one entry too many or too few.
TEST(ConfigKeys, ListsOfLayersThatAreTooLongAreRefused) {
  std::size_t lists = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kTests / "golden/models")) {
    const std::string name = entry.path().filename();
    const json whole = golden(name);
    const json root = whole.value("text_config", whole);
    for (const auto& [key, value] : root.items()) {
      if (!value.is_array() || value.size() != root.at("num_hidden_layers")) continue;
      json longer = root;
      longer[key].push_back(value.back());
      EXPECT_NE(refusal(longer).find("'" + key + "'"), std::string::npos) << name << " " << refusal(longer);
      json shorter = root;
      shorter[key].erase(shorter[key].size() - 1);
      EXPECT_NE(refusal(shorter).find("'" + key + "'"), std::string::npos) << name << " " << refusal(shorter);
      ++lists;
    }
  }
  EXPECT_GT(lists, 8U);
  // Released files of DeepSeek-V4 list the layers of multi-token prediction after the other layers.
  json ratios = golden("deepseek_v4");
  ratios.erase("layer_types");
  ratios["num_nextn_predict_layers"] = 1;
  ratios["compress_ratios"] = {0, 4, 128, 4, 0};
  EXPECT_EQ(refusal(ratios), "accepted");
  ratios["compress_ratios"].push_back(0);
  EXPECT_EQ(refusal(ratios), "'compress_ratios' must be a list with an entry for each of 4 layers");
}

// Token ids are written only if they were read: for a missing key, transformers uses the default of the
// family's class.
TEST(ConfigKeys, IdsOfTokensAreWrittenAsTheyWereRead) {
  const auto written = [](const json& root) {
    return json::parse(write_model_config(read(root), DType::kF32, builtin_families()));
  };
  for (const auto& entry : std::filesystem::directory_iterator(kTests / "golden/models")) {
    const json whole = golden(entry.path().filename());
    json root = whole.value("text_config", whole);
    const auto expect_same = [&](const json& of) {
      const json again = written(of);
      for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
        EXPECT_EQ(again.contains(key), of.contains(key)) << entry.path() << key;
        EXPECT_EQ(again.value(key, json()), of.value(key, json())) << entry.path() << key;
      }
    };
    expect_same(root);
    root["bos_token_id"] = 3;
    root["eos_token_id"] = {4, 5};
    root["pad_token_id"] = 6;
    expect_same(root);
    for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) root[key] = nullptr;
    expect_same(root);
    for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) root.erase(key);
    expect_same(root);
  }
}

// Models that process images have tie_word_embeddings next to text_config, inside text_config, or in both
// places.
TEST(ConfigKeys, ATiedHeadMayBeAKeyOfTheCompleteModel) {
  json text = golden("qwen3_5");
  text["tie_word_embeddings"] = false;
  json root = {{"model_type", "qwen3_5"}, {"tie_word_embeddings", true}, {"text_config", text}};
  EXPECT_FALSE(read(root).tied_embeddings);
  root["text_config"].erase("tie_word_embeddings");
  EXPECT_TRUE(read(root).tied_embeddings);
  root.erase("tie_word_embeddings");
  EXPECT_FALSE(read(root).tied_embeddings);
}

// The text part of Qwen3-VL is Qwen 3: text tokens have one position each, so mrope has no effect.
TEST(ConfigKeys, TheTextPartOfQwen3VlIsQwen3) {
  json text = golden("qwen3");
  const ModelConfig original = read(text);
  text["model_type"] = "qwen3_vl_text";
  text["rope_scaling"] = {
      {"rope_type", "default"}, {"mrope_interleaved", true}, {"mrope_section", {4, 2, 2}}};
  text["rope_theta"] = original.rope_theta;
  const json root = {{"model_type", "qwen3_vl"}, {"text_config", text}, {"vision_config", {{"depth", 2}}}};
  EXPECT_EQ(read(root), original);
  EXPECT_EQ(notes_of(root), std::vector<std::string>{});
  EXPECT_EQ(read(root).family, "qwen3");
}

// This config.json describes the whole model. Text tokens have one position each, so mrope has no effect.
TEST(ConfigKeys, TheTextPartOfQwen3VlsMixturesIsQwen3Moe) {
  const json root = golden("qwen3_vl_moe");
  const ModelConfig c = read(root);
  EXPECT_EQ(c.family, "qwen3_moe");
  EXPECT_TRUE(c.moe.router.normalise);
  EXPECT_EQ(c.dense_layers(), (std::vector<std::int64_t>{1}));
  EXPECT_EQ(c.rope_theta, 5000);
  EXPECT_EQ(notes_of(root), std::vector<std::string>{});
  json changed = root;
  changed["text_config"]["norm_topk_prob"] = false;
  EXPECT_EQ(refusal(changed), "'norm_topk_prob': false is not supported for this model family");
  changed["text_config"] = {{"model_type", "qwen3_vl_moe_text"},
                            {"num_hidden_layers", 24},
                            {"hidden_size", 2048},
                            {"num_attention_heads", 16},
                            {"vocab_size", 151936}};
  changed.erase("tie_word_embeddings");
  const ModelConfig defaults = read(changed);
  EXPECT_EQ(defaults.moe.experts, 60);
  EXPECT_EQ(defaults.moe.router.top_k, 4);
  EXPECT_EQ(defaults.kv_heads, 16);
  EXPECT_EQ(defaults.rope_theta, 500000);
  EXPECT_TRUE(defaults.tied_embeddings);
}

TEST(ConfigKeys, UnsupportedQuantizedWeightsAreNamed) {
  json root = golden("llama");
  const auto with = [&](const json& config) {
    root["quantization_config"] = config;
    return refusal(root);
  };
  for (const char* method : {"awq", "gptq", "bitsandbytes", "compressed-tensors", "fbgemm_fp8", "quark"}) {
    EXPECT_EQ(with({{"quant_method", method}, {"bits", 4}}),
              fmt::format("'quantization_config': weights quantised with {} cannot be read", method));
  }
  EXPECT_EQ(with({{"quant_method", "bitsandbytes"}, {"load_in_8bit", true}}),
            "'quantization_config': weights quantised with bitsandbytes cannot be read");
  EXPECT_EQ(with({{"load_in_4bit", true}}), "accepted");
  EXPECT_EQ(with({{"quant_method", "fp8"}, {"weight_block_size", nullptr}, {"fmt", "e4m3"}}), "accepted");
  EXPECT_EQ(with({{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}}), "accepted");
  EXPECT_EQ(with({{"quant_method", "fp8"}, {"weight_block_size", {64, 64}}}),
            "'quantization_config': weights quantised with fp8 with blocks of [64,64] cannot be read");
  EXPECT_EQ(with({{"quant_method", "mxfp4"}}), "accepted");
  EXPECT_EQ(with(json::object()), "accepted");
  // Models that also process images have quantization_config next to text_config.
  const json outside = {{"model_type", "llama"},
                        {"quantization_config", {{"quant_method", "awq"}}},
                        {"text_config", golden("llama")}};
  EXPECT_NE(refusal(outside).find("quantised with awq"), std::string::npos);
}

TEST(ConfigKeys, UnknownKeysAreNotedOnce) {
  json root = golden("llama");
  root["qk_norm"] = true;
  EXPECT_EQ(notes_of(root),
            std::vector<std::string>{"config.json: key qk_norm is unknown to Primus and was ignored"});
  root["rope_parameters"]["mscale"] = 0.7;
  root["logits_scaling"] = 8.0;
  EXPECT_EQ(notes_of(root),
            std::vector<std::string>{"config.json: keys logits_scaling, qk_norm, rope_parameters.mscale are "
                                     "unknown to Primus and were ignored"});
  // A key of another family is reported, unless its value is null.
  json mixtral = golden("mixtral");
  mixtral["norm_topk_prob"] = false;
  mixtral["residual_multiplier"] = nullptr;
  EXPECT_EQ(notes_of(mixtral),
            std::vector<std::string>{"config.json: key norm_topk_prob is unknown to Primus and was ignored"});
}

TEST(ConfigKeys, HostileNamesAreShownAsOneShortLineOfPlainText) {
  json root = golden("llama");
  root["\x1b[2J\n\x7f"] = 1;
  EXPECT_EQ(notes_of(root),
            std::vector<std::string>{"config.json: key \"\\u001b[2J\\n\\u007f\" is unknown to Primus and was "
                                     "ignored"});
  for (int i = 0; i < 3000; ++i) root[std::string(500, 'y') + std::to_string(i)] = 1;
  const std::vector<std::string> notes = notes_of(root);
  ASSERT_EQ(notes.size(), 1U);
  EXPECT_LT(notes[0].size(), 800U);
  EXPECT_NE(notes[0].find(" and 2993 more are unknown"), std::string::npos) << notes[0];
}

TEST(ConfigKeys, ARefusedKeyHasTheNameThatTheFileUses) {
  json root = golden("mixtral");
  root.erase("num_local_experts");
  root["num_experts"] = "eight";
  try {
    read(root);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.hint(), "'num_local_experts' is 'num_experts' in this file");
  }
}

// All keys of the published config.json files of these families, which the transformers versions of their
// time wrote. The values are the goldens'.
TEST(ConfigKeys, PublishedModelsGiveNoNote) {
  const char* const common =
      "_name_or_path architectures attention_dropout bos_token_id eos_token_id head_dim "
      "hidden_act "
      "hidden_size initializer_range intermediate_size max_position_embeddings model_type "
      "num_attention_heads "
      "num_hidden_layers num_key_value_heads pad_token_id pretraining_tp rms_norm_eps rope_scaling "
      "rope_theta "
      "tie_word_embeddings torch_dtype dtype transformers_version use_cache vocab_size quantization_config "
      "pruned_heads is_decoder return_dict output_attentions temperature top_p chunk_size_feed_forward";
  const char* const deepseek =
      "attention_bias auto_map aux_loss_alpha ep_size first_k_dense_replace kv_lora_rank "
      "moe_intermediate_size "
      "moe_layer_freq "
      "n_group n_routed_experts n_shared_experts norm_topk_prob num_experts_per_tok q_lora_rank "
      "qk_nope_head_dim "
      "qk_rope_head_dim routed_scaling_factor scoring_func seq_aux topk_group topk_method v_head_dim";
  const char* const qwen =
      "attention_bias linear_conv_kernel_dim linear_key_head_dim linear_num_key_heads linear_num_value_heads "
      "linear_value_head_dim moe_intermediate_size num_experts num_experts_per_tok output_router_logits "
      "partial_rotary_factor router_aux_loss_coef shared_expert_intermediate_size";
  const std::map<std::string, std::string> published = {
      {"llama", "attention_bias mlp_bias"},
      {"llama31_tied", "attention_bias mlp_bias"},
      {"qwen2", "max_window_layers sliding_window use_sliding_window use_mrope layer_types"},
      {"qwen3", "attention_bias max_window_layers sliding_window use_sliding_window layer_types"},
      {"qwen3_moe",
       "attention_bias decoder_sparse_step max_window_layers mlp_only_layers moe_intermediate_size "
       "norm_topk_prob "
       "num_experts "
       "num_experts_per_tok output_router_logits router_aux_loss_coef sliding_window use_sliding_window"},
      {"mixtral",
       "num_experts_per_tok num_local_experts output_router_logits router_aux_loss_coef router_jitter_noise "
       "sliding_window"},
      {"deepseek_v2", deepseek},
      {"deepseek_v3", deepseek + std::string(" num_nextn_predict_layers rope_interleave")},
      {"gpt_oss",
       "attention_bias experts_per_token initial_context_length layer_types num_experts_per_tok "
       "num_local_experts "
       "output_router_logits router_aux_loss_coef sliding_window swiglu_limit"},
      {"llama4",
       "_attn_implementation_autoset attention_bias attention_chunk_size attn_scale attn_temperature_tuning "
       "cache_implementation "
       "floor_scale for_llm_compressor interleave_moe_layer_step intermediate_size_mlp layer_types "
       "moe_layers "
       "no_rope_layer_interval no_rope_layers num_experts_per_tok num_local_experts output_router_logits "
       "router_aux_loss_coef router_jitter_noise use_qk_norm"},
      {"lfm2",
       "block_auto_adjust_ff_dim block_dim block_ff_dim block_ffn_dim_multiplier block_mlp_init_scale "
       "block_multiple_of block_norm_eps block_out_init_scale block_use_swiglu block_use_xavier_init "
       "conv_L_cache conv_bias conv_dim conv_dim_out conv_use_xavier_init full_attn_idxs layer_types "
       "norm_eps "
       "num_heads tie_embedding use_pos_enc"},
      {"lfm2_moe",
       "conv_L_cache conv_bias layer_types moe_intermediate_size norm_eps norm_topk_prob num_dense_layers "
       "num_experts num_experts_per_tok routed_scaling_factor use_expert_bias"},
      {"qwen3_next",
       qwen + std::string(" decoder_sparse_step mlp_only_layers norm_topk_prob full_attention_interval")},
      {"qwen3_5_moe",
       qwen + std::string(
                  " attn_output_gate full_attention_interval layer_types mamba_ssm_dtype mlp_only_layers "
                  "mtp_num_hidden_layers mtp_use_dedicated_embeddings rope_parameters")},
      {"qwen3_5",
       "attention_bias attn_output_gate full_attention_interval layer_types linear_conv_kernel_dim "
       "linear_key_head_dim linear_num_key_heads linear_num_value_heads linear_value_head_dim "
       "mamba_ssm_dtype "
       "mtp_num_hidden_layers mtp_use_dedicated_embeddings rope_parameters partial_rotary_factor"},
      {"kimi_linear",
       "auto_map attention_bias first_k_dense_replace kv_lora_rank linear_attn_config mla_use_nope "
       "model_max_length moe_intermediate_size moe_layer_freq moe_renormalize moe_router_activation_func "
       "num_expert_group num_experts num_experts_per_token num_nextn_predict_layers num_shared_experts "
       "q_lora_rank qk_nope_head_dim qk_rope_head_dim routed_scaling_factor topk_group topk_method "
       "use_grouped_topk v_head_dim"},
      {"mistral", "sliding_window"},
      {"ministral", "sliding_window layer_types"},
      {"phi3",
       "auto_map attention_bias embd_pdrop resid_pdrop original_max_position_embeddings "
       "partial_rotary_factor "
       "sliding_window"},
      {"smollm3",
       "attention_bias mlp_bias layer_types max_window_layers no_rope_layer_interval no_rope_layers "
       "sliding_window use_sliding_window"},
      {"olmo2", "attention_bias"},
      {"glm4", "attention_bias partial_rotary_factor"},
      {"glm4_moe",
       "attention_bias first_k_dense_replace moe_intermediate_size n_group n_routed_experts n_shared_experts "
       "norm_topk_prob num_experts_per_tok num_nextn_predict_layers partial_rotary_factor "
       "routed_scaling_factor topk_group use_qk_norm"},
      {"granite",
       "attention_bias attention_multiplier embedding_multiplier logits_scaling mlp_bias "
       "residual_multiplier"},
      {"granitemoe",
       "attention_bias attention_multiplier embedding_multiplier logits_scaling num_experts_per_tok "
       "num_local_experts output_router_logits residual_multiplier router_aux_loss_coef"},
      {"granitemoeshared",
       "attention_bias attention_multiplier embedding_multiplier logits_scaling num_experts_per_tok "
       "num_local_experts output_router_logits residual_multiplier router_aux_loss_coef "
       "shared_intermediate_size"},
      {"gemma2",
       "attention_bias attn_logit_softcapping cache_implementation final_logit_softcapping hidden_act "
       "hidden_activation query_pre_attn_scalar sliding_window"},
      {"gemma3",
       "attention_bias attn_logit_softcapping cache_implementation final_logit_softcapping "
       "hidden_activation "
       "layer_types query_pre_attn_scalar rope_local_base_freq sliding_window sliding_window_pattern "
       "use_bidirectional_attention"},
      {"ministral3", "sliding_window"}};
  for (const auto& [name, keys] : published) {
    json root = golden(name);
    root["vocab_size"] = 1 << 20;  // covers the special token ids of the published models
    EXPECT_EQ(notes_of(root), std::vector<std::string>{}) << name;
    json all = json::object();
    std::istringstream words(common + (" " + keys));
    for (std::string key; words >> key;) all[key] = 1;
    const FamilyRegistry families = builtin_families();
    const json written = json::parse(write_model_config(read(root), DType::kBF16, families));
    EXPECT_EQ(unknown_keys(all, written, families.find(read(root).family)), std::vector<std::string>{})
        << name;
  }
  const json presets = json::parse(read_file(kTests / "lm/train/published_configs.json"));
  for (const auto& [preset, config] : presets.items()) {
    EXPECT_EQ(notes_of(config), std::vector<std::string>{}) << preset;
  }
}

}  // namespace
}  // namespace primus
