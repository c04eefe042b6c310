// Tests of the translation of experiments to Megatron-LM's arguments.
#include <gmock/gmock.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "backends/key_rules.h"
#include "config/keys.h"
#include "support.h"

namespace primus::backends {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;

const std::string kLlama = "framework: megatron\nmodel: llama3.1_8B.yaml";

// Returns the argument after `flag`, or "" if the command lacks the flag.
std::string after(const ExternalJob& job, const std::string& flag) {
  const auto found = std::find(job.command.begin(), job.command.end(), flag);
  return found == job.command.end() || found + 1 == job.command.end() ? "" : *(found + 1);
}

TEST(Megatron, AnExperimentBecomesItsArguments) {
  const ExternalJob job =
      render(load(kLlama,
                  "train_iters: 20\nlr: 1.0e-5\nmock_data: true\nmicro_batch_size: 2\n"
                  "global_batch_size: 64\nseq_length: 8192\ntensor_model_parallel_size: 2\n"
                  "sequence_parallel: true\nuse_turbo_attention: true"));
  EXPECT_EQ(job.command.front(), "/sources/pretrain_gpt.py");
  EXPECT_EQ(after(job, "--num-layers"), "32");
  EXPECT_EQ(after(job, "--hidden-size"), "4096");
  EXPECT_EQ(after(job, "--num-query-groups"), "8");
  EXPECT_EQ(after(job, "--rotary-base"), "500000");
  EXPECT_EQ(after(job, "--lr"), "1e-05");
  EXPECT_EQ(after(job, "--norm-epsilon"), "");  // Megatron-LM's default is kept
  EXPECT_EQ(after(job, "--tokenizer-type"), "NullTokenizer");
  EXPECT_EQ(after(job, "--train-iters"), "20");
  // The model family sets these arguments, because the experiment does not set their keys.
  for (const char* flag :
       {"--swiglu", "--disable-bias-linear", "--untie-embeddings-and-output-weights", "--bf16",
        "--use-rope-scaling", "--sequence-parallel", "--mock-data", "--group-query-attention"}) {
    EXPECT_THAT(job.command, Contains(flag));
  }
  EXPECT_EQ(job.environment.at("CUDA_DEVICE_MAX_CONNECTIONS"), "1");
  ASSERT_EQ(job.dropped.size(), 1u);
  EXPECT_THAT(job.dropped.begin()->second, Contains("use_turbo_attention"));
}

TEST(Megatron, WarnsOfBatchesAndFormatsThatItWillRefuse) {
  const auto warnings = [](const std::string& overrides) {
    const config::Experiment e = load(kLlama, "mock_data: true\nmicro_batch_size: 2\n" + overrides);
    return render_job(e, fields_of("megatron"), "/sources", {.ranks_per_node = 8}).warnings;
  };
  EXPECT_THAT(warnings("global_batch_size: 100"), Contains(HasSubstr("is not a multiple of 16")));
  EXPECT_THAT(warnings("global_batch_size: 32"), Not(Contains(HasSubstr("is not a multiple"))));
  EXPECT_THAT(warnings("global_batch_size: 32\nuse_torch_fsdp2: true\nckpt_format: torch"),
              Contains(HasSubstr("will refuse ckpt_format torch")));
}

// Slurm's batch script sends SIGUSR1 before the time limit.
TEST(Megatron, SavesAtTheSignalBeforeATimeLimit) {
  const ExternalJob usual = render(load(kLlama, "mock_data: true"));
  EXPECT_THAT(usual.command, Contains("--exit-signal-handler"));
  EXPECT_EQ(after(usual, "--exit-signal"), "SIGUSR1");
  EXPECT_TRUE(usual.saves_at_warning);
  const ExternalJob nothing = render(load(kLlama, "mock_data: true\nsave: null"));
  EXPECT_THAT(nothing.command, AllOf(Not(Contains("--exit-signal-handler")), Not(Contains("--save"))));
  EXPECT_FALSE(nothing.saves_at_warning);
  EXPECT_THAT(nothing.notes, Contains("save is null, so Megatron-LM writes no checkpoint"));
  const ExternalJob other =
      render(load(kLlama, "mock_data: true\nexit_signal_handler: true\nexit_signal: SIGUSR2"));
  EXPECT_EQ(after(other, "--exit-signal"), "SIGUSR2");
  EXPECT_FALSE(other.saves_at_warning);
}

TEST(Megatron, SequenceParallelismNeedsTensorParallelism) {
  const ExternalJob job = render(load(kLlama, "mock_data: true\nsequence_parallel: true"));
  EXPECT_THAT(job.command, Not(Contains("--sequence-parallel")));
}

TEST(Megatron, OnlyShardedParametersOverlapTheirGather) {
  const auto command = [](const std::string& overrides) {
    return render(load(kLlama, "mock_data: true\n" + overrides)).command;
  };
  EXPECT_THAT(command("overlap_param_gather: true\noverlap_grad_reduce: true"),
              AllOf(Contains("--overlap-param-gather"), Contains("--use-distributed-optimizer")));
  EXPECT_THAT(command("overlap_param_gather: true\nuse_distributed_optimizer: false"),
              Not(Contains("--overlap-param-gather")));
  const ExternalJob job = render(load(kLlama, "mock_data: true\nuse_torch_fsdp2: true"));
  EXPECT_EQ(job.required.at("CUDA_DEVICE_MAX_CONNECTIONS"), "8");
}

// Megatron-LM supports narrow optimizer states only in its precision-aware optimizer, which needs Adam and a
// distributed optimizer.
TEST(Megatron, NarrowMomentsUseThePrecisionAwareOptimizer) {
  const auto job_of = [](const std::string& overrides) {
    return render(load(kLlama, "mock_data: true\n" + overrides));
  };
  const ExternalJob narrow = job_of("exp_avg_dtype: fp8\nexp_avg_sq_dtype: fp16");
  EXPECT_EQ(after(narrow, "--exp-avg-dtype"), "fp8");
  EXPECT_EQ(after(narrow, "--exp-avg-sq-dtype"), "fp16");
  EXPECT_THAT(narrow.command,
              AllOf(Contains("--use-precision-aware-optimizer"), Contains("--use-distributed-optimizer")));
  EXPECT_THAT(job_of("main_grads_dtype: bf16").command, Contains("--use-precision-aware-optimizer"));
  EXPECT_THAT(job_of("").command, Not(Contains("--use-precision-aware-optimizer")));
  for (const std::string other :
       {"optimizer: muon", "use_precision_aware_optimizer: false", "use_distributed_optimizer: false"}) {
    EXPECT_THAT(error_of([&] { job_of("exp_avg_dtype: fp8\n" + other); }),
                AllOf(HasSubstr("exp_avg_dtype: fp8 only with"), HasSubstr("exp.yaml:")))
        << other;
  }
}

TEST(Megatron, MixturesHaveALayerPattern) {
  const ExternalJob job =
      render(load("framework: megatron\nmodel: deepseek_v2_lite.yaml", "mock_data: true"));
  EXPECT_EQ(after(job, "--moe-layer-freq").substr(0, 2), "([");
  EXPECT_THAT(job.command, Contains("--multi-latent-attention"));
  EXPECT_EQ(after(job, "--num-experts"), "64");
  EXPECT_THAT(job.command, Contains("--moe-router-pre-softmax"));
}

// Arguments that make experts faster are added, as in AMD Primus's presets. They do not change the trained
// function.
TEST(Megatron, ExpertsUseFastKernels) {
  const auto command = [](const std::string& model, const std::string& overrides) {
    return render(load("framework: megatron\nmodel: " + model, "mock_data: true\n" + overrides));
  };
  const ExternalJob job = command("deepseek_v3.yaml", "");
  EXPECT_THAT(job.command, AllOf(Contains("--moe-grouped-gemm"), Contains("--moe-permute-fusion")));
  EXPECT_EQ(after(job, "--moe-token-dispatcher-type"), "alltoall");
  const ExternalJob mixtral = command("mixtral_8x7B_v0.1.yaml", "");
  EXPECT_THAT(mixtral.command, AllOf(Contains("--moe-grouped-gemm"), Not(Contains("--moe-permute-fusion"))));
  const ExternalJob reported =
      command("deepseek_v3.yaml", "moe_grouped_gemm: false\nmoe_token_dispatcher_type: flex");
  EXPECT_THAT(reported.command, Not(Contains("--moe-grouped-gemm")));
  EXPECT_EQ(after(reported, "--moe-token-dispatcher-type"), "flex");
  const ExternalJob local = command("deepseek_v3.yaml", "transformer_impl: local");
  EXPECT_THAT(local.command,
              AllOf(Not(Contains("--moe-grouped-gemm")), Not(Contains("--moe-token-dispatcher-type"))));
  EXPECT_THAT(command("llama3.1_8B.yaml", "").command, Not(Contains("--moe-grouped-gemm")));
}

TEST(Megatron, DifferencesFromPrimussPresetsAreNoted) {
  const ExternalJob job =
      render(load("framework: megatron\nmodel: mixtral_8x7B_v0.1.yaml", "mock_data: true"));
  ASSERT_EQ(job.notes.size(), 1u);
  EXPECT_THAT(job.notes[0], AllOf(HasSubstr("dataloader_type cyclic, ours Megatron-LM's default"),
                                  HasSubstr("override_opt_param_scheduler true, ours false"),
                                  HasSubstr("moe_aux_loss_coeff 0.01, ours 0.02")));
  const ExternalJob reported =
      render(load("framework: megatron\nmodel: mixtral_8x7B_v0.1.yaml",
                  "mock_data: true\ndataloader_type: cyclic\nmoe_aux_loss_coeff: 0.5"));
  EXPECT_THAT(reported.notes[0], Not(AnyOf(HasSubstr("dataloader_type"), HasSubstr("moe_aux_loss_coeff"))));
}

// If PRIMUS_UPSTREAM names a checkout of AMD Primus, the table of differences is compared with its presets.
TEST(Megatron, TheTableOfDifferencesMatchesAmdPrimus) {
  const char* upstream = std::getenv("PRIMUS_UPSTREAM");
  if (!upstream) GTEST_SKIP() << "PRIMUS_UPSTREAM does not name a checkout of AMD Primus";
  config::LoadOptions options;
  options.preset_dirs = {Path(upstream) / "primus/configs"};
  options.environment = [](const std::string&) { return std::nullopt; };
  const auto has = [&](const std::string& model) {
    return config::load_experiment_text(
        experiment_text("framework: megatron\nconfig: pre_trainer.yaml\nmodel: " + model + ".yaml",
                        "mock_data: true"),
        "exp.yaml", {}, options);
  };
  const auto expect = [&](const config::Experiment& experiment, const std::string& model,
                          const std::string& key, const config::Value& value) {
    const config::Value* theirs = experiment.settings.find(key);
    EXPECT_TRUE(says(theirs ? *theirs : config::Value{}, value.is_null() ? "null" : value.text))
        << model << ": " << key << " is " << (theirs ? theirs->show() : "not set");
  };
  const config::BackendFields fields = fields_of("megatron");
  const config::Experiment deepseek = has("deepseek_v3");
  for (const char* section : {"experts", "primus_defaults"}) {
    for (const config::Member& member : fields.keys(section).members)
      expect(deepseek, "deepseek_v3", member.key, *member.value.find("value"));
  }
  for (const config::Member& model : fields.keys("primus_models").members) {
    const config::Experiment experiment = has(model.key);
    for (const config::Member& member : model.value.members)
      expect(experiment, model.key, member.key, member.value);
  }
}

TEST(Megatron, DataIsNamedWithoutItsEnding) {
  const ExternalJob job = render(load(
      kLlama, "data_path: [0.3, a.bin, 0.7, b]\nsplit: 90,10,0\ntokenizer_model: meta-llama/Llama-3.1-8B"));
  const auto at = std::find(job.command.begin(), job.command.end(), "--data-path");
  ASSERT_NE(at, job.command.end());
  EXPECT_EQ(std::vector<std::string>(at + 1, at + 5), (std::vector<std::string>{"0.3", "a", "0.7", "b"}));
  EXPECT_EQ(after(job, "--split"), "90,10,0");
  EXPECT_EQ(after(job, "--tokenizer-type"), "HuggingFaceTokenizer");
}

TEST(Megatron, CheckpointsAreSavedByDefault) {
  EXPECT_THAT(after(render(load(kLlama, "mock_data: true")), "--save"), HasSubstr("g/u/e/checkpoints"));
  EXPECT_EQ(after(render(load(kLlama, "mock_data: true\nsave: null")), "--save"), "");
}

// In the pinned version of Megatron-LM, NullTokenizer adds one id. Versions since April 2026 add none.
TEST(Megatron, ANullTokenizerHasTheNativeNumberOfIds) {
  const test::TemporaryFolder folder;
  const Path source = folder.path() / "megatron/core/tokenizers/text/libraries/null_tokenizer.py";
  const auto vocabulary = [&](const std::string& overrides) {
    const ExternalJob job = render(load(kLlama, overrides), folder.path());
    EXPECT_EQ(after(job, "--tokenizer-type"), "NullTokenizer");
    return after(job, "--vocab-size");
  };
  const std::string files = "data_path: [a]\ntokenizer_type: NullTokenizer\nvocab_size: 257";
  EXPECT_EQ(vocabulary(files), "256");
  EXPECT_EQ(vocabulary("mock_data: true\nvocab_size: 257"), "256");
  std::filesystem::create_directories(source.parent_path());
  std::ofstream(source) << "    def __init__(self, vocab_size):\n";
  EXPECT_EQ(vocabulary(files), "256");
  std::ofstream(source) << "    def __init__(self, vocab_size, eod_id=None, pad_id=-1, **kwargs):\n";
  EXPECT_EQ(vocabulary(files), "257");
}

TEST(Megatron, TheVersionDeterminesHowTheLogIsRead) {
  const test::TemporaryFolder folder;
  const auto is_mean = [&] {
    return render(load(kLlama, "mock_data: true"), folder.path()).second_line_is_mean;
  };
  EXPECT_FALSE(is_mean());
  std::filesystem::create_directories(folder.path() / "megatron/training");
  std::ofstream(folder.path() / "megatron/training/training.py")
      << "    should_reset = not is_first_iteration\n";
  EXPECT_TRUE(is_mean());
}

// If the checkpoint is missing, Megatron-LM starts from random weights and only logs a message. Primus
// refuses such a run.
TEST(Megatron, LoadNamesACheckpoint) {
  const test::TemporaryFolder folder;
  const std::string overrides = "mock_data: true\nload: " + folder.path().string();
  EXPECT_THAT(error_of([&] { render(load(kLlama, overrides)); }),
              AllOf(HasSubstr("has no latest_checkpointed_iteration.txt"), HasSubstr("exp.yaml:")));
  EXPECT_THAT(render(load(kLlama, overrides + "/elsewhere")).warnings,
              Contains(HasSubstr("is not on this machine")));
  std::ofstream(folder.path() / "latest_checkpointed_iteration.txt") << "release";
  const ExternalJob job = render(load(kLlama, overrides));
  EXPECT_EQ(after(job, "--load"), folder.path().string());
  EXPECT_TRUE(job.warnings.empty());
}

TEST(Megatron, UnsupportedSettingsAreRefusedByName) {
  const auto error = [](const std::string& module, const std::string& overrides) {
    return error_of([&] { render(load(module, overrides)); });
  };
  EXPECT_THAT(error(kLlama, "data_path: corpus.txt"),
              AllOf(HasSubstr("reads tokens from .bin/.idx"), HasSubstr("primus data tokenize")));
  EXPECT_THAT(error(kLlama, "train_minutes: 3\nmock_data: true"),
              HasSubstr("Megatron-LM needs a number of steps"));
  EXPECT_THAT(error(kLlama, ""), HasSubstr("there is no data to train on"));
  EXPECT_THAT(error(kLlama, "mock_data: true\nswiglu_limit: 7"),
              AllOf(HasSubstr("exp.yaml:"), HasSubstr("swiglu_limit: null")));
  const std::string llama4 = "framework: megatron\nmodel: llama4_17B128E.yaml";
  EXPECT_THAT(error(llama4, "mock_data: true\nseq_length: 8193"),
              AllOf(HasSubstr("chunked attention"), HasSubstr("does not scale attention")));
  EXPECT_THAT(error(llama4, "mock_data: true\nseq_length: 8192"),
              AllOf(HasSubstr("does not scale attention"), Not(HasSubstr("within chunks"))));
  EXPECT_THAT(error(kLlama, "mock_data: true\noptimizer: lion"), HasSubstr("must be one of"));
  EXPECT_THAT(error(kLlama, "mock_data: true\nlora: {dim: 8}\nattn_logit_softcapping: 30"),
              HasSubstr("3 problems"));
}

// The error does not suggest leaving `stage` out, because the run would then pre-train. Settings of adapters
// that are not enabled are accepted.
TEST(Megatron, FineTuningIsForTheNativeEngine) {
  const std::string error = error_of(
      [&] { render(load("framework: megatron\nconfig: sft_trainer.yaml\nmodel: llama3.1_8B.yaml", "")); });
  EXPECT_THAT(error, AllOf(HasSubstr("stage cannot be 'sft'"), HasSubstr("hint: choose framework: native"),
                           Not(HasSubstr("leave stage out")), Not(HasSubstr("lora"))));
  EXPECT_EQ(error_of([&] { render(load(kLlama, "mock_data: true\nlora: {enabled: false, dim: 8}")); }), "");
}

// Llama 4's attention chunks and temperature have no effect on sequences shorter than a chunk, so they are
// not refused.
TEST(Megatron, SettingsWithoutEffectOnTheseSequencesAreAccepted) {
  const ExternalJob job =
      render(load("framework: megatron\nmodel: llama4_17B128E.yaml", "mock_data: true\nseq_length: 8191"));
  EXPECT_THAT(job.command, Contains("--moe-apply-probs-on-input"));  // set by the family
  EXPECT_EQ(after(job, "--no-rope-freq"), "4");
}

// Some parts of a model have no argument of Megatron-LM, such as RoPE scalings other than Llama 3.1's (factor
// 8), caps on logits, and MXFP4. The script with_parts.py adds such parts.
TEST(Megatron, TheScriptSetsPartsWithoutAnArgument) {
  const auto parts = [](const std::string& model, const std::string& overrides = "") {
    const ExternalJob job =
        render(load("framework: megatron\nmodel: " + model, "mock_data: true\n" + overrides));
    if (!job.command[0].ends_with("backends/megatron/with_parts.py")) {
      EXPECT_TRUE(job.command[0].ends_with("pretrain_gpt.py"));
      return nlohmann::json();
    }
    EXPECT_EQ(job.command[2], "/sources/pretrain_gpt.py");
    EXPECT_THAT(job.notes, Contains(HasSubstr("with_parts.py adds")));
    return nlohmann::json::parse(job.command[1]);
  };
  EXPECT_EQ(parts("llama3.1_8B.yaml"), nlohmann::json());
  EXPECT_EQ(parts("llama3.2_1B.yaml"), nlohmann::json::parse(R"({"rope_scaling": {"factor": 32,
      "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 8192}})"));
  EXPECT_EQ(parts("llama4_17B16E.yaml", "seq_length: 4096")["rope_scaling"]["high_freq_factor"], 1);
  EXPECT_EQ(parts("gpt_oss_20B.yaml"), nlohmann::json::parse(R"({"yarn": {"rotary_scaling_factor": 32,
      "original_max_position_embeddings": 4096, "beta_fast": 32, "beta_slow": 1, "mscale": null,
      "mscale_all_dim": null, "correction_range_round_to_int": false}})"));
  EXPECT_EQ(parts("grok2.yaml"),
            nlohmann::json::parse(R"({"router_softcap": {"cap": 30}, "final_softcap": {"cap": 50}})"));
  EXPECT_EQ(parts("llama3_8B.yaml", "rope_scaling_type: linear\nrope_scaling_factor: 2.5"),
            nlohmann::json::parse(R"({"rope_interpolation": {"factor": 2.5}})"));
  EXPECT_EQ(parts("llama3_8B.yaml", "fp4: e2m1\nfp4_recipe: mxfp4"),
            nlohmann::json::parse(R"({"mxfp4": {}})"));
}

