// Tests of loading an experiment from files and arguments.
#include "config/experiment.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "base/system/user_name.h"
#include "config/lora_settings.h"
#include "config/trainer_config.h"
#include "support.h"

namespace primus::config {
namespace {

TEST(Experiment, HasTypedFieldsAndDefaults) {
  const Experiment e = load_text(
      "work_group: amd\nuser_name: 7\nexp_name: 2024\nworkspace: ./output\n"
      "env:\n  OMP_NUM_THREADS: 2\n  FLAG: true\n  TEXT: a b\n"
      "modules:\n  pre_trainer:\n    overrides:\n      num_layers: 2\n      hidden_size: 96\n"
      "      num_attention_heads: 4\n      vocab_size: 1e3\n      mock_data: 1\n      use_rope_scaling: "
      "true\n");
  EXPECT_EQ(e.work_group, "amd");
  EXPECT_EQ(e.user_name, "7");
  EXPECT_EQ(e.exp_name, "2024");
  EXPECT_EQ(e.output_dir(), "./output/amd/7/2024");
  EXPECT_EQ(e.framework, "native");
  EXPECT_EQ(e.module_name, "pre_trainer");
  EXPECT_EQ(e.env.at("OMP_NUM_THREADS"), "2");
  EXPECT_EQ(e.env.at("FLAG"), "true");
  EXPECT_EQ(e.env.at("TEXT"), "a b");
  EXPECT_TRUE(e.ignored.empty());
  EXPECT_TRUE(e.warnings.empty());

  const TrainerConfig& c = e.trainer;
  EXPECT_EQ(c.vocab_size, 1000);
  EXPECT_TRUE(c.mock_data);
  EXPECT_EQ(c.lr_warmup_iters, 40);
  EXPECT_FALSE(c.split);
  EXPECT_EQ(c.num_microbatches(), 8);
  EXPECT_EQ(c.padded_vocab_size(1000), 1024);
  // The following values are derived from other keys.
  EXPECT_EQ(c.ffn_hidden_size, 256);
  EXPECT_EQ(c.kv_channels, 24);
  EXPECT_EQ(c.num_query_groups, 4);
  EXPECT_EQ(c.lr_decay_iters, 1000);
  EXPECT_EQ(c.max_position_embeddings, 1024);
  EXPECT_EQ(c.rope_scaling_type, "llama3");
  EXPECT_EQ(c.original_max_position_embeddings, 8192);
  EXPECT_EQ(c.start_weight_decay, 0.0);
  EXPECT_EQ(e.provenance_of("kv_channels").describe(), "derived");
  EXPECT_EQ(e.provenance_of("adam_beta1").describe(), "default");
  EXPECT_EQ(e.provenance_of("num_layers").describe(), "exp.yaml:12:19");
}

TEST(Experiment, TomlAndYamlAreEquivalent) {
  const std::string yaml = experiment_text(
      "      lr: 1e-5\n      bf16: false\n      data_path: [a, b]\n      recompute_granularity: selective\n"
      "      save: null\n      torch_compile: {enable: true}\n");
  const std::string toml =
      "work_group = \"g\"\nuser_name = \"u\"\nexp_name = \"${NAME:e}\"\nworkspace = \"./output\"\n"
      "[modules.pre_trainer]\nframework = \"native\"\n[modules.pre_trainer.overrides]\nnum_layers = 2\n"
      "hidden_size = 64\nnum_attention_heads = 4\nvocab_size = 256\nmock_data = true\nlr = 1e-5\nbf16 = "
      "false\n"
      "data_path = [\"a\", \"b\"]\nrecompute_granularity = \"selective\"\nsave = \"null\"\n"
      "torch_compile = {enable = true}\n";
  const Experiment a = load_text(yaml), b = load_text(toml, {}, {}, "exp.toml");
  EXPECT_EQ(a.trainer, b.trainer);
  EXPECT_EQ(a.ignored, b.ignored);
  EXPECT_EQ(a.exp_name, b.exp_name);
  EXPECT_EQ(to_yaml(a), to_yaml(b));
  EXPECT_EQ(b.provenance_of("lr").describe(), "exp.toml:13:6");
}

class Precedence : public testing::Test {
 protected:
  Precedence() {
    write_file(folder_, "models/m.yaml",
               "num_layers: 2\nhidden_size: 64\nnum_attention_heads: 4\nvocab_size: 256\n"
               "seed: 1\nlr: 1\nclip_grad: 1\nadam_beta1: 0.1\n");
    write_file(folder_, "modules/t.yaml", "mock_data: true\nlr: 2\nclip_grad: 2\nadam_beta1: 0.2\n");
  }
  Experiment load(const std::vector<std::string>& arguments) {
    return load_experiment_text(
        "work_group: g\nuser_name: u\nexp_name: e\nworkspace: w\n"
        "modules:\n  pre_trainer:\n    config: t.yaml\n    model: m.yaml\n"
        "    overrides:\n      clip_grad: 3\n      adam_beta1: 0.3\n",
        "exp.yaml", arguments, options_with({}, {folder_.path()}));
  }
  TemporaryFolder folder_;
};

TEST_F(Precedence, CommandLineThenOverridesThenModuleThenModel) {
  const Experiment e = load({"adam_beta1=0.4"});
  EXPECT_EQ(e.trainer->adam_beta1, 0.4);
  EXPECT_EQ(e.trainer->clip_grad, 3);
  EXPECT_EQ(e.trainer->lr, 2);
  EXPECT_EQ(e.trainer->seed, 1);
  EXPECT_EQ(e.trainer->adam_beta2, 0.999);
  EXPECT_EQ(e.provenance_of("adam_beta1").layer, Layer::kCommandLine);
  EXPECT_EQ(e.provenance_of("clip_grad").layer, Layer::kOverrides);
  EXPECT_EQ(e.provenance_of("lr").layer, Layer::kModulePreset);
  EXPECT_EQ(e.provenance_of("seed").layer, Layer::kModelPreset);
  EXPECT_EQ(e.provenance_of("adam_beta2").layer, Layer::kDefault);
}

TEST_F(Precedence, NullRestoresTheDefault) {
  const Experiment e = load({"lr=null", "--seed", "null"});
  EXPECT_EQ(e.trainer->lr, 2.0e-5);
  EXPECT_EQ(e.trainer->seed, 1234);
}

TEST_F(Precedence, TheHigherLayerSetsTheWarmUp) {
  write_file(folder_, "modules/t.yaml", "mock_data: true\nlr_warmup_iters: 7\n");
  EXPECT_EQ(load({}).trainer->lr_warmup_iters, 7);
  const Experiment fraction = load({"lr_warmup_fraction=0.29", "train_iters=100"});
  EXPECT_EQ(fraction.trainer->lr_warmup_iters, 29);
  EXPECT_EQ(fraction.provenance_of("lr_warmup_iters").describe(), "derived");
  write_file(folder_, "modules/t.yaml", "mock_data: true\nlr_warmup_fraction: 0.5\n");
  EXPECT_EQ(load({"train_iters=100"}).trainer->lr_warmup_iters, 50);
  const Experiment steps = load({"lr_warmup_iters=3"});
  EXPECT_EQ(steps.trainer->lr_warmup_iters, 3);
  EXPECT_FALSE(steps.trainer->lr_warmup_fraction);
  EXPECT_THROW(load({"lr_warmup_iters=3", "lr_warmup_fraction=0.1"}), Error);
}

TEST_F(Precedence, TheHighestLayerSetsTheLengthOfTraining) {
  write_file(folder_, "modules/t.yaml", "mock_data: true\ntrain_iters: 7\n");
  EXPECT_EQ(load({}).trainer->train_iters, 7);
  // The number of tokens is rounded up to whole steps of 16 sequences with 1024 tokens each. The
  // learning-rate schedule has as many steps as the training.
  const Experiment tokens = load({"--tokens", "16385"});
  EXPECT_EQ(tokens.trainer->train_iters, 2);
  EXPECT_EQ(tokens.trainer->lr_decay_iters, 2);
  EXPECT_FALSE(length_is_open(tokens.trainer));
  EXPECT_EQ(tokens.provenance_of("train_iters").layer, Layer::kDerived);
  EXPECT_EQ(load({"tokens=16384"}).trainer->train_iters, 1);
  write_file(folder_, "modules/t.yaml", "mock_data: true\ntrain_epochs: 2\n");
  EXPECT_TRUE(length_is_open(load({}).trainer));
  EXPECT_EQ(load({"train_iters=3"}).trainer->train_iters, 3);
  EXPECT_FALSE(load({"train_iters=3"}).trainer->train_epochs);
  EXPECT_FALSE(load({"minutes=3"}).trainer->train_epochs);
  for (const std::vector<std::string>& both :
       {std::vector<std::string>{"epochs=1", "train_iters=3"}, {"tokens=1", "minutes=3"}}) {
    EXPECT_THROW(load(both), Error);
  }
  EXPECT_EQ(load({"epochs=null", "train_iters=3"}).trainer->train_iters, 3);
}

TEST_F(Precedence, DataOfAHigherLayerReplacesMockData) {
  write_file(folder_, "modules/t.yaml", "mock_data: true\n");
  EXPECT_TRUE(load({}).trainer->mock_data);
  for (const char* key : {"data_path", "train_data_path"}) {
    const Experiment e = load({std::string(key) + "=a"});
    EXPECT_FALSE(e.trainer->mock_data) << key;
    EXPECT_TRUE(e.warnings.empty()) << key;
  }
  EXPECT_EQ(load({"data_path=a"}).trainer->data_path, std::vector<std::string>{"a"});
  // mock_data remains true if data_path is empty. If the command line sets mock_data and data_path, mock_data
  // is used.
  EXPECT_TRUE(load({"data_path=null"}).trainer->mock_data);
  EXPECT_TRUE(load({"data_path=[]"}).trainer->mock_data);
  const Experiment both = load({"data_path=a", "mock_data=true"});
  EXPECT_TRUE(both.trainer->mock_data);
  EXPECT_TRUE(both.trainer->data_path.empty());
  EXPECT_EQ(both.warnings.size(), 1u);
  // Data for validation alone does not replace training data.
  const Experiment valid = load({"valid_data_path=a"});
  EXPECT_TRUE(valid.trainer->mock_data);
  EXPECT_EQ(valid.warnings.size(), 1u);
  // mock_data on the command line replaces a preset's data.
  write_file(folder_, "modules/t.yaml", "data_path: a\n");
  EXPECT_TRUE(load({"mock_data=true"}).trainer->mock_data);
}

TEST_F(Precedence, ATokenizerFileReplacesAPresetsByteTokenizer) {
  write_file(folder_, "modules/t.yaml", "mock_data: true\ntokenizer_type: ByteTokenizer\n");
  EXPECT_EQ(load({}).trainer->tokenizer_type, "ByteTokenizer");
  for (const std::string file : {"tokenizer_model", "vocab_file"}) {
    std::vector<std::string> words = {file + "=t.json"};
    if (file == "vocab_file") words.emplace_back("merge_file=m.txt");
    EXPECT_FALSE(load(words).trainer->tokenizer_type) << file;
  }
  EXPECT_EQ(load({"tokenizer_model=null"}).trainer->tokenizer_type, "ByteTokenizer");
  EXPECT_THROW(load({"tokenizer_model=t.json", "tokenizer_type=bytetokenizer"}), Error);
  // ByteTokenizer on the command line replaces a preset's tokenizer_model.
  write_file(folder_, "modules/t.yaml", "mock_data: true\ntokenizer_model: org/model\n");
  EXPECT_EQ(load({"tokenizer_type=ByteTokenizer"}).trainer->tokenizer_type, "ByteTokenizer");
}

TEST_F(Precedence, EpochsBecomeStepsAndTheScheduleFollows) {
  Experiment e = load({"epochs=1.5", "lr_warmup_fraction=0.1"});
  EXPECT_EQ(e.trainer->train_iters, 0);
  const std::string before = to_yaml(e);
  EXPECT_THAT(before, testing::Not(testing::HasSubstr("train_iters:")));
  set_train_iters(e, 200);
  EXPECT_EQ(e.trainer->train_iters, 200);
  EXPECT_EQ(e.trainer->lr_decay_iters, 200);
  EXPECT_EQ(e.trainer->lr_warmup_iters, 20);
  EXPECT_FALSE(length_is_open(e.trainer));
  // The written experiment keeps the length in epochs.
  EXPECT_EQ(to_yaml(e), before);
  Experiment wsd = load({"minutes=1", "lr_decay_style=WSD", "lr_wsd_decay_iters=30", "lr_warmup_iters=1"});
  EXPECT_THROW(set_train_iters(wsd, 20), Error);
  EXPECT_NO_THROW(set_train_iters(wsd, 30));
}

TEST(Experiment, ALoadedModelNeedsNoShapeAndKeepsItsOwn) {
  const Experiment e = load_text(
      "{work_group: g, user_name: u, exp_name: e, workspace: w, modules: {pre_trainer: {overrides: {load: "
      "folder, data_path: a.txt, rotary_base: 5}}}}");
  EXPECT_EQ(e.trainer->num_layers, 0);
  const std::string yaml = to_yaml(e);
  EXPECT_THAT(yaml, testing::HasSubstr("rotary_base: 5"));
  for (const char* key :
       {"max_position_embeddings", "norm_epsilon", "multi_latent_attention", " num_layers:"})
    EXPECT_THAT(yaml, testing::Not(testing::HasSubstr(key))) << key;
  EXPECT_EQ(load_text(yaml).trainer, e.trainer);
}

TEST(Experiment, UnknownKeysAreRefused) {
  EXPECT_EQ(error_of(experiment_text("      lr_decay_stile: cosine\n")),
            "exp.yaml:14:7: error: unknown key 'lr_decay_stile'\n"
            " 14 |       lr_decay_stile: cosine\n"
            "    |       ^^^^^^^^^^^^^^\n"
            "  hint: did you mean 'lr_decay_style'?");
  EXPECT_NE(error_of(experiment_text("      \"xy\\0zzy\": 1\n")).find("unknown key 'xy zzy'"),
            std::string::npos);
  EXPECT_EQ(error_of(experiment_text("      xyzzy_plugh: 1\n")),
            "exp.yaml:14:7: error: unknown key 'xyzzy_plugh'\n"
            " 14 |       xyzzy_plugh: 1\n"
            "    |       ^^^^^^^^^^^\n"
            "  hint: 'primus config reference' lists every key");
  EXPECT_EQ(error_of("work_groop: g\n" + experiment_text("")),
            "exp.yaml:1:1: error: unknown key 'work_groop' at the top level\n"
            " 1 | work_groop: g\n"
            "   | ^^^^^^^^^^\n"
            "  hint: did you mean 'work_group'?");
  EXPECT_NE(error_of("train_iters: 5\n" + experiment_text(""))
                .find("hint: write trainer keys under modules.pre_trainer.overrides"),
            std::string::npos);
  EXPECT_NE(error_of("includes: [a.yaml]\n" + experiment_text("")).find("hint: write extends"),
            std::string::npos);
  EXPECT_NE(error_of(experiment_text("    modle: x\n")).find("did you mean 'model'?"), std::string::npos);
}

TEST(Experiment, WrongTypesAreRefused) {
  EXPECT_EQ(error_of(experiment_text("      train_iters: 1.5\n")),
            "exp.yaml:14:20: error: train_iters expects an integer, not 1.5\n"
            " 14 |       train_iters: 1.5\n"
            "    |                    ^^^\n"
            "  hint: 'primus config reference train_iters' explains it");
  EXPECT_EQ(error_of(experiment_text("      bf16: yes\n")),
            "exp.yaml:14:13: error: bf16 expects true or false, not 'yes'\n"
            " 14 |       bf16: yes\n"
            "    |             ^^^\n"
            "  hint: write true or false");
  EXPECT_EQ(error_of(experiment_text("      lr: \"1e-5\"\n")),
            "exp.yaml:14:11: error: lr expects a number, not '1e-5'\n"
            " 14 |       lr: \"1e-5\"\n"
            "    |           ^^^^^^\n"
            "  hint: remove the quotes");
  EXPECT_EQ(error_of(experiment_text("      lr: [1]\n")),
            "exp.yaml:14:11: error: lr expects a number, not a list\n"
            " 14 |       lr: [1]\n"
            "    |           ^\n"
            "  hint: 'primus config reference lr' explains it");
  EXPECT_EQ(error_of(experiment_text("      save: true\n")),
            "exp.yaml:14:13: error: save expects text, not true\n"
            " 14 |       save: true\n"
            "    |             ^^^^\n"
            "  hint: 'primus config reference save' explains it");
  EXPECT_NE(error_of(experiment_text("      data_path: {a: 1}\n"))
                .find("data_path expects a list of text, not a map"),
            std::string::npos);
  EXPECT_NE(
      error_of(experiment_text("      data_path: [[a]]\n")).find("exp.yaml:14:19: error: data_path expects"),
      std::string::npos);
  // The types of keys are also checked if the native engine ignores the keys.
  EXPECT_NE(
      error_of(experiment_text("      use_turbo_gemm: fast\n")).find("use_turbo_gemm expects true or false"),
      std::string::npos);
  EXPECT_NE(error_of(experiment_text("      torch_compile: 1\n")).find("torch_compile expects a map"),
            std::string::npos);
  EXPECT_NE(error_of(experiment_text("      train_iters: 99999999999999999999\n")).find("expects an integer"),
            std::string::npos);
}

TEST(Experiment, ValuesOutOfRangeAreRefused) {
  EXPECT_EQ(error_of(experiment_text("      micro_batch_size: 0\n")),
            "exp.yaml:14:25: error: micro_batch_size is 0; it must be at least 1 and at most 1048576\n"
            " 14 |       micro_batch_size: 0\n"
            "    |                         ^\n"
            "  hint: 'primus config reference micro_batch_size' explains it");
  EXPECT_EQ(error_of(experiment_text("      adam_beta1: 1.0\n")),
            "exp.yaml:14:19: error: adam_beta1 is 1.0; it must be at least 0 and below 1\n"
            " 14 |       adam_beta1: 1.0\n"
            "    |                   ^^^\n"
            "  hint: 'primus config reference adam_beta1' explains it");
  EXPECT_NE(error_of(experiment_text("      lr: -1\n")).find("lr is -1; it must be at least 0"),
            std::string::npos);
  EXPECT_NE(error_of(experiment_text("      lr: .nan\n")).find("lr is .nan; it must be"), std::string::npos);
  EXPECT_NE(error_of(experiment_text("      weight_decay: .inf\n")).find("it must be finite"),
            std::string::npos);
  EXPECT_NE(error_of(experiment_text("      adam_eps: 0\n")).find("it must be above 0"), std::string::npos);
}

TEST(Experiment, UnknownChoicesAreRefused) {
  EXPECT_EQ(error_of(experiment_text("      lr_decay_style: cosin\n")),
            "exp.yaml:14:23: error: lr_decay_style is 'cosin'; it must be one of constant, linear, cosine, "
            "inverse-square-root, WSD\n"
            " 14 |       lr_decay_style: cosin\n"
            "    |                       ^^^^^\n"
            "  hint: did you mean 'cosine'?");
  EXPECT_NE(error_of(experiment_text("      recompute_modules: [core_atn]\n"))
                .find("exp.yaml:14:27: error: recompute_modules is 'core_atn'"),
            std::string::npos);
  EXPECT_NE(error_of(experiment_text("      tokenizer_type: KimiK2Tokenizer\n"))
                .find("exp.yaml:14:23: error: tokenizer_type 'KimiK2Tokenizer': Kimi K2's tokenizer is"),
            std::string::npos);
}

TEST(Experiment, UnsupportedValuesOfTheNativeEngineAreNamed) {
  const std::string text = experiment_text("      moe_router_dtype: fp64\n");
  try {
    load_text(text);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
    EXPECT_EQ(error.render(),
              "exp.yaml:14:25: error: moe_router_dtype is 'fp64'; the native engine supports only fp32\n"
              " 14 |       moe_router_dtype: fp64\n"
              "    |                         ^^^^\n"
              "  hint: leave moe_router_dtype out, or set moe_router_dtype: fp32");
  }
  EXPECT_EQ(load_text(text, {"--framework", "megatron"}).trainer->moe_router_dtype, "fp64");
  for (const char* fine :
       {"tensor_model_parallel_size: 8", "context_parallel_size: 2", "expert_model_parallel_size: 4",
        "fp16: false", "hidden_dropout: 0.0", "num_experts: null", "normalization: rmsnorm", "fp16: 0",
        "rampup_batch_size: []"}) {
    EXPECT_EQ(error_of(experiment_text("      " + std::string(fine) + "\n")), "") << fine;
  }
  for (const char* refused :
       {"fp16: true", "hidden_dropout: 0.1", "normalization: LayerNorm", "optimizer: soap",
        "pp_algorithm: zero-bubble-heuristic", "moe_router_dtype: fp64",
        "moe_router_load_balancing_type: sinkhorn", "rampup_batch_size: [1, 2, 3]"}) {
    EXPECT_NE(error_of(experiment_text("      " + std::string(refused) + "\n")).find("the native engine"),
              std::string::npos)
        << refused;
  }
}

// The native engine refuses a key that it does not implement if the key would change the model, the training
// or the data.
TEST(Experiment, SettingsThatWouldChangeTheTrainingAreRefused) {
  for (const char* refused :
       {"activation_func: openai_gelu", "hc_use_sinkhorn: false", "trainer_class: x.Flux", "warmup: 100",
        "use_v4_fp8_indexer: true", "apply_query_key_layer_scaling: true",
        "heterogeneous_layers_config_path: layers.json", "head_lr_mult: 2", "iterations_to_skip: [1, 2]",
        "fp8: hybrid\n      fp8_recipe: blockwise", "fp4: e2m1", "recompute_activations: true",
        "fp32_residual_connection: true", "exit_on_missing_checkpoint: false\n      load: x",
        "save_retain_interval: 10", "spec: [a.b, c]", "per_split_data_args_path: data.json"}) {
    const std::string error = error_of(experiment_text("      " + std::string(refused) + "\n"));
    EXPECT_NE(error.find(": error: "), std::string::npos) << refused << error;
    EXPECT_NE(error.find("the native engine"), std::string::npos) << refused << error;
    EXPECT_NE(error.find("exp.yaml:14:"), std::string::npos) << refused << error;
    EXPECT_EQ(error_of(experiment_text("      " + std::string(refused) + "\n"), {"framework=megatron"}), "")
        << refused;
  }
  // Values of AMD Primus's presets that have no effect are accepted.
  for (const char* neutral :
       {"activation_func: silu", "attn_sliding_window: null", "window_size: []", "use_sink_attention: 0",
        "swiglu_limit: 0", "head_lr_mult: 1.0", "iterations_to_skip: null", "fp8: null",
        "exit_on_missing_checkpoint: true", "lora: {enabled: false}", "lora: {}",
        "lora: {enabled: true, dropout: 0.1, dropout_position: post}", "stage: pretrain",
        "recompute_activations: false", "perform_initialization: true", "iterations_to_skip: []"}) {
    EXPECT_EQ(error_of(experiment_text("      " + std::string(neutral) + "\n")), "") << neutral;
  }
}

// Settings of adapters enable the adapters, unless the same file or command line has enabled: false.
TEST(Experiment, SettingsOfAdaptersSwitchThemOn) {
  const auto load = [](const std::string& overrides, const std::vector<std::string>& arguments) {
    return load_experiment_text(
        "work_group: g\nuser_name: u\nexp_name: e\nworkspace: w\nmodules:\n  post_trainer:\n"
        "    config: sft_trainer.yaml\n    model: llama3.2_1B.yaml\n    overrides:\n      load: weights\n" +
            overrides,
        "exp.yaml", arguments,
        {.environment = [](const std::string&) { return std::nullopt; },
         .preset_dirs = std::vector<std::filesystem::path>{PRIMUS_SOURCE_DIR "/presets"},
         .module = "post_trainer"});
  };
  const auto lora = [&](const std::string& overrides, const std::vector<std::string>& arguments) {
    return read_lora(*load(overrides, arguments).settings.find("lora"));
  };
  // The preset disables adapters.
  EXPECT_FALSE(lora("", {}).enabled);
  EXPECT_TRUE(lora("", {"lora.dim=16"}).enabled);
  EXPECT_EQ(lora("", {"lora.dim=16"}).dim, 16);
  EXPECT_TRUE(lora("", {"lora={dim: 8}"}).enabled);
  EXPECT_TRUE(lora("      lora: {dim: 8}\n", {}).enabled);
  EXPECT_FALSE(lora("      lora: {enabled: false, dim: 8}\n", {}).enabled);
  EXPECT_TRUE(lora("      lora: {enabled: false, dim: 8}\n", {"lora.enabled=true", "lora.dim=4"}).enabled);
  EXPECT_FALSE(lora("      lora: {dim: 8}\n", {"lora.enabled=false"}).enabled);
  // The reported place of `lora` is the place of its last setting.
  EXPECT_EQ(load("", {"lora.dim=16"}).provenance_of("lora").describe(), "command line");
  EXPECT_EQ(load("      lora: {dim: 8}\n", {}).provenance_of("lora").describe(), "exp.yaml:11:13");
  try {
    load("      lora: {enabled: false, dim: 8}\n", {"lora.alpha=4"});
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.location(), "command line");
    EXPECT_EQ(std::string(error.what()), "lora.alpha has no effect: lora.enabled is false (exp.yaml:11:23)");
  }
}

TEST(Experiment, ThreadsComeFromOpenMpsVariable) {
  const std::string plain = experiment_text(""), with_env = "env: {OMP_NUM_THREADS: 3}\n" + plain;
  EXPECT_EQ(load_text(plain).trainer->num_threads, 0);
  const Experiment e = load_text(with_env, {}, {{"OMP_NUM_THREADS", "5"}});
  EXPECT_EQ(e.trainer->num_threads, 3);
  EXPECT_EQ(e.provenance_of("num_threads").describe(), "derived from exp.yaml:1:24");
  EXPECT_EQ(load_text(with_env, {"num_threads=2"}).trainer->num_threads, 2);
  const Experiment process = load_text(plain, {}, {{"OMP_NUM_THREADS", "5,2"}});
  EXPECT_EQ(process.trainer->num_threads, 5);
  EXPECT_EQ(process.provenance_of("num_threads").describe(), "environment OMP_NUM_THREADS");
  for (const char* text : {"0", "-1", "many", "5000", "99999999999999999999"}) {
    const Experiment bad = load_text(plain, {}, {{"OMP_NUM_THREADS", text}});
    EXPECT_EQ(bad.trainer->num_threads, 0) << text;
    ASSERT_EQ(bad.warnings.size(), 1u) << text;
    EXPECT_EQ(bad.warnings[0], "environment: OMP_NUM_THREADS is ignored, because '" + std::string(text) +
                                   "' is not a number of threads");
  }
}

// Fine-tuning has its own keys for data and weights.
TEST(Experiment, FineTuningHasConversationsAndWeights) {
  const std::string sft = experiment_text("      stage: sft\n");
  EXPECT_NE(error_of(sft).find("exp.yaml:13:18: error: stage is sft, but mock_data has no conversations"),
            std::string::npos);
  EXPECT_NE(error_of(sft, {"mock_data=false"}).find("there are no conversations to train on"),
            std::string::npos);
  const std::vector<std::string> right = {"mock_data=false", "sft_dataset_name=a.jsonl"};
  const Experiment e = load_text(sft, right);
  ASSERT_EQ(e.warnings.size(), 1u);
  EXPECT_NE(e.warnings[0].find("random weights"), std::string::npos);
  EXPECT_TRUE(load_text(experiment_text("      stage: sft\n      hf_path: null\n"), right).warnings.empty());
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), right.begin(), right.end());
    return load_text(sft, more);
  };
  const Experiment hub = with({"hf_path=org/model", "finetune=false"});
  EXPECT_EQ(hub.trainer->load, "org/model");
  EXPECT_TRUE(hub.trainer->finetune);
  EXPECT_EQ(hub.name_of("load"), "hf_path");
  EXPECT_TRUE(hub.warnings.empty());
  EXPECT_EQ(with({"hf_path=org/model", "pretrained_checkpoint=there"}).trainer->load, "there");
  EXPECT_EQ(with({"hf_path=org/model", "pretrained_checkpoint=there", "load=run"}).trainer->load, "run");
  EXPECT_EQ(with({"hf_path=org/model", "load=run"}).warnings,
            std::vector<std::string>{
                "command line: hf_path is not used, because the weights come from load (run)"});
  EXPECT_TRUE(with({"hf_path=run", "load=run"}).warnings.empty());
  EXPECT_EQ(load_text(to_yaml(hub)).trainer->load, "org/model");
  EXPECT_EQ(with({"load=run", "data_path=text.txt"}).warnings.size(), 1u) << "data_path is not read";
  EXPECT_EQ(with({"load=run", "reset_attention_mask=true", "eod_mask_loss=true"}).warnings.size(), 2u);
}

