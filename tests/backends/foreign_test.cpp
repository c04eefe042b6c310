// Tests of experiments with TorchTitan's and MaxText's settings: written to their configuration files, and
// translated to native keys.
#include "config/foreign.h"

#include <gmock/gmock.h>

#include <cmath>
#include <numbers>

#include "config/readers.h"
#include "config/trainer_config.h"
#include "lm/optimizer/schedule.h"
#include "support.h"

namespace primus::backends {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;

const std::string kTitan = "framework: torchtitan\nconfig: pre_trainer.yaml\nmodel: llama3.1_8B.yaml";
const std::string kTitanSteps =
    "training: {steps: 50, seq_len: 4096, local_batch_size: 2, mock_data: false}\n"
    "optimizer: {lr: 3e-4}\nlr_scheduler: {warmup_steps: 10, min_lr_factor: 0.1}\n"
    "activation_checkpoint: {mode: full}\nprimus_turbo: {enable_primus_turbo: true}";
const std::string kMax = "framework: maxtext\nconfig: pre_trainer.yaml\nmodel: llama3_8B.yaml";

TEST(TorchTitan, SettingsBecomeItsFile) {
  const ExternalJob job = render(load(kTitan, kTitanSteps, {"training.steps=60", "lr=1e-4"}));
  ASSERT_EQ(job.files.size(), 1u);
  EXPECT_EQ(job.command[0], "-m");
  EXPECT_EQ(job.command[1], "torchtitan.train");
  EXPECT_EQ(job.command[3], job.files[0].path.string());
  const config::Value toml = config::read_toml(config::make_source("x.toml", job.files[0].text));
  const auto text = [&](const char* path) { return config::find_path(toml, path)->text; };
  EXPECT_EQ(text("training.steps"), "60");
  EXPECT_EQ(text("training.seq_len"), "4096");
  EXPECT_EQ(text("model.flavor"), "8B");
  EXPECT_DOUBLE_EQ(config::find_path(toml, "optimizer.lr")->real, 1e-4);  // translated from the native key
  EXPECT_EQ(text("activation_checkpoint.mode"), "full");
  EXPECT_THAT(text("job.dump_folder"), HasSubstr("g/u/e"));
  EXPECT_FALSE(
      config::find_path(toml, "primus_turbo.enable_primus_turbo"));  // TorchTitan itself refuses this key
  EXPECT_THAT(job.dropped.at("Primus-Turbo's kernels"), Contains("primus_turbo.enable_primus_turbo"));
}

TEST(TorchTitan, AHubNameIsNoFolder) {
  const test::TemporaryFolder folder;
  const std::string name = "\nmodel: {hf_assets_path: meta-llama/Llama-3.1-8B}";
  setenv("DATA_PATH", folder.path().c_str(), 1);
  const ExternalJob missing = render(load(kTitan, kTitanSteps + name));
  EXPECT_THAT(missing.warnings,
              Contains(HasSubstr("download_hf_assets.py --repo_id meta-llama/Llama-3.1-8B --assets tokenizer "
                                 "--local_dir " +
                                 (folder.path() / "torchtitan").string())));
  std::filesystem::create_directories(folder.path() / "torchtitan/Llama-3.1-8B");
  const ExternalJob there = render(load(kTitan, kTitanSteps + name));
  unsetenv("DATA_PATH");
  EXPECT_THAT(there.warnings, Not(Contains(HasSubstr("hf_assets_path"))));
  EXPECT_THAT(there.files[0].text, HasSubstr((folder.path() / "torchtitan/Llama-3.1-8B").string()));
}

TEST(MaxText, AmdGpusGetAmdPrimussEnvironment) {
  const config::Experiment experiment = load(kMax, "steps: 5");
  const auto fields = fields_of("maxtext");
  EXPECT_FALSE(render_job(experiment, fields, "/sources", {}).environment.contains("XLA_FLAGS"));
  const auto environment =
      render_job(experiment, fields, "/sources", {.nodes = 1, .ranks_per_node = 8, .amd_model = "MI355X"})
          .environment;
  EXPECT_THAT(environment.at("XLA_FLAGS"), HasSubstr("--xla_gpu_autotune_level=4"));
  EXPECT_EQ(environment.at("XLA_PYTHON_CLIENT_MEM_FRACTION"), ".97");
  EXPECT_EQ(environment.at("RCCL_WARP_SPEED_AUTO"), "0");
  EXPECT_FALSE(environment.contains("HSA_NO_SCRATCH_RECLAIM"));
}

TEST(TorchTitan, ChecksTheMeshAndTheBatchAgainstTheRanks) {
  const auto warnings = [](const std::string& settings, std::int64_t ranks) {
    std::vector<std::string> refused;
    const ExternalJob job =
        render_job(load(kTitan, settings), fields_of("torchtitan"), "/sources", {.ranks_per_node = ranks});
    for (const std::string& warning : job.warnings)
      if (warning.find("will refuse this") != std::string::npos) refused.push_back(warning);
    return refused;
  };
  EXPECT_THAT(warnings("parallelism: {tensor_parallel_degree: 2}", 8), testing::IsEmpty());
  EXPECT_THAT(warnings("parallelism: {tensor_parallel_degree: 3}", 1), testing::IsEmpty());
  EXPECT_THAT(warnings("parallelism: {tensor_parallel_degree: 3}", 8),
              testing::ElementsAre("8 ranks are not a multiple of the product of "
                                   "parallelism.tensor_parallel_degree=3: TorchTitan will refuse this"));
  EXPECT_THAT(warnings("parallelism: {data_parallel_shard_degree: 4, tensor_parallel_degree: 4}", 8),
              testing::ElementsAre(HasSubstr("8 ranks are not equal to the product of")));
  EXPECT_THAT(warnings("parallelism: {expert_parallel_degree: 8, tensor_parallel_degree: 2}", 8),
              testing::IsEmpty());
  const std::string batch = "training: {local_batch_size: 4, global_batch_size: ";
  EXPECT_THAT(warnings(batch + "32}\nparallelism: {tensor_parallel_degree: 2}", 8), testing::IsEmpty());
  EXPECT_THAT(warnings(batch + "100}\nparallelism: {tensor_parallel_degree: 2}", 8),
              testing::ElementsAre(HasSubstr("training.global_batch_size 100 is not a multiple of 16")));
}

TEST(TorchTitan, UnknownSettingsAreRefused) {
  const auto error = [](const std::string& overrides) { return error_of([&] { load(kTitan, overrides); }); };
  EXPECT_THAT(error("training: {step: 50}"),
              AllOf(HasSubstr("unknown key 'training.step'"), HasSubstr("training.steps")));
  EXPECT_THAT(error("training: {steps: many}"), HasSubstr("training.steps expects an integer"));
  EXPECT_THAT(error("activation_checkpoint: {mode: ful}"), HasSubstr("did you mean 'full'?"));
}

TEST(TorchTitan, SettingsAreReadNatively) {
  const config::Experiment e =
      load(kTitan, kTitanSteps, {"framework=native", "data_path=corpus.txt", "vocab_size=128256"}, 4);
  const config::TrainerConfig& t = e.trainer;
  EXPECT_EQ(t.train_iters, 50);
  EXPECT_EQ(t.seq_length, 4096);
  EXPECT_EQ(t.micro_batch_size, 2);
  EXPECT_EQ(t.global_batch_size, 8);  // 2 on each of 4 ranks
  EXPECT_EQ(t.data_parallel_sharding_strategy, "optim_grads_params");
  EXPECT_EQ(t.hidden_size, 4096);  // from the preset for llama3 8B
  EXPECT_EQ(t.num_layers, 32);
  EXPECT_EQ(t.recompute_granularity, "full");
  EXPECT_DOUBLE_EQ(t.adam_beta2, 0.95);  // TorchTitan's default, not the native one
  EXPECT_DOUBLE_EQ(t.weight_decay, 0.1);
  EXPECT_EQ(t.data_path, std::vector<std::string>{"corpus.txt"});
  EXPECT_THAT(e.warnings, Contains(HasSubstr("applies weight decay to all parameters")));
  EXPECT_THAT(e.warnings, Contains(HasSubstr("Primus-Turbo's kernels")));
  EXPECT_THAT(e.provenance_of("train_iters").describe(), HasSubstr("exp.yaml:"));
}

// Returns TorchTitan's learning rate of a step, from its documentation: warm-up from lr / warmup_steps, then
// a decay that is one step ahead.
double titan_rate(int step, double lr, int warmup, int total, int decay, double minimum,
                  const std::string& type) {
  const int stable = total + 1 - warmup - decay;
  if (step < warmup) return lr * (step + 1) / warmup;
  if (step < warmup + stable) return lr;
  const double p = static_cast<double>(step + 1 - warmup - stable) / decay;
  const double left = type == "linear" ? 1 - p
                      : type == "sqrt" ? 1 - std::sqrt(p)
                                       : 0.5 * (1 + std::cos(std::numbers::pi * p));
  return lr * (minimum + (1 - minimum) * left);
}

TEST(TorchTitan, LearningRatesAreEqual) {
  for (const std::string type : {"linear", "sqrt", "cosine"}) {
    for (const int warmup : {0, 1, 10}) {
      for (const std::string ratio : {"null", "0.4"}) {
        const config::Experiment e =
            load(kTitan,
                 "training: {steps: 50}\noptimizer: {lr: 3e-4}\nlr_scheduler: {warmup_steps: " +
                     std::to_string(warmup) + ", min_lr_factor: 0.1, decay_type: " + type +
                     ", decay_ratio: " + ratio + "}",
                 {"framework=native", "mock_data=true", "vocab_size=1000"});
        const Schedule schedule(e.trainer);
        const int decay = ratio == "null" ? 50 - warmup : 20;
        for (int step = 0; step < 50; ++step) {
          const double there = titan_rate(step, 3e-4, warmup, 50, decay, 0.1, type);
          EXPECT_NEAR(schedule.learning_rate(step), there, 3e-4 * 1e-12)
              << type << " " << warmup << " " << ratio << " " << step;
        }
      }
    }
  }
}

TEST(TorchTitan, SettingsThatTheNativeEngineLacksAreRefused) {
  const auto error = [](const std::string& overrides) {
    return error_of([&] {
      load(kTitan, overrides, {"framework=native", "mock_data=true", "vocab_size=1000"});
    });
  };
  EXPECT_THAT(error("optimizer: {name: Adam}"),
              AllOf(HasSubstr("exp.yaml:"), HasSubstr("adds weight decay to the gradient")));
  EXPECT_THAT(error("training: {enable_cpu_offload: true}"), HasSubstr("keeps weights on the device"));
  EXPECT_THAT(error("model: {flavor: debugmodel_flex_attn}"), HasSubstr("no preset for this model"));
}

TEST(TorchTitan, Float8OfLinearLayersIsFp8) {
  const auto read = [](const std::string& float8, const std::string& converter = "quantize.linear.float8") {
    return load(kTitan,
                "model: {converters: [" + converter + "]}\nquantize: {linear: {float8: {" + float8 + "}}}",
                {"framework=native", "mock_data=true", "vocab_size=1000"});
  };
  const config::Experiment e = read("recipe_name: tensorwise, filter_fqns: [output, router.gate]");
  EXPECT_EQ(e.trainer->fp8, "hybrid");
  EXPECT_EQ(e.trainer->fp8_recipe, "tensorwise");
  EXPECT_THAT(error_of([&] { read("recipe_name: rowwise"); }),
              AllOf(HasSubstr("exp.yaml:"), HasSubstr("one scale per tensor")));
  EXPECT_THAT(error_of([&] { read("filter_fqns: [wq]"); }),
              AllOf(HasSubstr("exp.yaml:"), HasSubstr("in all linear layers of blocks")));
  EXPECT_THAT(error_of([&] { read("", "quantize.grouped_mm.float8"); }),
              AllOf(HasSubstr("exp.yaml:"), HasSubstr("the native engine does not support")));
}

TEST(MaxText, SettingsBecomeItsFile) {
  const ExternalJob job = render(
      load(kMax, "steps: 50\ndataset_type: synthetic\nhf_access_token: secret\nadam_eps: 1e-8", {"lr=1e-4"}));
  ASSERT_EQ(job.files.size(), 1u);
  EXPECT_TRUE(job.process_per_node);
  const config::Value yaml = config::read_yaml(config::make_source("x.yml", job.files[0].text));
  EXPECT_EQ(yaml.find("model_name")->text, "llama3-8b");
  EXPECT_EQ(yaml.find("steps")->integer, 50);
  EXPECT_EQ(yaml.find("run_name")->text, "e");
  EXPECT_EQ(yaml.find("base_config")->text, "base.yml");
  EXPECT_DOUBLE_EQ(yaml.find("learning_rate")->real, 1e-4);
  EXPECT_THAT(job.files[0].text, Not(HasSubstr("secret")));
}

TEST(MaxText, ChecksTheMeshAgainstTheRanks) {
  const auto refused = [](const std::string& settings, std::int64_t ranks) {
    for (const std::string& warning :
         render_job(load(kMax, settings), fields_of("maxtext"), "/sources", {.ranks_per_node = ranks})
             .warnings)
      if (warning.find("MaxText will refuse this") != std::string::npos) return true;
    return false;
  };
  EXPECT_TRUE(refused("ici_tensor_parallelism: 3", 8));
  EXPECT_TRUE(refused("ici_fsdp_parallelism: 8", 4));
  EXPECT_FALSE(refused("ici_fsdp_parallelism: 8\ndcn_data_parallelism: 2", 16));
  EXPECT_FALSE(refused("ici_fsdp_parallelism: -1", 8));
}

// On a CPU, MaxText would require the variables of a cluster even with one node. Primus therefore sets
// skip_jax_distributed_system for one node.
TEST(MaxText, OneProcessOnACpuNeedsNoRendezvous) {
  const auto file = [](const std::string& overrides, std::int64_t nodes) {
    return render_job(load(kMax, overrides), fields_of("maxtext"), "/sources", {.nodes = nodes})
        .files.at(0)
        .text;
  };
  EXPECT_THAT(file("hardware: cpu", 1), HasSubstr("skip_jax_distributed_system: true"));
  EXPECT_THAT(file("hardware: cpu", 2), Not(HasSubstr("skip_jax_distributed_system")));
  EXPECT_THAT(file("hardware: gpu", 1), Not(HasSubstr("skip_jax_distributed_system")));
}

TEST(MaxText, SettingsAreReadNatively) {
  const config::Experiment e = load(kMax,
                                    "steps: 50\ndataset_type: synthetic\nper_device_batch_size: 4\n"
                                    "max_target_length: 2048\nici_fsdp_parallelism: 8\nlearning_rate: 1e-4",
                                    {"framework=native", "vocab_size=1000"}, 8);
  const config::TrainerConfig& t = e.trainer;
  EXPECT_EQ(t.train_iters, 50);
  EXPECT_EQ(t.global_batch_size, 32);
  EXPECT_EQ(t.micro_batch_size, 4);
  EXPECT_EQ(t.num_query_groups, 8);
  EXPECT_TRUE(t.mock_data);
  EXPECT_EQ(t.data_parallel_sharding_strategy, "optim_grads_params");
  // MaxText's cosine decay reaches a tenth of the learning rate in the last step. The warm-up from 0 takes a
  // tenth of the steps.
  const Schedule schedule(t);
  for (int step = 0; step < 50; ++step) {
    const double part = (step - 5) / 44.0;
    const double there =
        step < 5 ? 1e-4 * step / 5 : 1e-5 + 9e-5 * 0.5 * (1 + std::cos(std::numbers::pi * part));
    EXPECT_NEAR(schedule.learning_rate(step), there, 1e-16) << step;
  }
}

TEST(MaxText, ItsSettingsBecomeMegatronsArguments) {
  const config::Experiment e = load(kMax, "steps: 50\ndataset_type: synthetic\nper_device_batch_size: 1",
                                    {"framework=megatron", "vocab_size=1000"});
  const ExternalJob job = render(e);
  EXPECT_THAT(job.command, AllOf(Contains("--swiglu"), Contains("--mock-data"), Contains("--num-layers")));
}

// Each setting in the tables is a setting of its framework, and each of TorchTitan's settings is in a table.
TEST(Tables, NameExistingSettings) {
  for (const std::string framework : {"torchtitan", "maxtext"}) {
    const config::BackendFields fields = fields_of(framework);
    for (const config::Member& row : fields.keys("settings").members) {
      EXPECT_TRUE(fields.find(row.key)) << framework << " has no " << row.key;
      if (const config::Value* key = row.value.find("key")) {
        EXPECT_TRUE(config::find_key(key->text)) << key->text;
      }
    }
    for (const config::Member& model : fields.keys("models").members) {
      EXPECT_TRUE(std::filesystem::exists(preset_dirs()[0] / "models" / (model.key + ".yaml"))) << model.key;
    }
  }
  const config::BackendFields titan = fields_of("torchtitan");
  for (const auto& [name, field] : titan.all()) {
    bool known = titan.keys("settings").find(name) != nullptr;
    for (const config::Member& reason : titan.keys("nothing").members) {
      for (const config::Value& item : reason.value.items)
        known = known || name.starts_with(item.text.substr(0, item.text.size() - 1));
    }
    EXPECT_TRUE(known) << name;
  }
}

// A resolved experiment loads back, without the access token of Hugging Face.
TEST(Foreign, TheResolvedExperimentLoadsBack) {
  const config::Experiment e = load(kMax, "steps: 50\nhf_access_token: secret");
  const std::string text = config::to_yaml(e);
  EXPECT_THAT(text, Not(HasSubstr("secret")));
  config::LoadOptions options;
  options.preset_dirs = preset_dirs();
  const config::Experiment again = config::load_experiment_text(text, "again.yaml", {}, options);
  EXPECT_EQ(again.framework, "maxtext");
  EXPECT_EQ(again.trainer->train_iters, 50);
  EXPECT_EQ(render(again).files[0].text, render(e).files[0].text);
}

TEST(Foreign, NativeKeysUnderAnotherFrameworkAreNamed) {
  EXPECT_THAT(error_of([] {
                render(load("framework: torchtitan\nmodel: llama3.1_8B.yaml", "train_iters: 5\nlr: 1e-4"));
              }),
              HasSubstr("Primus cannot translate them for"));
}

}  // namespace
}  // namespace primus::backends