TEST(Megatron, StagesOfAPipelineMustShareTheLayers) {
  const auto error = [](const std::string& overrides) {
    return error_of([&] {
      render(load("framework: megatron\nmodel: llama3.1_405B.yaml", "mock_data: true\n" + overrides));
    });
  };
  const std::string embedding = "account_for_embedding_in_pipeline_split: true\n";
  EXPECT_THAT(error("pipeline_model_parallel_size: 8\n" + embedding),
              AllOf(HasSubstr("cannot divide 127 layers equally by 8"), HasSubstr("exp.yaml:")));
  EXPECT_THAT(error("pipeline_model_parallel_size: 8\nvirtual_pipeline_model_parallel_size: 2"),
              HasSubstr("cannot divide 126 layers equally by 8"));
  EXPECT_EQ(error("pipeline_model_parallel_size: 9"), "");
  EXPECT_EQ(error("pipeline_model_parallel_size: 8\naccount_for_embedding_in_pipeline_split: true\n"
                  "account_for_loss_in_pipeline_split: true"),
            "");
  EXPECT_EQ(error("pipeline_model_parallel_size: 8\ndecoder_first_pipeline_num_layers: 14"), "");
  EXPECT_THAT(error("pipeline_model_parallel_size: 9\nvirtual_pipeline_model_parallel_size: 3"),
              HasSubstr("cannot divide the 14 layers of a pipeline stage into 3 parts"));
}