TEST(Experiment, TheTargetComesFromMlperfsVariables) {
  const std::string name = "target_eval_loss", first = "MLLOG_TARGET_EVAL_LOSS", second = "TARGET_EVAL_LOSS";
  const std::string mlperf = experiment_text("      stage: mlperf_pretrain\n      eval_iters: 1\n");
  const auto target = [](const std::string& text, const std::map<std::string, std::string>& environment) {
    return load_text(text, {}, environment).trainer->target_eval_loss;
  };
  EXPECT_EQ(target(mlperf, {{first, "3.3"}}), 3.3);
  EXPECT_EQ(target(mlperf, {{second, "3"}}), 3.0);
  EXPECT_EQ(target(mlperf, {{first, "3.3"}, {second, "3.30"}}), 3.3);
  EXPECT_EQ(target("env: {TARGET_EVAL_LOSS: 2.5}\n" + mlperf, {{second, "3"}}), 2.5);
  EXPECT_EQ(load_text(mlperf, {}, {{first, "3.3"}}).provenance_of(name).describe(), "environment " + first);
  EXPECT_EQ(target(experiment_text("      stage: MLPerf_Pretrain\n      eval_iters: 1\n"), {{first, "3.3"}}),
            3.3);
  // The environment variable sets no target in other stages, after an explicit null, or with the value 0 or
  // "".
  EXPECT_EQ(target(experiment_text("      eval_iters: 1\n"), {{first, "3.3"}}), std::nullopt);
  EXPECT_EQ(target(experiment_text("      stage: mlperf_pretrain\n      target_eval_loss: null\n"),
                   {{first, "3.3"}}),
            std::nullopt);
  for (const char* none : {"0", "0.0", ""}) EXPECT_EQ(target(mlperf, {{first, none}}), std::nullopt) << none;
  EXPECT_EQ(load_text(mlperf, {"target_eval_loss=2"}, {{first, "3.3"}}).trainer->target_eval_loss, 2.0);
  const Experiment without = load_text(mlperf, {});
  ASSERT_EQ(without.warnings.size(), 1u);
  EXPECT_NE(without.warnings[0].find("mlperf_pretrain without a target"), std::string::npos);
  EXPECT_TRUE(load_text(mlperf, {}, {{first, "3.3"}}).warnings.empty());
}

