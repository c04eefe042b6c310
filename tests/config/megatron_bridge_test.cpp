// Experiments for Megatron-Bridge, which the native engine runs.
#include <gmock/gmock.h>

#include "config/backend_fields.h"
#include "config/foreign.h"
#include "config/keys.h"
#include "config/lora_settings.h"
#include "config/trainer_config.h"
#include "support.h"

namespace primus::config {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;

const std::vector<std::filesystem::path> kPresets = {PRIMUS_SOURCE_DIR "/presets"};

// Returns an experiment with a recipe, and with the lines `overrides`. `rest`: further top-level lines.
std::string bridge(const std::string& recipe, const std::string& overrides, const std::string& rest = "") {
  const bool tunes = recipe.find("finetune") != std::string::npos;
  std::string text =
      std::string("work_group: g\nuser_name: u\nexp_name: e\nworkspace: ./output\nmodules:\n") +
      (tunes ? "  post_trainer:\n" : "  pre_trainer:\n") +
      "    framework: megatron_bridge\n    config: " + (tunes ? "sft" : "pretrain") +
      "_trainer.yaml\n    overrides:\n      recipe: " + recipe.substr(0, recipe.find(' ')) +
      "\n      flavor: " + recipe.substr(recipe.find(' ') + 1) + "\n";
  for (std::size_t at = 0; at < overrides.size();) {
    const std::size_t end = std::min(overrides.find('\n', at), overrides.size());
    text += "      " + overrides.substr(at, end - at) + "\n";
    at = end + 1;
  }
  return text + rest;
}

Experiment load(const std::string& text, const std::vector<std::string>& arguments = {}) {
  LoadOptions options = options_with({}, kPresets);
  options.module = text.find("post_trainer") != std::string::npos ? "post_trainer" : "pre_trainer";
  return load_experiment_text(text, "exp.yaml", arguments, options);
}

std::string error(const std::string& text, const std::vector<std::string>& arguments = {}) {
  try {
    load(text, arguments);
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    return error.render();
  }
  return "";
}

LoraSettings lora_of(const Experiment& experiment) {
  const Value* lora = experiment.settings.find("lora");
  return lora ? read_lora(*lora) : LoraSettings{};
}

const std::string kQwen = "qwen.qwen3 qwen3_8b_finetune_config";
const std::string kLlama = "llama.llama3 llama3_8b_finetune_config";
const std::string kQwenPretrain = "qwen.qwen3 qwen3_8b_pretrain_config";

TEST(MegatronBridge, ARecipeFineTunesAdapters) {
  const Experiment e = load(bridge(kLlama, "finetune_lr: 2e-5\ntrain_iters: 70"));
  const TrainerConfig& t = e.trainer;
  EXPECT_EQ(e.framework, "native");
  EXPECT_EQ(e.written_for, "Megatron-Bridge");
  EXPECT_EQ(t.stage, "sft");
  EXPECT_EQ(t.num_layers, 32);
  EXPECT_EQ(t.hidden_size, 4096);
  EXPECT_EQ(t.train_iters, 70);
  EXPECT_DOUBLE_EQ(t.lr, 2e-5);
  EXPECT_EQ(e.name_of("lr"), "finetune_lr");
  EXPECT_THAT(e.provenance_of("lr").describe(), HasSubstr("exp.yaml:12:"));
  // The recipe's own values, and where they are written.
  EXPECT_EQ(t.global_batch_size, 128);
  EXPECT_EQ(t.seq_length, 2048);
  EXPECT_EQ(t.seed, 5678);
  EXPECT_DOUBLE_EQ(t.adam_beta2, 0.98);
  EXPECT_DOUBLE_EQ(t.adam_eps, 1e-5);
  EXPECT_DOUBLE_EQ(t.weight_decay, 0.033);
  EXPECT_THAT(e.provenance_of("seed").describe(), HasSubstr("megatron_bridge/keys.yaml"));
  EXPECT_TRUE(lora_of(e).enabled);
  EXPECT_EQ(lora_of(e).dim, 8);
  EXPECT_DOUBLE_EQ(lora_of(e).alpha, 16);
  EXPECT_EQ(t.load, "meta-llama/Meta-Llama-3-8B");
  EXPECT_EQ(t.sft_dataset_name, "rajpurkar/squad");
  EXPECT_EQ(t.sft_conversation_format, "squad");
  EXPECT_THAT(e.warnings, Contains(HasSubstr("set sft_dataset_name=FILE")));
}

TEST(MegatronBridge, WithoutAdaptersAllWeightsAreTrained) {
  for (const char* peft : {"peft: none", "peft: \"None\"", "peft: null"}) {
    const Experiment e = load(bridge(kQwen, peft));
    EXPECT_FALSE(lora_of(e).enabled) << peft;
    EXPECT_DOUBLE_EQ(e.trainer->lr, 5e-6) << peft;
    EXPECT_EQ(e.trainer->tensor_model_parallel_size, 4) << peft;
  }
  const Experiment adapters = load(bridge(kQwen, "lr_decay_iters: null"));  // without the setting
  EXPECT_TRUE(lora_of(adapters).enabled);
  EXPECT_EQ(lora_of(adapters).dim, 32);
  EXPECT_DOUBLE_EQ(adapters.trainer->lr, 1e-4);
  EXPECT_EQ(adapters.trainer->tensor_model_parallel_size, 1);
  EXPECT_THAT(load(bridge(kQwen, "peft: none\npeft_dim: 4")).warnings,
              Contains(AllOf(HasSubstr("all weights are trained"), HasSubstr("peft_dim"))));
}

TEST(MegatronBridge, AdaptersHaveSettings) {
  const auto lora = [](const std::string& overrides, const std::string& rest = "",
                       const std::vector<std::string>& arguments = {}) {
    return lora_of(load(bridge(kLlama, overrides, rest), arguments));
  };
  EXPECT_EQ(lora("peft: LoRA\npeft_dim: 4\npeft_alpha: 12").dim, 4);
  EXPECT_DOUBLE_EQ(lora("peft: lora\npeft_alpha: 12").alpha, 12);
  const LoraSettings table = lora("peft: {alpha: 5, target_modules: [linear_qkv], a2a_experimental: true}");
  EXPECT_EQ(table.dim, 32);  // the default of Megatron-Bridge's class, and not the flavor's
  EXPECT_DOUBLE_EQ(table.alpha, 5);
  EXPECT_THAT(table.target_modules, ElementsAre("linear_qkv"));
  EXPECT_EQ(lora("peft: lora", "peft: {dim: 64}\n").dim, 64);
  EXPECT_EQ(lora("peft: lora", "peft: {dim: 64}\n", {"lora.dim=3"}).dim, 3);
  const LoraSettings typed = lora("peft: lora", "peft: {dim: 64}\n", {"peft.dim=2"});
  EXPECT_EQ(typed.dim, 2);
  EXPECT_DOUBLE_EQ(typed.alpha, 16);
  EXPECT_FALSE(lora("peft: lora", "peft: {dim: 64}\n", {"peft=none"}).enabled);
  EXPECT_EQ(lora("peft: lora\nlora: {dim: 7}").dim, 7);
  EXPECT_THAT(
      lora_of(load(bridge("qwen.qwen3_moe qwen3_30b_a3b_finetune_config", "peft: lora"))).target_modules,
      ElementsAre("linear_qkv", "linear_proj"));
  EXPECT_THAT(load(bridge(kLlama, "peft: lora", "peft: {dim: 64}\n")).warnings,
              Contains(HasSubstr("exp.yaml:13:1: 'peft' is at the top level")));
}

TEST(MegatronBridge, PackedSequences) {
  const Experiment e = load(bridge(kLlama, "packed_sequence: true"));
  EXPECT_TRUE(e.trainer->enable_packed_sequences);
  EXPECT_TRUE(e.trainer->use_packed_attention);
  EXPECT_EQ(e.trainer->seq_length, 4096);
  EXPECT_EQ(e.trainer->global_batch_size, 8);
  EXPECT_EQ(load(bridge(kLlama, "packed_sequence: true\nseq_length: 1024")).trainer->seq_length, 1024);
  EXPECT_EQ(load(bridge(kLlama, "seq_length: null")).trainer->seq_length, 2048);
}

TEST(MegatronBridge, ARecipePreTrains) {
  const Experiment e = load(bridge(kQwenPretrain,
                                   "mock: true\ntrain_iters: 50\nskip_save: true\ndataset: null\n"
                                   "precision_config: bf16-with-fp8-current-scaling-mixed"));
  const TrainerConfig& t = e.trainer;
  EXPECT_EQ(t.stage, "pretrain");
  EXPECT_TRUE(t.mock_data);
  EXPECT_FALSE(t.load);
  EXPECT_EQ(t.seed, 1234);
  EXPECT_DOUBLE_EQ(t.lr, 3e-4);
  EXPECT_DOUBLE_EQ(t.min_lr, 3e-5);
  EXPECT_EQ(t.save_interval, 50);
  EXPECT_TRUE(t.disable_last_saving);
  EXPECT_EQ(t.fp8, "hybrid");
  EXPECT_EQ(t.fp8_recipe, "tensorwise");
  EXPECT_TRUE(t.first_last_layers_bf16);
  EXPECT_THAT(
      load(bridge(kQwenPretrain, "mock: true\nfinetune_lr: 1\npeft: none\npacked_sequence: true")).warnings,
      Contains(HasSubstr("(the recipe is for pre-training): finetune_lr, packed_sequence")));
  // Data turn off generated data.
  const Experiment real = load(bridge(kQwenPretrain, "mock: true\ndata_paths: \"0.3 a 0.7 b\""));
  EXPECT_FALSE(real.trainer->mock_data);
  EXPECT_THAT(real.trainer->data_path, ElementsAre("0.3", "a", "0.7", "b"));
  EXPECT_EQ(load(bridge("llama.llama3 llama31_8b_pretrain_config", "mock: true")).trainer->tokenizer_type,
            "NullTokenizer");
  EXPECT_EQ(load(bridge("qwen.qwen3 qwen3_32b_pretrain_config", "mock: true\nenable_recompute: false"))
                .trainer->recompute_granularity,
            "none");
}

TEST(MegatronBridge, SectionsHaveTheNamesOfKeys) {
  const Experiment e =
      load(bridge(kQwen, "train: {eval_iters: 3}\noptimizer: {adam_beta1: 0.8}\ntrain_iters: 9",
                  "model: {attention_softmax_in_fp32: true}\n"));
  EXPECT_EQ(e.trainer->eval_iters, 3);
  EXPECT_DOUBLE_EQ(e.trainer->adam_beta1, 0.8);
  EXPECT_EQ(e.trainer->optimizer, "adam");
  EXPECT_THAT(e.ignored, Contains("attention_softmax_in_fp32"));
  EXPECT_THAT(
      error(bridge(kQwen, "model: {mystery: 3}")),
      AllOf(HasSubstr("exp.yaml:12:24: error: model.mystery is 3"), HasSubstr("leave model.mystery out")));
}

TEST(MegatronBridge, TheCommandLineHasBothKindsOfKeys) {
  const Experiment e = load(bridge(kQwen, "finetune_lr: 2e-5\nsft_skip_bad: true"),
                            {"lr=1e-3", "peft=none", "train_iters=4", "sft_dataset_name=chats.jsonl"});
  EXPECT_DOUBLE_EQ(e.trainer->lr, 1e-3);
  EXPECT_FALSE(lora_of(e).enabled);
  EXPECT_EQ(e.trainer->train_iters, 4);
  EXPECT_EQ(e.provenance_of("train_iters").layer, Layer::kCommandLine);
  EXPECT_TRUE(e.trainer->sft_skip_bad);  // a key of ours in the file
  EXPECT_EQ(e.trainer->sft_dataset_name, "chats.jsonl");
  EXPECT_EQ(e.trainer->sft_conversation_format, "auto");
  EXPECT_DOUBLE_EQ(load(bridge(kQwen, "lr: 1"), {"finetune_lr=2e-5"}).trainer->lr, 2e-5);
}

TEST(MegatronBridge, TheModelIsTheOneOfHuggingFace) {
  EXPECT_EQ(load(bridge(kQwen, "hf_path: mirror/qwen3-4b")).trainer->num_layers, 36);
  EXPECT_EQ(load(bridge(kQwen, "hf_path: mirror/qwen3-4b")).trainer->hidden_size, 2560);
  EXPECT_EQ(load(bridge(kQwen, "hf_path: null")).trainer->load, std::nullopt);
  const TemporaryFolder folder;
  const Experiment own = load(bridge(kQwen, "hf_path: " + folder.path().string()));
  EXPECT_EQ(own.trainer->load, folder.path().string());
  EXPECT_EQ(own.trainer->num_layers, 0);  // the folder's config.json describes the model
  EXPECT_EQ(load(bridge(kQwen, "pretrained_checkpoint: there")).trainer->load, "there");
  EXPECT_THAT(error(bridge(kQwenPretrain, "mock: true\nhf_path: mirror/other")),
              HasSubstr("no preset for this model"));
}

TEST(MegatronBridge, WhatTheNativeEngineLacksIsRefusedByName) {
  EXPECT_THAT(error(bridge("mamba.mamba2 mamba2_130m_pretrain_config", "mock: true")),
              AllOf(HasSubstr("exp.yaml:10:15"), HasSubstr("state-space layers, which come later")));
  EXPECT_THAT(error(bridge("zebra_llama.zebra_llama zebra_llama_1b_finetune_config", "peft: none")),
              HasSubstr("state-space layers come later"));
  EXPECT_THAT(error(bridge("primus.backends.megatron_bridge.recipes.mlperf_llama2_70b.llama2_custom "
                           "llama2_70b_lora_mxfp4_finetune_config",
                           "dataset_type: mlperf_dataset")),
              HasSubstr("quantises the base weights to MXFP4"));
  EXPECT_THAT(error(bridge(kQwen, "dataset_type: mlperf_dataset")), HasSubstr("MLPerf recipe"));
  EXPECT_THAT(error(bridge("gemma.gemma3 gemma3_1b_finetune_config", "peft: lora")),
              AllOf(HasSubstr("recipe is 'gemma.gemma3'"), HasSubstr("megatron_bridge/keys.yaml")));
  EXPECT_THAT(error(bridge("qwen.qwen3 llama3_8b_finetune_config", "peft: lora")), HasSubstr("flavor is"));
  EXPECT_THAT(error(bridge("llama.llama3 llama3_8b_16k_finetune_config", "peft: lora")),
              HasSubstr("flavor is"));
  EXPECT_THAT(error(bridge("llama.llama2 llama2_7b_finetune_config", "peft: lora")), HasSubstr("flavor is"));
  EXPECT_THAT(error(bridge(kQwen, "stage: pretrain")), HasSubstr("is a recipe for fine-tuning"));
  EXPECT_THAT(error(bridge(kQwen, "peft: dora")), HasSubstr("DoRA"));
  EXPECT_THAT(error(bridge(kQwen, "peft: 3")), HasSubstr("must be lora or none"));
  EXPECT_THAT(error(bridge(kQwen, "peft: ia3")), HasSubstr("lora, dora and none"));
  EXPECT_THAT(error(bridge(kQwen, "peft: {lora_dtype: bf16}")), HasSubstr("type of the model"));
  EXPECT_THAT(error(bridge(kQwen, "precision_config: fp16_mixed")),
              HasSubstr("does not have this precision"));
  EXPECT_THAT(error(bridge(kQwen, "train_itres: 5")),
              AllOf(HasSubstr("unknown key 'train_itres' of Megatron-Bridge"), HasSubstr("train_iters")));
  EXPECT_THAT(error(bridge(kQwen, "peft: lora", "peff: {dim: 3}\n")), HasSubstr("unknown key 'peff.dim'"));
  EXPECT_THAT(error(experiment_text(""), {"framework=megatron_bridge"}),
              AllOf(HasSubstr("does not start Megatron-Bridge"), HasSubstr("native, megatron")));
}

// Every recipe of the table names a preset, and has only values that the native engine accepts.
TEST(MegatronBridge, EveryRecipeIsRead) {
  const BackendFields fields = BackendFields::load("megatron_bridge", kPresets);
  int read = 0;
  for (const Member& flavor : fields.keys("flavors").members) {
    const std::string recipe = flavor.value.find("recipe")->text + " " + flavor.key;
    const Value& family = *fields.keys("recipes").find(flavor.value.find("recipe")->text);
    EXPECT_EQ(error(bridge(recipe + "_pretrain_config", "mock: true")), "") << flavor.key;
    ++read;
    if (!family.find("finetuning") || flavor.value.find("pretrain_only")) continue;
    EXPECT_EQ(error(bridge(recipe + "_finetune_config", "peft: none")), "") << flavor.key;
    EXPECT_EQ(error(bridge(recipe + "_finetune_config", "packed_sequence: true")), "") << flavor.key;
    read += 2;
  }
  EXPECT_GT(read, 50);
  // Every setting of a recipe has a line in keys.yaml, or the name of one of our keys.
  for (const auto& [name, field] : fields.all())
    EXPECT_TRUE(fields.keys("settings").find(name) || find_key(name)) << name;
}

}  // namespace
}  // namespace primus::config