// Layers that do not divide equally get a layout. The stages with embedding and output have fewer layers.
TEST(Megatron, UnequalStagesGetALayout) {
  const auto layout = [](const std::string& overrides) {
    const ExternalJob job =
        render(load("framework: megatron\nmodel: llama3.1_405B.yaml", "mock_data: true\n" + overrides));
    EXPECT_THAT(job.warnings, Contains(HasSubstr("layers do not divide equally")));
    return after(job, "--pipeline-model-parallel-layout");
  };
  EXPECT_EQ(layout("pipeline_model_parallel_size: 8"), "Et*15|t*16|t*16|t*16|t*16|t*16|t*16|t*15,L");
  EXPECT_EQ(layout("pipeline_model_parallel_size: 8\nnum_layers: 61"), "Et*7|t*7|t*8|t*8|t*8|t*8|t*8|t*7,L");
  EXPECT_EQ(layout("pipeline_model_parallel_size: 2\nnum_layers: 5\nmtp_num_layers: 1"), "Et*3|t*2,mL");
  const ExternalJob equal = render(load("framework: megatron\nmodel: llama3.1_405B.yaml",
                                        "mock_data: true\npipeline_model_parallel_size: 9"));
  EXPECT_EQ(after(equal, "--pipeline-model-parallel-layout"), "");
}

