// Tests config.json: which keys are read, which keys are refused, and the errors about keys. A written file
// reads back as an equal model.
#include "lm/model/model_config.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/files/file.h"
#include "config_json.h"
#include "engine/runtime/parameters.h"
#include "lm/model/family.h"
#include "lm/model/language_model.h"
#include "lm/model/rope_table.h"

namespace primus {
namespace {

using nlohmann::json;
using test::golden;
using test::read;
using test::refusal;

json small_llama() {
  return {{"model_type", "llama"},
          {"num_hidden_layers", 2},
          {"hidden_size", 64},
          {"intermediate_size", 96},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"vocab_size", 100},
          {"rms_norm_eps", 1e-5},
          {"max_position_embeddings", 128},
          {"tie_word_embeddings", false},
          {"rope_theta", 10000.0}};
}

TEST(ModelConfig, RoundTrips) {
  json root = small_llama();
  root["head_dim"] = 24;
  root["bos_token_id"] = 1;
  root["eos_token_id"] = {2, 5};
  root["rope_scaling"] = {{"rope_type", "llama3"},
                          {"factor", 32.0},
                          {"low_freq_factor", 1.0},
                          {"high_freq_factor", 4.0},
                          {"original_max_position_embeddings", 64}};
  const ModelConfig c = read(root);
  EXPECT_EQ(c.head_dim, 24);
  EXPECT_EQ(c.eos_ids, (std::vector<std::int64_t>{2, 5}));
  EXPECT_EQ(c.rope_scaling.kind, RopeScaling::Kind::kLlama3);
  const std::string written = write_model_config(c, DType::kBF16, builtin_families());
  EXPECT_EQ(write_model_config(read(json::parse(written)), DType::kBF16, builtin_families()), written);
  EXPECT_EQ(json::parse(written).at("torch_dtype"), "bfloat16");
  // transformers 5 reads rope_parameters.
  EXPECT_EQ(json::parse(written).at("rope_parameters").at("factor"), 32.0);
}

TEST(ModelConfig, MultiTokenPredictionIsWrittenIfItIsSaved) {
  json root = small_llama();
  EXPECT_EQ(read(root).mtp.layers, 0);
  root["num_nextn_predict_layers"] = 2;
  ModelConfig c = read(root);
  EXPECT_EQ(c.mtp.layers, 2);
  EXPECT_EQ(c.mtp.modules(), 0);
  const auto written = [&] { return json::parse(write_model_config(c, DType::kF32, builtin_families())); };
  EXPECT_FALSE(written().contains("num_nextn_predict_layers"));
  c.mtp.enabled = true;
  EXPECT_EQ(written().at("num_nextn_predict_layers"), 2);
  root["num_nextn_predict_layers"] = 65;
  EXPECT_NE(refusal(root).find("num_nextn_predict_layers"), std::string::npos);
}

TEST(ModelConfig, RefusesByName) {
  auto with = [](const char* key, const json& value) {
    json root = small_llama();
    root[key] = value;
    return root;
  };
  EXPECT_NE(refusal(with("model_type", "lama")).find("'lama'"), std::string::npos);
  EXPECT_NE(refusal(with("attention_bias", true)).find("attention_bias"), std::string::npos);
  EXPECT_NE(refusal(with("hidden_act", "gelu")).find("hidden_act"), std::string::npos);
  EXPECT_NE(refusal(with("num_hidden_layers", 0)).find("num_hidden_layers"), std::string::npos);
  EXPECT_NE(refusal(with("num_hidden_layers", 2.5)).find("num_hidden_layers"), std::string::npos);
  EXPECT_NE(refusal(with("vocab_size", 18446744073709551615U)).find("vocab_size"), std::string::npos);
  EXPECT_NE(refusal(with("num_key_value_heads", 3)).find("num_key_value_heads"), std::string::npos);
  EXPECT_NE(refusal(with("rms_norm_eps", "small")).find("rms_norm_eps"), std::string::npos);
  EXPECT_EQ(refusal(with("rms_norm_eps", 1e308)), "'rms_norm_eps' must be at most 1, not 1e+308");
  EXPECT_EQ(refusal(with("initializer_range", -1)), "'initializer_range' must be 0 or more, not -1");
  EXPECT_NE(refusal(with("rope_scaling", {{"rope_type", "dynamic"}})).find("dynamic"), std::string::npos);
  EXPECT_NE(refusal(with("head_dim", 7)).find("head_dim"), std::string::npos);
  EXPECT_NE(refusal(with("attention_dropout", 0.1)).find("attention_dropout"), std::string::npos);
  EXPECT_EQ(refusal(with("attention_dropout", 0.0)), "accepted");
  // transformers' classes of these families rotate whole heads, whatever config.json sets.
  EXPECT_EQ(refusal(with("partial_rotary_factor", 0.5)),
            "'partial_rotary_factor': 0.5 is not supported for this model family");
  EXPECT_EQ(refusal(with("rope_parameters", {{"rope_theta", 1e4}, {"partial_rotary_factor", 0.5}})),
            "'partial_rotary_factor': 0.5 is not supported for this model family");
  json root = small_llama();
  root.erase("hidden_size");
  EXPECT_NE(refusal(root).find("hidden_size"), std::string::npos);
  EXPECT_THROW(read_model_config("[1, 2", "config.json", builtin_families()), Error);
}

TEST(ModelConfig, AnUnusedRotaryBaseIsNoted) {
  json root = small_llama();
  const auto notes = [&root] {
    std::vector<std::string> said;
    read_model_config(root.dump(), "config.json", builtin_families(), &said);
    return said;
  };
  EXPECT_TRUE(notes().empty());
  root["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 10000}};
  EXPECT_TRUE(notes().empty());
  root["rope_parameters"]["rope_theta"] = 500000.0;
  EXPECT_EQ(
      notes(),
      (std::vector<std::string>{
          "config.json: rope_theta 10000.0 is ignored: rope_parameters in the same file has 500000.0"}));
}

TEST(ModelConfig, IfTwoRotationsDifferRopeScalingIsUsedAndNoted) {
  json root = small_llama();
  ModelConfig read;
  const auto notes = [&] {
    std::vector<std::string> said;
    read = read_model_config(root.dump(), "config.json", builtin_families(), &said);
    return said;
  };
  root["rope_scaling"] = {{"type", "linear"}, {"factor", 4.0}};
  root["rope_parameters"] = {{"rope_type", "linear"}, {"factor", 4.0}, {"rope_theta", 10000.0}};
  EXPECT_TRUE(notes().empty());  // both keys have the same meaning
  root["rope_parameters"]["factor"] = 2.0;
  EXPECT_EQ(notes(),
            (std::vector<std::string>{"config.json: factor of rope_parameters is ignored: "
                                      "rope_scaling in the same file differs and takes precedence"}));
  EXPECT_EQ(read.rope_scaling.factor, 4);  // as in transformers 5.24
  root["rope_parameters"] = {{"rope_theta", 10000.0}};
  EXPECT_EQ(notes(),
            (std::vector<std::string>{"config.json: rope_type of rope_parameters is ignored: "
                                      "rope_scaling in the same file differs and takes precedence"}));
  EXPECT_EQ(read.rope_scaling.kind, RopeScaling::Kind::kLinear);
  // transformers refuses this rope_scaling, too.
  root["rope_scaling"] = {{"rope_type", "llama3"}, {"factor", 4.0}, {"low_freq_factor", 1.0}};
  EXPECT_THROW(notes(), Error);
  root["rope_scaling"] = json::object();
  EXPECT_TRUE(notes().empty());
  EXPECT_EQ(read.rope_scaling.kind, RopeScaling::Kind::kNone);
}

TEST(ModelConfig, BrokenTextIsRefusedWithItsLocation) {
  std::string text = small_llama().dump();
  text.insert(1, "\"hidden_size\": 32,\n");
  for (const auto& [broken, location] : {std::pair<std::string, std::string>{text, "config.json:2:1"},
                                         {"{\n  \"vocab_size\": NaN}", "config.json:2:17"}}) {
    try {
      read_model_config(broken, "config.json", builtin_families());
      ADD_FAILURE() << broken;
    } catch (const Error& error) {
      EXPECT_EQ(error.location(), location) << error.what();
      EXPECT_NE(error.hint(), "") << error.what();
    }
  }
}

// Errors about a key have its line and column, unless the key occurs in several places.
TEST(ModelConfig, ErrorsAboutKeysHaveALocation) {
  const FamilyRegistry families = builtin_families();
  const auto place = [&](const std::string& text) {
    try {
      read_model_config(text, "config.json", families);
    } catch (const Error& error) {
      return error.location() + ": " + error.what();
    }
    return std::string("accepted");
  };
  const std::string rest =
      "  \"num_attention_heads\": 4, \"intermediate_size\": 8, \"num_hidden_layers\": 2, \"vocab_size\": 16";
  const std::string hidden = "  \"hidden_size\" : \"64\"";
  EXPECT_THAT(place("{\"model_type\": \"llama\",\n" + rest + ",\n" + hidden + "}"),
              testing::StartsWith("config.json:3:3: 'hidden_size' must be"));
  EXPECT_THAT(place("{\"model_type\": \"llama\",\n" + rest + "}"),
              testing::StartsWith("config.json: 'hidden_size'"));
  // In a multimodal model, the place is that of the language model's key.
  EXPECT_THAT(place("{\"vision_config\": {\n" + hidden +
                    "},\n\"text_config\": {\"model_type\": \"llama\",\n" + rest + ",\n" + hidden + "}}"),
              testing::StartsWith("config.json:5:3: 'hidden_size' must be"));
  EXPECT_THAT(place("{\"model_type\": \"llama\",\n" + rest + ",\n" + hidden + ",\n\"x\": {" + hidden + "}}"),
              testing::StartsWith("config.json: 'hidden_size' must be"));
}

// Reads the configuration that OpenAI publishes.
TEST(ModelConfig, ReadsGptOssAsPublished) {
  const json root{{"model_type", "gpt_oss"},
                  {"attention_bias", true},
                  {"attention_dropout", 0.0},
                  {"experts_per_token", 4},
                  {"head_dim", 64},
                  {"hidden_act", "silu"},
                  {"hidden_size", 2880},
                  {"initial_context_length", 4096},
                  {"intermediate_size", 2880},
                  {"max_position_embeddings", 131072},
                  {"num_attention_heads", 64},
                  {"num_experts_per_tok", 4},
                  {"num_hidden_layers", 24},
                  {"num_key_value_heads", 8},
                  {"num_local_experts", 32},
                  {"rms_norm_eps", 1e-05},
                  {"rope_scaling",
                   {{"beta_fast", 32.0},
                    {"beta_slow", 1.0},
                    {"factor", 32.0},
                    {"original_max_position_embeddings", 4096},
                    {"rope_type", "yarn"},
                    {"truncate", false}}},
                  {"rope_theta", 150000},
                  {"router_aux_loss_coef", 0.9},
                  {"sliding_window", 128},
                  {"swiglu_limit", 7.0},
                  {"tie_word_embeddings", false},
                  {"vocab_size", 201088}};
  const ModelConfig c = read(root);
  EXPECT_EQ(c.local_layers().size(), 12U);
  EXPECT_TRUE(c.spec(0).local);
  EXPECT_FALSE(c.rope_scaling.truncate);
  engine::ParameterStore store;
  const LanguageModel model(c, builtin_families(), store);
  EXPECT_EQ(store.elements(), 20914757184);  // gpt-oss 20B: 20.91B in its model card
}

TEST(ModelConfig, LossesOfRoutersAreReadOnlyForMixtures) {
  json dense = small_llama(), mixture = golden("mixtral");
  for (const json& coefficient : {json("auto"), json(-1)}) {
    dense["router_aux_loss_coef"] = mixture["router_aux_loss_coef"] = coefficient;
    EXPECT_EQ(read(dense).moe.training.balance_loss, 0);
    EXPECT_THROW(read(mixture), Error);
  }
}

// A published Llama 4 also processes images. Its language model is described in text_config.
TEST(ModelConfig, ReadsTheTextPartOfLlama4) {
  json text = golden("llama4");
  const std::string expected = write_model_config(read(text), DType::kF32, builtin_families());
  text["attn_temperature_tuning"] = 4;  // Scout's spelling of true
  text["no_rope_layers"] = json::array({1, 0});
  const json root{{"model_type", "llama4"}, {"vision_config", {{"hidden_size", 8}}}, {"text_config", text}};
  EXPECT_EQ(write_model_config(read(root), DType::kF32, builtin_families()), expected);
  json scout = text;
  scout["num_hidden_layers"] = 48;
  scout["interleave_moe_layer_step"] = 1;
  scout["no_rope_layers"] = json::array();
  for (const char* key : {"moe_layers", "layer_types"}) scout.erase(key);
  const ModelConfig c = read(scout);
  EXPECT_TRUE(c.dense_layers().empty());
  EXPECT_EQ(c.layers_without_rope().size(), 12U);
  EXPECT_FALSE(c.spec(3).rope);
  EXPECT_TRUE(c.spec(0).local);
  EXPECT_FALSE(c.spec(3).local);
}

// Published parameter counts, which follow from the architecture.
TEST(ModelConfig, CountsParameters) {
  auto count = [](std::int64_t layers, std::int64_t hidden, std::int64_t ffn, std::int64_t heads,
                  std::int64_t kv, std::int64_t vocab, bool tied) {
    ModelConfig c;
    c.layers = layers;
    c.hidden = hidden;
    c.ffn = ffn;
    c.heads = heads;
    c.kv_heads = kv;
    c.head_dim = hidden / heads;
    c.vocab = vocab;
    c.tied_embeddings = tied;
    engine::ParameterStore store;
    const LanguageModel model(c, builtin_families(), store);
    return store.elements();
  };
  EXPECT_EQ(count(32, 4096, 11008, 32, 32, 32000, false), 6738415616);       // Llama 2 7B
  EXPECT_EQ(count(32, 4096, 14336, 32, 8, 128256, false), 8030261248);       // Llama 3 8B
  EXPECT_EQ(count(16, 2048, 8192, 32, 8, 128256, true), 1235814400);         // Llama 3.2 1B
  EXPECT_EQ(count(126, 16384, 53248, 128, 8, 128256, false), 405853388800);  // Llama 3.1 405B
}

TEST(ModelConfig, CountsFlopsAsMegatronDoes) {
  ModelConfig c;
  c.layers = 32;
  c.hidden = 4096;
  c.ffn = 14336;
  c.heads = 32;
  c.kv_heads = 8;
  c.head_dim = 128;
  c.vocab = 128256;
  // Llama 3 8B at a sequence length of 8192: 51.47 GFLOP per token, with half of the attention because it is
  // causal.
  EXPECT_NEAR(training_flops(c, 1, 8192) / 8192 / 1e9, 51.47, 0.01);
}

TEST(RopeTable, StretchesOnlyLongWavelengths) {
  json root = small_llama();
  root["rope_theta"] = 500000.0;
  root["head_dim"] = 64;
  const ModelConfig plain = read(root);
  root["rope_scaling"] = {{"rope_type", "llama3"},
                          {"factor", 8.0},
                          {"low_freq_factor", 1.0},
                          {"high_freq_factor", 4.0},
                          {"original_max_position_embeddings", 8192}};
  const ModelConfig scaled = read(root);
  const std::vector<float> a = make_rope_table(plain, 2), b = make_rope_table(scaled, 2);
  const float* sin_a = &a[64 + 32];  // sines of position 1
  const float* sin_b = &b[64 + 32];
  EXPECT_FLOAT_EQ(sin_a[0], sin_b[0]);             // the fastest frequency is kept
  EXPECT_NEAR(sin_b[31] * 8.0F, sin_a[31], 1e-7);  // the slowest is divided by the factor: sin x = x here
}

TEST(RopeTable, EqualLimitsGiveNoRamp) {
  json root = small_llama();
  root["rope_theta"] = 500000.0;
  root["head_dim"] = 64;
  const ModelConfig plain = read(root);
  root["rope_scaling"] = {{"rope_type", "llama3"},
                          {"factor", 16.0},
                          {"low_freq_factor", 1.0},
                          {"high_freq_factor", 1.0},
                          {"original_max_position_embeddings", 8192}};
  const std::vector<float> a = make_rope_table(plain, 2), b = make_rope_table(read(root), 2);
  int kept = 0;
  for (int i = 64 + 32; i < 128; ++i) {  // sines of position 1
    if (a[i] == b[i]) {
      ++kept;
    } else {
      EXPECT_NEAR(b[i] * 16.0F, a[i], 1e-7);
    }
  }
  EXPECT_EQ(kept, 18);  // the wavelength 2 pi theta^(i / 32) is below 8192 for 18 values of i
}

TEST(ModelConfig, RefusesSizesWhoseProductsOverflow) {
  json root = small_llama();
  root["hidden_size"] = root["num_attention_heads"] = root["num_key_value_heads"] = root["head_dim"] = 1
                                                                                                       << 26;
  try {
    read(root);
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    EXPECT_NE(std::string(error.what()).find("parameters"), std::string::npos) << error.what();
  }
}

// The sizes of experts, shared experts and latents have limits, because these sizes are multiplied like heads
// and layers.
TEST(ModelConfig, RefusesSizesBeyondAnyModel) {
  const auto with = [](const std::string& family, const json& changes) {
    json root = golden(family);
    root.update(changes);
    return refusal(root);
  };
  const std::int64_t maximum = 1 << 26;
  EXPECT_NE(
      with("deepseek_v2", {{"hidden_size", maximum}, {"moe_intermediate_size", maximum}}).find("parameters"),
      std::string::npos);
  EXPECT_NE(with("deepseek_v2", {{"hidden_size", maximum}, {"q_lora_rank", maximum}}).find("parameters"),
            std::string::npos);
  EXPECT_NE(with("deepseek_v2", {{"hidden_size", maximum}, {"kv_lora_rank", maximum}}).find("parameters"),
            std::string::npos);
  EXPECT_NE(with("llama4", {{"hidden_size", maximum}, {"intermediate_size", maximum}}).find("parameters"),
            std::string::npos);
  EXPECT_NE(with("deepseek_v3", {{"num_attention_heads", maximum},
                                 {"num_key_value_heads", maximum},
                                 {"qk_nope_head_dim", maximum}})
                .find("width"),
            std::string::npos);
  EXPECT_EQ(with("deepseek_v2",
                 {{"n_shared_experts", 1024}, {"moe_intermediate_size", maximum}, {"hidden_size", 2}}),
            "the shared experts are 68719476736 wide");
  // Each expert is an object, so the number of experts is limited even if experts are small.
  EXPECT_EQ(with("qwen3_moe", {{"num_hidden_layers", 1000},
                               {"num_experts", 1024},
                               {"num_local_experts", 1024},
                               {"mlp_only_layers", nullptr}}),
            "these layers have 1024000 experts in total, more than the limit of 131072");
  EXPECT_NE(with("llama", {{"num_hidden_layers", 100000}}).find("num_hidden_layers"), std::string::npos);
}

// The kernels' limits on chosen experts and on groups apply to every family.
TEST(ModelConfig, RefusesImpossibleRouting) {
  for (const char* family : {"mixtral", "qwen3_moe", "deepseek_v2", "deepseek_v3", "gpt_oss", "llama4"}) {
    json root = golden(family);
    const bool deepseek = root.contains("n_routed_experts");
    for (const char* key : {"num_experts", "num_local_experts", "n_routed_experts"}) {
      if (root.contains(key)) root[key] = 128;
    }
    if (deepseek) root["n_group"] = root["topk_group"] = 1;
    root["num_experts_per_tok"] = 64;
    EXPECT_EQ(refusal(root), "accepted") << family;
    root["num_experts_per_tok"] = 65;
    EXPECT_EQ(refusal(root), "'num_experts_per_tok' must be an integer from 1 to 64, not 65") << family;
    if (!deepseek) continue;
    root["num_experts_per_tok"] = 2;
    root["topk_method"] = std::string(family) == "deepseek_v2" ? "group_limited_greedy" : "noaux_tc";
    root["n_group"] = root["topk_group"] = 128;
    EXPECT_EQ(refusal(root), "'n_group' must be an integer from 1 to 64, not 128") << family;
  }
  // Limits also apply to a family that a user adds without checks of its keys.
  Family careless = builtin_families().find("llama");
  careless.model_type = "careless";
  careless.read = [](const json&, ModelConfig& c) {
    c.moe.experts = 128;
    c.moe.router.top_k = 100;
  };
  FamilyRegistry families;
  families.add(careless);
  json root = small_llama();
  root["model_type"] = "careless";
  EXPECT_THROW(read_model_config(root.dump(), "config.json", families), Error);
}

// transformers_defaults.json has transformers' default of each key that a config.json with only sizes leaves
// out.
TEST(ModelConfig, AbsentKeysHaveTransformersDefaults) {
  const json families =
      json::parse(read_file(Path(PRIMUS_SOURCE_DIR) / "tests/lm/model/transformers_defaults.json"));
  // transformers has no class for primus_gpt, kimi_k3, and flash-linear-attention's gated_deltanet and kda.
  EXPECT_EQ(families.size() + 4, builtin_families().all().size());
  for (const auto& [family, config] : families.items()) {
    json sizes = config.at("sizes");
    sizes["model_type"] = family;
    json full = config.at("full");
    // The balance loss belongs to training: a model is trained with it only if its file has the key.
    full.erase("router_aux_loss_coef");
    EXPECT_EQ(write_model_config(read(sizes), DType::kF32, builtin_families()),
              write_model_config(read(full), DType::kF32, builtin_families()))
        << family;
  }
  json v2 = families.at("deepseek_v2").at("full");
  v2.erase("num_experts_per_tok");
  EXPECT_EQ(refusal(v2), "'num_experts_per_tok' is missing");
}

// google/gemma-3-4b-pt leaves out every key that equals the default of transformers' class.
TEST(ModelConfig, Gemma3AcceptsTheFormsThatTransformersAccepts) {
  const json root{{"model_type", "gemma3"},
                  {"vision_config", {{"hidden_size", 1152}}},
                  {"text_config",
                   {{"hidden_size", 2560},
                    {"intermediate_size", 10240},
                    {"model_type", "gemma3_text"},
                    {"num_hidden_layers", 34},
                    {"rope_scaling", {{"factor", 8.0}, {"rope_type", "linear"}}},
                    {"sliding_window", 1024}}}};
  const ModelConfig c = read(root);
  EXPECT_EQ(c.heads, 8);
  EXPECT_EQ(c.kv_heads, 4);
  EXPECT_EQ(c.head_dim, 256);
  EXPECT_EQ(c.vocab, 262208);
  EXPECT_TRUE(c.tied_embeddings && c.centred_norms && c.gelu_gates);
  EXPECT_EQ(c.embedding_factor().factor, std::sqrt(2560.0));
  EXPECT_EQ(c.attention.window, 1024);
  EXPECT_EQ(c.local_layers().size(), 29U);
  EXPECT_FALSE(c.spec(5).local);
  EXPECT_EQ(c.rope_theta, 1e6);
  EXPECT_EQ(c.attention.local_theta, 1e4);
  EXPECT_EQ(c.rope_scaling.kind, RopeScaling::Kind::kLinear);
  EXPECT_EQ(c.rope_scaling.factor, 8);
}

// Reads the RoPE keys of transformers 4 and 5. In transformers 5, rope_scaling overrides the keys that it
// replaces.
TEST(ModelConfig, Gemma3RotatesByKindOfLayer) {
  json root = golden("gemma3");
  const ModelConfig c = read(root);
  EXPECT_EQ(c.rope_theta, 10000);
  EXPECT_EQ(c.attention.local_theta, 100);
  json older = root;
  older.erase("rope_parameters");
  older["rope_theta"] = 10000.0;
  older["rope_local_base_freq"] = 100.0;
  older["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 4.0}};
  EXPECT_EQ(read(older), c);
  root["rope_scaling"] = {{"factor", 2.0}};
  EXPECT_EQ(read(root).rope_scaling.factor, 2);
  root.erase("rope_scaling");
  // If all layers rotate with one base, the model has no second base.
  root["rope_parameters"]["full_attention"] = {{"rope_type", "default"}, {"rope_theta", 100.0}};
  EXPECT_EQ(read(root).attention.local_theta, 0);
  root["rope_parameters"]["sliding_attention"]["rope_type"] = "linear";
  EXPECT_EQ(refusal(root), "rope_type 'linear' of 'rope_parameters.sliding_attention' is not supported");
  root["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 100.0}};
  EXPECT_EQ(refusal(root),
            "'rope_parameters' must have an object for each layer type: full_attention and "
            "sliding_attention");
}

TEST(ModelConfig, Ministral3HasYarnAndAScaleOfQueries) {
  json root = golden("ministral3");
  EXPECT_EQ(read(root).attention.attn_scale, 0.3);
  EXPECT_EQ(read(root).attention.floor_scale, 8);
  root["rope_parameters"].erase("llama_4_scaling_beta");
  EXPECT_EQ(refusal(root), "'llama_4_scaling_beta' must be a number of 0 or more");
  root["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 1e4}, {"llama_4_scaling_beta", 0.1}};
  EXPECT_EQ(refusal(root), "'rope_type': this model family supports only yarn");
}

TEST(ModelConfig, LongropeHasAFactorPerFrequency) {
  json root = small_llama();
  root.erase("head_dim");
  const std::int64_t frequencies = read(root).head_dim / 2;
  root["rope_scaling"] = {{"rope_type", "longrope"},
                          {"original_max_position_embeddings", 64},
                          {"short_factor", std::vector<double>(frequencies, 1.0)},
                          {"long_factor", std::vector<double>(frequencies, 3.5)}};
  root["max_position_embeddings"] = 256;
  const ModelConfig c = read(root);
  EXPECT_EQ(c.rope_scaling.factor, 4);  // from the lengths
  EXPECT_EQ(c.rope_scaling.long_factor, std::vector<double>(frequencies, 3.5));
  EXPECT_EQ(read(json::parse(write_model_config(c, DType::kF32, builtin_families()))), c);
  // The length of a table selects the list of factors. Sines include the attention factor.
  const std::vector<float> near = make_rope_table(c, 64), far = make_rope_table(c, 65);
  const double amplitude = std::sqrt(1 + std::log(4.0) / std::log(64.0));
  const std::size_t sine_of_one =
      2 * static_cast<std::size_t>(frequencies) + static_cast<std::size_t>(frequencies);
  EXPECT_NEAR(near[sine_of_one], amplitude * std::sin(1.0), 1e-6);
  EXPECT_NEAR(far[sine_of_one], amplitude * std::sin(1 / 3.5), 1e-6);
  root["rope_scaling"]["long_factor"].push_back(1.0);
  EXPECT_EQ(refusal(root), fmt::format("'long_factor' has {} numbers, but heads use {} rotary frequencies",
                                       frequencies + 1, frequencies));
  root["rope_scaling"]["long_factor"] = {0};
  EXPECT_EQ(refusal(root), "'long_factor' must have positive numbers");
}

TEST(ModelConfig, RopeScalingOverridesRopeParameters) {
  json root = small_llama();
  root["rope_parameters"] = {{"rope_type", "linear"}, {"factor", 4.0}, {"rope_theta", 7.0}};
  EXPECT_EQ(read(root).rope_scaling.factor, 4);
  EXPECT_EQ(read(root).rope_theta, 7);
  root["rope_scaling"] = json::object();
  EXPECT_EQ(read(root).rope_scaling.factor, 4);
  root["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 2.0}};
  EXPECT_EQ(read(root).rope_scaling.factor, 2);
  EXPECT_EQ(read(root).rope_theta, 10000);
}

TEST(ModelConfig, GreedyChoiceIgnoresGroups) {
  json root = golden("deepseek_v2");
  root["topk_method"] = "greedy";
  root["n_group"] = 3;
  root["topk_group"] = 1;
  root["num_experts_per_tok"] = 3;
  EXPECT_EQ(read(root).moe.router.groups, 1);
  EXPECT_EQ(read(root).moe.router.top_k, 3);
  root["topk_method"] = "group_limited_greedy";
  root.erase("n_group");
  EXPECT_EQ(refusal(root), "'n_group' is missing");
}

// LFM2's config.json has the feed-forward width of a model without gates. It lists either the kinds of layers
// or the layers with attention.
TEST(ModelConfig, ShortConvolutionsAndTheirFeedForwards) {
  json root = golden("lfm2");
  root["layer_types"] = nullptr;
  root["num_hidden_layers"] = 4;
  EXPECT_EQ(read(root).layers_keeping(Keeps::kInputs), std::vector<std::int64_t>{});
  root["full_attn_idxs"] = {2, 0};
  EXPECT_EQ(read(root).layers_keeping(Keeps::kInputs), (std::vector<std::int64_t>{1, 3}));
  root["layer_types"] = {"conv", "conv", "conv", "full_attention"};
  EXPECT_EQ(read(root).layers_keeping(Keeps::kInputs), (std::vector<std::int64_t>{0, 1, 2}));
  for (const auto& [wide, multiple, factor, width] : {std::tuple{6656, 256, 1.0, 4608},
                                                      {12288, 256, 1.0, 8192},
                                                      {160, 16, 1.0, 112},
                                                      {160, 16, 1.5, 160}}) {
    root["block_ff_dim"] = wide, root["block_multiple_of"] = multiple;
    root["block_ffn_dim_multiplier"] = factor;
    EXPECT_EQ(read(root).ffn, width);
  }
  root["block_auto_adjust_ff_dim"] = false;
  EXPECT_EQ(read(root).ffn, 160);
  root["conv_L_cache"] = 17;
  EXPECT_NE(refusal(root).find("conv_L_cache"), std::string::npos) << refusal(root);
  root["conv_L_cache"] = 16;
  root["layer_types"] = {"conv", "conv", "mamba", "full_attention"};
  EXPECT_EQ(refusal(root), "'layer_types': \"mamba\" is not supported for this model family");
  // The family primus_gpt allows convolutions together with windows.
  json own = small_llama();
  own["model_type"] = "primus_gpt";
  own["num_hidden_layers"] = 3;
  own["sliding_window"] = 8;
  own["layer_types"] = {"conv", "sliding_attention", "full_attention"};
  const ModelConfig both = read(own);
  EXPECT_EQ(both.layers_keeping(Keeps::kInputs), std::vector<std::int64_t>{0});
  EXPECT_EQ(both.local_layers(), std::vector<std::int64_t>{1});
  EXPECT_EQ(read(json::parse(write_model_config(both, DType::kF32, builtin_families()))), both);
  own["sliding_window"] = 0;
  EXPECT_EQ(refusal(own), "'layer_types': \"sliding_attention\" is not supported for this model family");
  json mixture = golden("lfm2_moe");
  mixture.erase("layer_types");
  EXPECT_EQ(refusal(mixture), "'layer_types' is missing");
}

// Qwen3-Next's config.json has a list of layer kinds or an interval of attention layers. By default, a
// quarter of each head rotates.
TEST(ModelConfig, GatedDeltaNetworks) {
  json root = golden("qwen3_next");
  root["num_hidden_layers"] = 8;
  root["layer_types"] = nullptr;
  EXPECT_EQ(read(root).layers_keeping(Keeps::kState), (std::vector<std::int64_t>{0, 1, 2, 4, 5, 6}));
  root["full_attention_interval"] = 2;
  EXPECT_EQ(read(root).layers_keeping(Keeps::kState), (std::vector<std::int64_t>{0, 2, 4, 6}));
  root.erase("rope_parameters");
  EXPECT_EQ(read(root).rotary_fraction, 0.25);
  root["partial_rotary_factor"] = 1;
  const ModelConfig whole = read(root);
  EXPECT_EQ(whole.rotary_fraction, 1);
  EXPECT_EQ(read(json::parse(write_model_config(whole, DType::kF32, builtin_families()))), whole);
  EXPECT_TRUE(whole.centred_norms && whole.attention.output_gate && whole.moe.shared_gate);
  const std::pair<const char*, json> refused[] = {{"linear_num_value_heads", 3},
                                                  {"linear_key_head_dim", 257},
                                                  {"linear_conv_kernel_dim", 17},
                                                  {"attn_output_gate", false},
                                                  {"num_experts", 0}};
  for (const auto& [key, value] : refused) {
    json changed = root;
    changed[key] = value;
    EXPECT_NE(refusal(changed).find(key), std::string::npos) << key << ": " << refusal(changed);
  }
  root["layer_types"] =
      json::array({"linear_attention", "conv", "linear_attention", "full_attention", "linear_attention",
                   "linear_attention", "linear_attention", "full_attention"});
  EXPECT_EQ(refusal(root), "'layer_types': \"conv\" is not supported for this model family");
  // Models that also process images have the language model in a separate part.
  EXPECT_EQ(read({{"model_type", "qwen3_5_moe"}, {"text_config", golden("qwen3_5_moe")}}),
            read(golden("qwen3_5_moe")));
}

TEST(ModelConfig, RefusesOptionsThatAFamilyDoesNotHave) {
  const std::tuple<const char*, const char*, json> refused[] = {
      {"llama", "attention_bias", true},
      {"llama", "mlp_bias", true},
      {"llama", "hidden_act", "gelu"},
      {"qwen2", "hidden_act", "gelu"},
      {"qwen3", "attention_bias", true},
      {"qwen3", "hidden_act", "gelu"},
      {"mixtral", "sliding_window", 4096},
      {"mixtral", "hidden_act", "gelu"},
      {"mixtral", "router_jitter_noise", 0.1},
      {"qwen3_moe", "use_sliding_window", true},
      {"qwen3_moe", "attention_bias", true},
      {"qwen3_moe", "hidden_act", "gelu"},
      {"deepseek_v2", "attention_bias", true},
      {"deepseek_v2", "mlp_bias", true},
      {"deepseek_v2", "hidden_act", "gelu"},
      {"deepseek_v2", "moe_layer_freq", 2},
      {"deepseek_v2", "scoring_func", "sigmoid"},
      {"deepseek_v2", "norm_topk_prob", true},
      {"deepseek_v2", "topk_method", "noaux_tc"},
      {"deepseek_v3", "rope_interleave", false},
      {"deepseek_v3", "scoring_func", "softmax"},
      {"deepseek_v3", "topk_method", "greedy"},
      {"deepseek_v3", "attention_bias", true},
      {"deepseek_v32", "scoring_func", "softmax"},
      {"deepseek_v32", "indexer_rope_interleave", true},
      {"glm_moe_dsa", "indexer_rope_interleave", false},
      {"glm_moe_dsa", "index_topk_freq", 4},
      {"gpt_oss", "attention_bias", false},
      {"gpt_oss", "hidden_act", "gelu"},
      {"gpt_oss", "swiglu_limit", 5.0},
      {"gpt_oss", "swiglu_alpha", 1.0},
      {"llama4", "attention_bias", true},
      {"llama4", "hidden_act", "gelu"},
      {"llama4", "router_jitter_noise", 0.1}};
  for (const auto& [family, key, value] : refused) {
    json root = golden(family);
    root[key] = value;
    EXPECT_EQ(refusal(root).find("'" + std::string(key) + "'"), 0U) << family << " " << key << refusal(root);
  }
}

TEST(ModelConfig, WindowsOfUpperLayers) {
  json root = golden("qwen2");
  root["num_hidden_layers"] = 4;
  root.erase("layer_types");
  root["use_sliding_window"] = true;
  root["sliding_window"] = 8;
  root["max_window_layers"] = 2;
  EXPECT_EQ(read(root).local_layers(), (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(read(root).attention.window, 8);
  for (const auto& [key, value] : {std::pair<const char*, json>{"use_sliding_window", "true"},
                                   {"use_sliding_window", 1},
                                   {"sliding_window", -1},
                                   {"max_window_layers", 1.5}}) {
    json broken = root;
    broken[key] = value;
    EXPECT_EQ(refusal(broken).find("'" + std::string(key) + "'"), 0U) << refusal(broken);
  }
}

TEST(ModelConfig, ScaleOfTheChosenExperts) {
  json root = golden("deepseek_v3");
  root["routed_scaling_factor"] = 2.827;  // not exact as a float, and must stay a double
  const json written = json::parse(write_model_config(read(root), DType::kF32, builtin_families()));
  EXPECT_EQ(written.at("routed_scaling_factor"), 2.827);
  for (const double broken : {1e300, 0.0, -1.0}) {
    root["routed_scaling_factor"] = broken;
    EXPECT_EQ(refusal(root).find("'routed_scaling_factor'"), 0U) << broken;
  }
}

TEST(ModelConfig, GroupsScoredByTwoExpertsHaveTwo) {
  json root = golden("deepseek_v3");
  root["n_group"] = root["topk_group"] = root["n_routed_experts"];
  EXPECT_EQ(refusal(root),
            "'n_group' leaves groups of one expert, but a group's score is the sum of its two best");
}

TEST(ModelConfig, FixedSettingsOfAFamilyOutsideTheLibraryAreChecked) {
  Family own = builtin_families().find("llama");
  own.model_type = "own";
  own.read = [](const json& root, ModelConfig& c) {
    c.attention.window = root.at("window").get<std::int64_t>();
  };
  FamilyRegistry families;
  families.add(own);
  json root = small_llama();
  root["model_type"] = "own";
  for (const json& window : {json(), json("wide")}) {
    root["window"] = window;
    EXPECT_THROW(read_model_config(root.dump(), "config.json", families), Error);
  }
}

TEST(ModelConfig, KimiK2IsADeepSeekV3) {
  json root = golden("deepseek_v3");
  const std::string expected = write_model_config(read(root), DType::kF32, builtin_families());
  root["model_type"] = "kimi_k2";
  EXPECT_EQ(write_model_config(read(root), DType::kF32, builtin_families()), expected);
}

TEST(ModelConfig, AFamilyOutsideTheLibraryMayRotatePartially) {
  Family own = builtin_families().find("llama");
  own.model_type = "own";
  own.partial_rotary = true;
  FamilyRegistry families;
  families.add(own);
  json root = small_llama();
  root["model_type"] = "own";
  root["partial_rotary_factor"] = 0.5;
  EXPECT_EQ(read_model_config(root.dump(), "config.json", families).rotary_dim(), 8);
}

TEST(RopeTable, YarnScalesTheAmplitude) {
  json root = small_llama();
  root["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 40.0}, {"original_max_position_embeddings", 32}};
  const std::vector<float> table = make_rope_table(read(root), 1);
  EXPECT_NEAR(table[0], 0.1 * std::log(40.0) + 1.0, 1e-6);  // cos 0 times the attention factor
}

}  // namespace
}  // namespace primus