TEST(Experiment, TargetsThatAreNoLossAreRefused) {
  const std::string mlperf = experiment_text("      stage: mlperf_pretrain\n      eval_iters: 1\n");
  const auto refusal = [&](const std::map<std::string, std::string>& environment,
                           const std::vector<std::string>& overrides = {}) -> std::string {
    try {
      load_text(mlperf, overrides, environment);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalid);
      return error.what();
    }
    return "none";
  };
  for (const std::string text : {"low", "-1", "nan", "inf", "3.3 3.4", "true"}) {
    EXPECT_EQ(refusal({{"TARGET_EVAL_LOSS", text}}),
              "TARGET_EVAL_LOSS is '" + text + "', which is not a loss");
  }
  EXPECT_EQ(refusal({{"MLLOG_TARGET_EVAL_LOSS", "3.3"}, {"TARGET_EVAL_LOSS", "3.4"}}),
            "MLLOG_TARGET_EVAL_LOSS is 3.3, and TARGET_EVAL_LOSS is 3.4");
  EXPECT_EQ(refusal({{"TARGET_EVAL_LOSS", "3.4"}}, {"eval_iters=0"}),
            "target_eval_loss is 3.4, but the run does not evaluate (eval_iters: 0)");
}

TEST(Experiment, KeysWithoutMeaningAreListedOnce) {
  const Experiment e =
      load_text("platform: {config: platform_azure.yaml}\n" +
                    experiment_text(
                        "      use_turbo_attention: true\n      fp8: hybrid\n      align_grad_reduce: true\n"
                        "      no_load_rng: null\n"),
                {"fp8=null"});
  EXPECT_EQ(e.ignored, (std::vector<std::string>{"align_grad_reduce", "no_load_rng", "platform",
                                                 "use_turbo_attention"}));
  EXPECT_TRUE(e.settings.find("align_grad_reduce")->boolean);
  // Runs with Megatron-LM ignore the keys that only the native engine reads.
  const Experiment megatron =
      load_text(experiment_text("      fp8: hybrid\n      keep_latest: 2\n"), {"--framework", "megatron"});
  EXPECT_EQ(megatron.ignored, std::vector<std::string>{"keep_latest"});
}