// AMD Primus's MiniMax-M2.5 has a layout and virtual stages, which Megatron-LM refuses together. The layout
// is kept.
TEST(Megatron, ALayoutReplacesVirtualStages) {
  const std::string both =
      "mock_data: true\npipeline_model_parallel_size: 2\nnum_layers: 8\n"
      "pipeline_model_parallel_layout: \"Et*2|t*2|t*2|t*2,L\"\n";
  const auto job = [&](const std::string& more) {
    return render(load("framework: megatron\nmodel: llama3.1_405B.yaml", both + more));
  };
  const ExternalJob virtual_stages = job("virtual_pipeline_model_parallel_size: 2");
  EXPECT_EQ(after(virtual_stages, "--num-virtual-stages-per-pipeline-rank"), "");
  EXPECT_EQ(after(virtual_stages, "--pipeline-model-parallel-layout"), "Et*2|t*2|t*2|t*2,L");
  EXPECT_THAT(virtual_stages.warnings,
              Contains(HasSubstr("virtual_pipeline_model_parallel_size 2 is left out")));
  EXPECT_THAT(job("").warnings, Not(Contains(HasSubstr("is left out: pipeline"))));
  try {
    job("num_layers_per_virtual_pipeline_stage: 2");
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("exclude each other"));
  }
}