TEST(Experiment, AliasesAreTheSameKey) {
  const Experiment e = load_text(experiment_text("      layernorm_epsilon: 1e-6\n"), {"norm_epsilon=1e-4"});
  EXPECT_EQ(e.trainer->norm_epsilon, 1e-4);
  EXPECT_EQ(load_text(experiment_text("      layernorm_epsilon: 1e-6\n")).trainer->norm_epsilon, 1e-6);
  // norm_epsilon and layernorm_epsilon may both be set to one number. If the numbers differ,
  // layernorm_epsilon is used, as in Megatron-LM's models, and a warning appears.
  EXPECT_TRUE(load_text(experiment_text("      norm_epsilon: 1.0e-5\n      layernorm_epsilon: 1e-05\n"))
                  .warnings.empty());
  for (const char* both : {"      norm_epsilon: 1e-5\n      layernorm_epsilon: 1e-6\n",
                           "      layernorm_epsilon: 1e-6\n      norm_epsilon: 1e-5\n"}) {
    const Experiment two = load_text(experiment_text(both));
    EXPECT_EQ(two.trainer->norm_epsilon, 1e-6) << both;
    ASSERT_EQ(two.warnings.size(), 1u);
    EXPECT_NE(two.warnings[0].find("norm_epsilon and layernorm_epsilon differ"), std::string::npos);
  }
}

// As in Megatron-LM, ordinary and latent attention have separate factors of RoPE scaling.
TEST(Experiment, TheTwoRopeFactorsAreTwoKeys) {
  const std::string both = "      rope_scaling_factor: 8\n      rotary_scaling_factor: 40\n";
  const Experiment latent = load_text(experiment_text(both + "      multi_latent_attention: true\n"));
  EXPECT_EQ(latent.trainer->rotary_scaling_factor, 40);
  EXPECT_EQ(latent.trainer->rope_scaling_type, "yarn");
  const Experiment plain = load_text(experiment_text(both + "      use_rope_scaling: true\n"));
  EXPECT_EQ(plain.trainer->rope_scaling_factor, 8);
  EXPECT_EQ(plain.trainer->rope_scaling_type, "llama3");
  ASSERT_EQ(plain.warnings.size(), 1u);
  EXPECT_NE(plain.warnings[0].find("rotary_scaling_factor has an effect only with multi_latent_attention"),
            std::string::npos);
  // rope_scaling_factor also applies to latent attention if rotary_scaling_factor is not set, as in older
  // files.
  EXPECT_EQ(load_text(experiment_text("      rope_scaling_factor: 40\n      multi_latent_attention: true\n"))
                .trainer->rotary_scaling_factor,
            40);
  EXPECT_EQ(load_text(experiment_text("      multi_latent_attention: true\n")).trainer->rotary_scaling_factor,
            1);
}