// If a layout has no places for multi-token prediction, Primus adds places before the loss, because
// Megatron-LM requires them.
TEST(Megatron, ModulesWithoutAStageComeBeforeTheLoss) {
  const auto layout = [](const std::string& text) {
    return after(
        render(load("framework: megatron\nmodel: llama3.1_405B.yaml",
                    "mock_data: true\npipeline_model_parallel_size: 2\nnum_layers: 5\nmtp_num_layers: 2\n"
                    "pipeline_model_parallel_layout: " +
                        text)),
        "--pipeline-model-parallel-layout");
  };
  EXPECT_EQ(layout("Et*3|t*2,L"), "Et*3|t*2,mmL");
  EXPECT_EQ(layout("Et*3|t*2mmL"), "Et*3|t*2mmL");
}

// Mamba models use pretrain_mamba.py. Layer specifications of AMD Primus that Megatron-LM lacks are refused.
TEST(Megatron, StateSpaceModels) {
  const std::string mamba = "framework: megatron\nmodel: mamba_370M.yaml";
  const std::string own = "primus.backends.megatron.core.models.";
  for (const std::string& spec :
       {std::string(), "spec: [" + own + "mamba.mamba_layer_specs, mamba_stack_spec]\n"}) {
    const ExternalJob job = render(load(mamba, "mock_data: true\n" + spec));
    EXPECT_EQ(job.command.front(), "/sources/pretrain_mamba.py");
    EXPECT_EQ(after(job, "--spec"), "megatron.core.models.mamba.mamba_layer_specs");
    EXPECT_EQ(after(job, "megatron.core.models.mamba.mamba_layer_specs"), "mamba_stack_spec");
    EXPECT_EQ(after(job, "--hybrid-layer-pattern"), std::string(48, 'M'));
    EXPECT_EQ(after(job, "--mamba-state-dim"), "16");
    EXPECT_THAT(job.command, Not(Contains("--num-layers")));
  }
  const ExternalJob mixed =
      render(load(mamba, "mock_data: true\nnum_layers: 4\nhybrid_override_pattern: M*M-"));
  EXPECT_EQ(after(mixed, "--hybrid-override-pattern"), "M*M-");
  EXPECT_EQ(after(mixed, "--num-layers"), "4");
  const auto error = [&](const std::string& module, const std::string& overrides) {
    return error_of([&] { render(load(module, "mock_data: true\n" + overrides)); });
  };
  EXPECT_THAT(
      error(mamba, "spec: [" + own + "hybrid.hybrid_mamba_mla_layer_specs, hybrid_stack_spec]"),
      AllOf(HasSubstr("exp.yaml:"), HasSubstr("hybrid_mamba_mla_layer_specs, which belong to AMD Primus")));
  EXPECT_THAT(error(kLlama, "spec: [" + own + "mine, spec]"), HasSubstr("which belong to AMD Primus"));
  EXPECT_THAT(error(mamba, "multi_latent_attention: true"), HasSubstr("does not combine latent attention"));
  EXPECT_THAT(error(mamba, "mamba_expand: 4"), HasSubstr("mamba_expand cannot be 4"));
  EXPECT_THAT(error(mamba, "pipeline_model_parallel_size: 2\nvirtual_pipeline_model_parallel_size: 2"),
              HasSubstr("no virtual_pipeline_model_parallel_size for state-space models"));
  EXPECT_THAT(error("framework: native\nmodel: mamba_370M.yaml", ""),
              HasSubstr("Mamba needs state-space layers"));
}

TEST(Megatron, SettingsThatChangeOnlySpeedAreOmittedWithAWarning) {
  const ExternalJob layers =
      render(load(kLlama, "mock_data: true\nrecompute_granularity: full\nrecompute_layer_ids: '0,3'"));
  EXPECT_EQ(after(layers, "--recompute-method"), "uniform");
  EXPECT_EQ(after(layers, "--recompute-num-layers"), "1");
  EXPECT_THAT(layers.warnings, Contains(HasSubstr("recompute_layer_ids is left out")));
  for (const char* key : {"patch_zero_bubble", "patch_primus_pipeline"}) {
    const ExternalJob job = render(
        load(kLlama, "mock_data: true\npipeline_model_parallel_size: 2\n" + std::string(key) + ": true"));
    EXPECT_THAT(job.warnings, Contains(HasSubstr(std::string(key) + " is left out")));
  }
}

// The norms, gates and linear attention of Qwen3.5 become arguments.
TEST(Megatron, GatedDeltaNetworks) {
  const ExternalJob job = render(load("framework: megatron\nmodel: qwen3_5_35B_A3B.yaml", "mock_data: true"));
  EXPECT_EQ(after(job, "--experimental-attention-variant"), "gated_delta_net");
  EXPECT_EQ(after(job, "--linear-attention-freq"), "4");
  for (const char* flag : {"--attention-output-gate", "--moe-shared-expert-gate", "--apply-layernorm-1p"})
    EXPECT_THAT(job.command, Contains(flag));
  // model_type also implies --apply-layernorm-1p, without its key.
  const ExternalJob next = render(load("framework: megatron\nmodel: qwen3_next_80B_A3B.yaml",
                                       "mock_data: true\napply_layernorm_1p: null"));
  EXPECT_THAT(next.command, Contains("--apply-layernorm-1p"));
}