TEST(Experiment, ReadsAmdPrimussModulePreset) {
  const Experiment e = load_text(experiment_text(
      "      deterministic_mode: false\n      rotary_seq_len_interpolation_factor: 1\n"
      "      moe_router_dtype: null\n      dataloader_type: cyclic\n      params_dtype: null\n"
      "      torch_fsdp2_reshard_after_forward: false\n      fused_single_qkv_rope: true\n"
      "      debug: true\n"));
  EXPECT_FALSE(e.trainer->deterministic_mode);
  EXPECT_EQ(e.trainer->dataloader_type, "cyclic");
  EXPECT_EQ(e.trainer->moe_router_dtype, "fp32");
}

// Values such as [0]*1+[1]*1 are patterns, not lists.
TEST(Experiment, PatternsThatBeginWithABracketAreText) {
  const Experiment e =
      load_text(experiment_text("      num_experts: 4\n      moe_layer_freq: \"[0]*1+[1]*1\"\n"),
                {"no_rope_freq=[0]*1+[1]*1"});
  EXPECT_EQ(e.trainer->moe_layer_freq, (std::vector<std::string>{"[0]*1+[1]*1"}));
  EXPECT_EQ(e.trainer->no_rope_freq, (std::vector<std::string>{"[0]*1+[1]*1"}));
}

// AMD Primus's files have some environment variables among the trainer's keys, where they have no effect.
TEST(Experiment, MisplacedVariablesAreNamed) {
  const Experiment e = load_text(experiment_text("      HSA_NO_SCRATCH_RECLAIM: 1\n"));
  ASSERT_EQ(e.warnings.size(), 1u);
  EXPECT_EQ(e.warnings[0],
            "exp.yaml:14:7: HSA_NO_SCRATCH_RECLAIM looks like an environment variable, and is not set here: "
            "move it under env:");
  EXPECT_TRUE(e.env.empty());
  EXPECT_NE(error_of(experiment_text(""), {"HSA_NO_SCRATCH_RECLAIM=1"}).find("unknown key"),
            std::string::npos);
}

TEST(Experiment, AcceptsExitOnMissingCheckpointWithoutLoad) {
  EXPECT_EQ(error_of(experiment_text("      exit_on_missing_checkpoint: false\n")), "");
}