// Every key of an experiment becomes an argument, is refused, or is listed as left out.
TEST(Megatron, EveryKeyIsHandled) {
  const config::Experiment experiment = load(kLlama, "mock_data: true");
  const config::BackendFields fields = fields_of("megatron");
  const KeyRules rules(experiment, fields);
  for (const config::KeySpec& key : config::all_keys()) {
    const bool argument = fields.find(rules.renamed(key.name)) != nullptr;
    const bool known = rules.is_together(key.name) || fields.keys("refused").find(key.name) ||
                       !rules.reason_for(key).empty();
    EXPECT_TRUE(argument || known) << key.name;
  }
  for (const config::Member& row : fields.keys("rename").members) {
    EXPECT_TRUE(config::find_key(row.key)) << row.key;
    EXPECT_TRUE(fields.find(row.value.text)) << row.value.text;
  }
}

// Tensor parallelism needs CUDA_DEVICE_MAX_CONNECTIONS=1, which FSDP must not have. use_megatron_fsdp: false
// does not count as FSDP.
TEST(Megatron, DeviceConnectionsDependOnFsdp) {
  const ExternalJob off = render(load(kLlama, "mock_data: true\nuse_megatron_fsdp: false"));
  EXPECT_EQ(off.environment.at("CUDA_DEVICE_MAX_CONNECTIONS"), "1");
  EXPECT_TRUE(off.required.empty());
  const ExternalJob on = render(load(kLlama, "mock_data: true\nuse_megatron_fsdp: true"));
  EXPECT_EQ(on.required.at("CUDA_DEVICE_MAX_CONNECTIONS"), "8");
}