// A preset of an unsupported model gives one error about the model, and none about its keys.
TEST(Experiment, PresetsOfUnsupportedModelsAreRefusedInOneSentence) {
  const TemporaryFolder folder;
  write_file(folder, "models/megatron/zebra_llama_1B.yaml", "bases: [x.yaml]\nnum_layers: 2\n");
  const std::string text =
      "work_group: g\nuser_name: u\nexp_name: e\nworkspace: w\n"
      "modules:\n  pre_trainer:\n    model: zebra_llama_1B.yaml\n    overrides: {mock_data: true, no_such: "
      "1}\n";
  try {
    load_experiment_text(text, "exp.yaml", {}, options_with({}, {folder.path()}));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
    EXPECT_EQ(error.location(), "exp.yaml:7:12");
    EXPECT_NE(std::string(error.what()).find("Zebra-Llama needs"), std::string::npos);
  }
}

// Presets in a checkout of AMD Primus are found in the checkout's folder for each engine.
TEST(Experiment, FindsPresetsByEngine) {
  const TemporaryFolder folder;
  write_file(folder, "models/megatron/m.yaml",
             "num_layers: 2\nhidden_size: 64\nnum_attention_heads: 4\nvocab_size: 9\nmodel_type: gpt\n");
  const std::string text =
      "work_group: g\nuser_name: u\nexp_name: e\nworkspace: w\n"
      "modules: {pre_trainer: {framework: megatron, model: m.yaml, overrides: {mock_data: true}}}\n";
  for (const char* framework : {"framework=megatron", "framework=native"}) {
    const std::vector<std::string> arguments = {framework};
    EXPECT_EQ(load_experiment_text(text, "exp.yaml", arguments, options_with({}, {folder.path()}))
                  .trainer->hidden_size,
              64);
  }
}

// use_sink_attention and sink_sliding_window, keys of Primus-Turbo, set window_size.
TEST(Experiment, SinkWindowsAreWindows) {
  using Texts = std::vector<std::string>;
  const std::string on = "      use_sink_attention: true\n", windows = "      window_size: [127, 0]\n";
  const auto load = [](const std::string& lines, const std::vector<std::string>& arguments) -> TrainerConfig {
    return load_text(experiment_text(lines), arguments).trainer;
  };
  EXPECT_EQ(load(on + "      sink_sliding_window: 128\n", {}).window_size, (Texts{"128", "0"}));
  EXPECT_EQ(load(on + "      sink_sliding_window: 128\n", {}).window_attn_skip_freq, (Texts{"1", "0"}));
  EXPECT_EQ(load(on + "      sink_sliding_window: 128\n      sink_window_even_layers_only: false\n", {})
                .window_attn_skip_freq,
            Texts{});
  EXPECT_EQ(load(on + windows, {"sink_sliding_window=0"}).window_size, Texts{});
  EXPECT_EQ(load(windows, {"sink_sliding_window=0"}).window_size, (Texts{"127", "0"}));
  EXPECT_EQ(load(on + windows + "      sink_sliding_window: 0\n", {}).window_size, (Texts{"127", "0"}));
  const Experiment e = load_text(experiment_text(on + windows), {"sink_sliding_window=0"});
  EXPECT_EQ(e.provenance_of("window_size").describe(), "derived from command line");
  EXPECT_EQ(load_text(to_yaml(e)).trainer, e.trainer);
}

TEST(Experiment, TheRequestedModuleOfSeveralRuns) {
  const std::string text = experiment_text("") +
                           "  post_trainer:\n    framework: megatron\n    overrides: {no_such_key: 1}\n"
                           "  evaluator: 5\n";
  const Experiment e = load_text(text, {"modules.pre_trainer.overrides.seed=7"});
  EXPECT_EQ(e.module_name, "pre_trainer");
  EXPECT_EQ(e.trainer->seed, 7);
  EXPECT_EQ(e.other_modules, (std::vector<std::string>{"post_trainer", "evaluator"}));
  LoadOptions options = options_with();
  options.module = "post_trainer";
  EXPECT_THROW(load_experiment_text(text, "exp.yaml", {}, options), Error);  // has an unknown key
  // If an experiment has a single trainer, it is the module that runs, whatever its name is.
  const std::string single =
      "work_group: g\nuser_name: u\nexp_name: e\nworkspace: w\n"
      "modules: {evaluator: 1, post_trainer: {overrides: {num_layers: 1, hidden_size: 8, "
      "num_attention_heads: 2, vocab_size: 9, mock_data: true}}}\n";
  EXPECT_EQ(load_text(single).module_name, "post_trainer");
}

TEST(Experiment, SeveralProblemsAreReportedTogether) {
  EXPECT_EQ(error_of(experiment_text("      lrr: 1\n      seed: x\n"), {"bf16=maybe"}),
            "error: the settings have 3 problems\n"
            "exp.yaml:14:7: error: unknown key 'lrr'\n"
            " 14 |       lrr: 1\n"
            "    |       ^^^\n"
            "  hint: did you mean 'lr'?\n"
            "exp.yaml:15:13: error: seed expects an integer, not 'x'\n"
            " 15 |       seed: x\n"
            "    |             ^\n"
            "  hint: 'primus config reference seed' explains it\n"
            "command line: error: bf16 expects true or false, not 'maybe'\n"
            "  | bf16=maybe\n"
            "  |      ^^^^^\n"
            "  hint: write true or false");
}

TEST(Experiment, ThousandsOfProblemsAreCountedAndTwentyShown) {
  std::string keys;
  for (int i = 0; i < 4000; ++i) keys += fmt::format("      {}{}: 1\n", std::string(100, 'k'), i);
  const std::string text = error_of(experiment_text(keys));
  EXPECT_EQ(text.rfind("error: the settings have 4000 problems\n", 0), 0u);
  EXPECT_NE(text.find("\n... and 3980 more"), std::string::npos);
}

TEST(Experiment, OmittedNamesHaveDefaults) {
  const std::string modules = "modules: {pre_trainer: {overrides: {load: model, data_path: [text.txt]}}}\n";
  const Experiment e = load_experiment_text(modules, "configs/try 1.b.yaml");
  EXPECT_EQ(e.work_group, "primus");
  EXPECT_EQ(e.user_name, user_name());
  EXPECT_EQ(e.exp_name, "try 1.b");
  EXPECT_EQ(e.workspace, "./output");
  EXPECT_EQ(e.provenance_of("exp_name").describe(), "default");
  // The written experiment contains exp_name, so the name of its file has no effect.
  const Experiment again = load_experiment_text(to_yaml(e), "other.yaml");
  EXPECT_EQ(again.output_dir(), e.output_dir());
  // An empty name gets the default. A file name that is not UTF-8 is not used.
  EXPECT_EQ(load_experiment_text("exp_name: null\n" + modules, "e.toml.yaml").exp_name, "e.toml");
  EXPECT_EQ(load_experiment_text(modules, "a\xff.yaml").exp_name, "run");
  EXPECT_EQ(load_experiment_text(modules, "a.yaml", std::vector<std::string>{"exp_name=b"}).exp_name, "b");
}