// A default that only the native engine chose is not passed to Megatron-LM.
TEST(Megatron, DefaultsOfTheNativeEngineAreNotPassedOn) {
  const config::Experiment experiment = load(kLlama, "mock_data: true");
  const config::BackendFields fields = fields_of("megatron");
  const KeyRules rules(experiment, fields);
  for (const config::KeySpec& key : config::all_keys()) {
    if (key.primus_default.empty() || !fields.find(rules.renamed(key.name))) continue;
    EXPECT_TRUE(rules.is_own_default(key.name) || rules.is_together(key.name)) << key.name;
  }
  EXPECT_THAT(render(experiment).command, Not(Contains("--tp-comm-overlap")));
  EXPECT_THAT(render(load(kLlama, "mock_data: true\ntp_comm_overlap: true")).command,
              Contains("--tp-comm-overlap"));
}

// Keys marked .own() in config/keys.def need no entry in the tables for Megatron-LM.
TEST(Megatron, NativeOnlyKeysAreRefusedOrOmitted) {
  const config::BackendFields fields = fields_of("megatron");
  const config::Experiment experiment = load(kLlama, "mock_data: true");
  const KeyRules rules(experiment, fields);
  int own = 0;
  for (const config::KeySpec& key : config::all_keys()) {
    if (key.has_meaning_for(config::Framework::kMegatron) || rules.is_together(key.name)) continue;
    if (!key.has_meaning_for(config::Framework::kNative)) continue;
    EXPECT_EQ(fields.keys("refused").find(key.name), nullptr) << key.name;
    EXPECT_EQ(fields.find(key.name), nullptr) << key.name << " is an argument of Megatron-LM, too";
    EXPECT_EQ(rules.reason_for(key), "only the native engine has it") << key.name;
    ++own;
  }
  EXPECT_GT(own, 10);
  // Keys that have no effect, or do not affect the trained weights, are left out.
  const ExternalJob left_out =
      render(load(kLlama, "mock_data: true\ndevice: cpu\nkeep_latest: 7\nlion_beta1: 0.5"));
  ASSERT_EQ(left_out.dropped.size(), 1u);
  EXPECT_THAT(left_out.dropped.at("only the native engine has it"),
              testing::UnorderedElementsAre("device", "keep_latest", "lion_beta1"));
  const std::string muon = "mock_data: true\noptimizer: muon\nmuon_scalar_optimizer: lion\n";
  EXPECT_THAT(error_of([&] { render(load(kLlama, muon + "lion_beta1: 0.5")); }),
              HasSubstr("lion_beta1 cannot be 0.5 with Megatron-LM: only the native engine has it"));
  EXPECT_THAT(error_of([&] { render(load(kLlama, muon + "lion_beta1: 0.95")); }),
              AllOf(HasSubstr("muon_scalar_optimizer"), Not(HasSubstr("lion_beta1"))));
}

// Every model preset is translated, or refused with an error that names Megatron-LM.
TEST(Megatron, EveryPresetIsRenderedOrRefused) {
  int rendered = 0, refused = 0;
  for (const auto& entry : std::filesystem::directory_iterator(preset_dirs()[0] / "models")) {
    if (!entry.is_regular_file() || entry.path().stem().string().ends_with("_base")) continue;
    const std::string name = entry.path().filename().string();
    const std::string error = error_of(
        [&] { render(load("framework: megatron\nmodel: " + name, "mock_data: true\nvocab_size: 32000")); });
    (error.empty() ? rendered : refused) += 1;
    if (!error.empty()) {
      EXPECT_THAT(error, HasSubstr("Megatron-LM")) << name;
    }
  }
  EXPECT_GT(rendered, 40);
  EXPECT_LT(refused, 30);
}

}  // namespace
}  // namespace primus::backends