TEST(Experiment, NeedsValidModules) {
  EXPECT_EQ(
      error_of("work_group: g\nuser_name: u\nexp_name: e\nworkspace: w\n"),
      "exp.yaml: error: the experiment has no modules\n"
      "  hint: add modules: {pre_trainer: {framework: native, config: pre_trainer.yaml, model: NAME.yaml}}");
  const std::string module =
      "modules: {pre_trainer: {overrides: {num_layers: 1, hidden_size: 8, num_attention_heads: 2, "
      "vocab_size: 9, mock_data: true}}}\n";
  const std::string head = "work_group: g\nuser_name: u\n";
  EXPECT_NE(error_of(head + "workspace: w\n").find("exp.yaml: error: the experiment has no modules"),
            std::string::npos);
  EXPECT_NE(
      error_of(head + "workspace: w\nexp_name: [a]\n" + module).find("exp_name expects text, not a list"),
      std::string::npos);
  for (const char* name : {"../x", "/x", "a/../../b", ".", "''"}) {
    EXPECT_NE(error_of(head + "workspace: w\nexp_name: " + name + "\n" + module)
                  .find("exp.yaml:4:11: error: exp_name"),
              std::string::npos)
        << name;
  }
  EXPECT_EQ(error_of(head + "workspace: /abs/w\nexp_name: team/run\n" + module), "");
  EXPECT_NE(
      error_of(head + "workspace: w\nexp_name: e\nmodules: {a_trainer: {}, post_trainer: {}}\n")
          .find("exp.yaml:5:26: error: the experiment has several trainers, a_trainer and post_trainer"),
      std::string::npos);
  EXPECT_NE(error_of(head + "workspace: w\nexp_name: e\nmodules: {runner: {}}\n")
                .find("module 'runner' is not a trainer"),
            std::string::npos);
  EXPECT_NE(
      error_of(head + "workspace: w\nexp_name: e\nmodules: {pre_trainer: 1}\n").find("expects a map, not 1"),
      std::string::npos);
  EXPECT_NE(error_of(experiment_text(""), {"framework=megatrn"}).find("did you mean 'megatron'?"),
            std::string::npos);
  EXPECT_NE(error_of("env: {1X: a}\n" + experiment_text("")).find("'1X' is not a valid name for a variable"),
            std::string::npos);
  EXPECT_NE(error_of("env: {X: [a]}\n" + experiment_text("")).find("variable X expects text, not a list"),
            std::string::npos);
}

TEST(Experiment, MissingPresetsAreNamed) {
  const std::string text =
      "work_group: g\nuser_name: u\nexp_name: e\nworkspace: w\n"
      "modules:\n  pre_trainer:\n    model: llama3_9B.yaml\n    overrides: {mock_data: true}\n";
  try {
    load_experiment_text(text, "exp.yaml", {},
                         options_with({}, {std::filesystem::path(PRIMUS_SOURCE_DIR) / "presets"}));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.render(),
              "exp.yaml:7:12: error: there is no model preset 'llama3_9B.yaml'\n"
              " 7 |     model: llama3_9B.yaml\n"
              "   |            ^^^^^^^^^^^^^^\n"
              "  hint: did you mean 'llama3_8B.yaml'?");
  }
  EXPECT_NE(error_of(text).find("hint: looked in"), std::string::npos);
}

// The experiment is in a folder that is searched for presets, but the experiment is not a preset.
TEST(Experiment, NoHintSuggestsTheExperimentItself) {
  const TemporaryFolder folder;
  write_file(folder, "exp.yaml",
             "work_group: g\nuser_name: u\nexp_name: e\nworkspace: w\nmodules:\n  pre_trainer:\n"
             "    model: ex.yaml\n    overrides: {mock_data: true}\n");
  try {
    load_experiment(folder.path() / "exp.yaml", {},
                    options_with({}, {std::filesystem::path(PRIMUS_SOURCE_DIR) / "presets"}));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.hint().find("exp.yaml"), std::string::npos) << error.hint();
  }
}

// For a part of a preset's name, the hint lists the presets whose names contain this part.
TEST(Experiment, PartsOfPresetNamesListThePresets) {
  const auto hint_for = [](const std::string& name) -> std::string {
    try {
      load_experiment_text(
          "work_group: g\nuser_name: u\nexp_name: e\nworkspace: w\nmodules:\n  pre_trainer:\n    model: " +
              name + "\n    overrides: {mock_data: true}\n",
          "exp.yaml", {}, options_with({}, {std::filesystem::path(PRIMUS_SOURCE_DIR) / "presets"}));
    } catch (const Error& error) {
      return error.hint();
    }
    return "";
  };
  const std::string llama = hint_for("Llama");
  EXPECT_EQ(llama.find("presets with 'Llama' in their names: llama"), 0U) << llama;
  EXPECT_NE(llama.find(" more"), std::string::npos) << llama;
  EXPECT_EQ(llama.find("_base"), std::string::npos) << llama;
  EXPECT_NE(hint_for("30B").find("qwen3_30B_A3B"), std::string::npos);
  EXPECT_EQ(hint_for("qwen3_30b_a3c"), "did you mean 'qwen3_30B_A3B'?");
}

TEST(Experiment, TheModelIsRequired) {
  const std::string text =
      "work_group: g\nuser_name: u\nexp_name: e\nworkspace: w\n"
      "modules:\n  pre_trainer:\n    overrides: {hidden_size: 64, num_attention_heads: 4, vocab_size: 9, "
      "mock_data: "
      "true}\n";
  EXPECT_EQ(error_of(text),
            "exp.yaml:6:3: error: num_layers is missing\n"
            " 6 |   pre_trainer:\n"
            "   |   ^^^^^^^^^^^\n"
            "  hint: choose a model preset with model: NAME.yaml, load a model with load: FOLDER, or set "
            "num_layers");
  EXPECT_EQ(load_text(text, {"--framework", "maxtext"}).trainer->num_layers, 0);
}

TEST(Experiment, LaterChecksCanPointAtAKey) {
  const Experiment e = load_text(experiment_text("      load: /nowhere\n"));
  EXPECT_EQ(e.error_for("load", "'/nowhere' does not exist").render(),
            "exp.yaml:14:13: error: '/nowhere' does not exist\n"
            " 14 |       load: /nowhere\n"
            "    |             ^^^^^^^^");
  EXPECT_EQ(e.error_for("seed", "bad").render(), "error: bad");
}

}  // namespace
}  // namespace primus::config
