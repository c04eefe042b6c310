// Compares the MLPerf log of a run with the requirements of MLPerf's rules (mlcommons/logging,
// compliance_checker/training_6.1.0: common, closed_common, closed_llama31_8b, closed_gpt_oss_20b).
#include "lm/train/mlperf_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "base/error.h"
#include "config/trainer_config.h"

namespace primus {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Variables = std::map<std::string, std::string>;

struct Described {
  MlperfOptions options;
  std::map<std::string, MlperfValue> entries;
  std::vector<std::string> notes;
};

// Returns the settings of two MLPerf examples of AMD Primus.
config::TrainerConfig published() {
  config::TrainerConfig c;
  c.stage = "mlperf_pretrain";
  c.target_eval_loss = 3.34;
  c.train_iters = 1200000;
  c.global_batch_size = 32;
  c.micro_batch_size = 2;
  c.seq_length = 8192;
  c.eval_iters = 32;
  c.lr = 8e-4;
  c.min_lr = 8e-5;
  c.lr_warmup_iters = 128;
  c.lr_decay_iters = 1199872;
  c.weight_decay = 0.1;
  c.adam_beta2 = 0.95;
  c.adam_eps = 1e-5;
  return c;
}

Described described(const config::TrainerConfig& c, const Variables& variables, int ranks = 8,
                    const engine::MeshShape& shape = {},
                    engine::Sharding sharding = engine::Sharding::kNone) {
  Described d;
  d.options =
      mlperf_options_of(c, shape, ranks, sharding, RunFolder({"/runs", "g", "u", "run"}), d.notes,
                        [&](const std::string& name) -> std::optional<std::string> {
                          const auto found = variables.find(name);
                          return found == variables.end() ? std::nullopt : std::optional(found->second);
                        });
  for (const auto& [key, value] : d.options.entries) {
    EXPECT_TRUE(d.entries.emplace(key, value).second) << key << " is logged twice";
  }
  return d;
}

const Variables kSubmission = {{"MLLOG_SUBMISSION_BENCHMARK", "gpt_oss_20b"},
                               {"MLLOG_SUBMISSION_ORG", "AMD"},
                               {"MLLOG_SUBMISSION_DIVISION", "closed"},
                               {"MLLOG_SUBMISSION_PLATFORM", "MI355X"}};

TEST(MlperfRun, HasEveryKeyOfTheRules) {
  const Described d = described(published(), kSubmission);
  const std::map<std::string, MlperfValue> required = {
      {"submission_benchmark", "gpt_oss_20b"},
      {"submission_org", "AMD"},
      {"submission_division", "closed"},
      {"submission_platform", "MI355X"},
      {"train_samples", std::int64_t{1200000 * 32}},
      {"eval_samples", std::int64_t{1024}},
      {"global_batch_size", std::int64_t{32}},
      {"max_sequence_length", std::int64_t{8192}},
      {"opt_name", "adamw"},
      {"opt_base_learning_rate", 8e-4},
      {"opt_end_learning_rate", 8e-5},
      {"opt_learning_rate_warmup_steps", std::int64_t{128}},
      {"opt_learning_rate_decay_steps", std::int64_t{1200000 - 128}},
      {"opt_learning_rate_decay_schedule", "cosine with linear warmup"},
      {"opt_adamw_beta_1", 0.9},
      {"opt_adamw_beta_2", 0.95},
      {"opt_adamw_epsilon", 1e-5},
      {"opt_adamw_weight_decay", 0.1},
      {"opt_gradient_clip_norm", 1.0},
      {"gradient_accumulation_steps", std::int64_t{2}},
      {"max_steps", std::int64_t{1200000}},
      {"seed", std::int64_t{1234}},
      {"config_filename", "experiment.yaml"},
      {"micro_batch_size", std::int64_t{2}},
      {"tensor_parallelism", std::int64_t{1}},
      {"pipeline_parallelism", std::int64_t{1}},
      {"context_parallelism", std::int64_t{1}},
      {"expert_parallelism", std::int64_t{1}},
      {"lowest_numerical_precision_in_linear", "bfloat16"},
      {"lowest_numerical_precision_in_attn", "bfloat16"},
      {"lowest_numerical_precision_in_comm", "fp32"}};
  for (const auto& [key, value] : required) {
    ASSERT_TRUE(d.entries.contains(key)) << key;
    EXPECT_EQ(d.entries.at(key), value) << key;
  }
  EXPECT_EQ(d.entries.at("target_accuracy"), MlperfValue(3.34));
  EXPECT_THAT(d.notes, IsEmpty());
  // The rules compare the decay with the warm-up, so the log must contain the warm-up first.
  const auto place = [&](std::string_view key) {
    return std::ranges::find(d.options.entries, key, [](const auto& entry) { return entry.first; });
  };
  EXPECT_LT(place("opt_learning_rate_warmup_steps"), place("opt_learning_rate_decay_steps"));
}

TEST(MlperfRun, ReportsActualValuesAndNotVariables) {
  config::TrainerConfig c = published();
  c.fp8 = "e4m3";
  c.optimizer = "lion";
  c.lr_decay_style = "linear";
  c.target_eval_loss = std::nullopt;
  const Described d =
      described(c, {{"MLLOG_TENSOR_PARALLELISM", "1"}, {"MLLOG_LOWEST_NUMERICAL_PRECISION_LINEAR", "mxfp4"}},
                16, {.tensor = 2, .context = 2, .pipeline = 2, .expert = 4});
  EXPECT_EQ(d.entries.at("tensor_parallelism"), MlperfValue(std::int64_t{2}));
  EXPECT_EQ(d.entries.at("context_parallelism"), MlperfValue(std::int64_t{2}));
  EXPECT_EQ(d.entries.at("pipeline_parallelism"), MlperfValue(std::int64_t{2}));
  EXPECT_EQ(d.entries.at("expert_parallelism"), MlperfValue(std::int64_t{4}));
  EXPECT_EQ(d.entries.at("gradient_accumulation_steps"), MlperfValue(std::int64_t{8}));
  EXPECT_EQ(d.entries.at("lowest_numerical_precision_in_linear"), MlperfValue("fp8"));
  EXPECT_EQ(d.entries.at("opt_name"), MlperfValue("lion"));
  EXPECT_EQ(d.entries.at("opt_weight_decay"), MlperfValue(0.1));
  EXPECT_FALSE(d.entries.contains("opt_adamw_beta_1"));
  EXPECT_EQ(d.entries.at("opt_learning_rate_decay_schedule"), MlperfValue("linear with linear warmup"));
  EXPECT_FALSE(d.entries.contains("target_accuracy"));
  EXPECT_THAT(d.notes, ElementsAre(HasSubstr("set MLLOG_SUBMISSION_BENCHMARK, MLLOG_SUBMISSION_ORG, "
                                             "MLLOG_SUBMISSION_DIVISION, MLLOG_SUBMISSION_PLATFORM in the")));
}

TEST(MlperfRun, ReportsThePrecisionOfExchanges) {
  const auto sent = [](const config::TrainerConfig& c, const engine::MeshShape& shape = {},
                       engine::Sharding sharding = engine::Sharding::kNone) {
    return described(c, {}, 8, shape, sharding).entries.at("lowest_numerical_precision_in_comm");
  };
  config::TrainerConfig c = published();
  const MlperfValue wide("fp32"), narrow("bfloat16");
  EXPECT_EQ(sent(c), wide) << "gradients";
  EXPECT_EQ(sent(c, {}, engine::Sharding::kStates), narrow) << "weights";
  EXPECT_EQ(sent(c, {.tensor = 2}), narrow) << "activations";
  EXPECT_EQ(sent(c, {.expert = 2}), narrow);
  c.grad_reduce_in_bf16 = true;
  EXPECT_EQ(sent(c), narrow);
  c.grad_reduce_in_bf16 = false;
  c.main_grads_dtype = "bf16";
  EXPECT_EQ(sent(c), narrow);
  c.main_grads_dtype = "fp32";
  c.bf16 = false;
  EXPECT_EQ(sent(c, {.tensor = 2}), wide);
}

TEST(MlperfRun, ReadsFileAndIntervalFromTheEnvironment) {
  const MlperfOptions plain = described(published(), {}).options;
  EXPECT_EQ(plain.file, Path("/runs/g/u/run/mlperf.log"));
  EXPECT_EQ(plain.loss_interval, 1);
  EXPECT_TRUE(plain.throughput);
  EXPECT_EQ(described(published(), {{"MLLOG_CONFIG_FILENAME", "config.sh"}}).entries.at("config_filename"),
            MlperfValue("config.sh"));
  const MlperfOptions chosen = described(published(), {{"MLLOG_OUTPUT_FILE", "/results/log.out"},
                                                       {"MLLOG_TRAIN_LOSS_LOG_FREQ", "0"},
                                                       {"MLLOG_BLOCK_TPUT_LOG", "0"}})
                                   .options;
  EXPECT_EQ(chosen.file, Path("/results/log.out"));
  EXPECT_EQ(chosen.loss_interval, 0);
  EXPECT_FALSE(chosen.throughput);
  EXPECT_EQ(described(published(), {{"MLLOG_OUTPUT_FILE", "/results/log.out"}, {"MLLOG_SAVE_TO_FILE", "0"}})
                .options.file,
            plain.file);
  for (const char* text : {"often", "-1", "1.5", "2x", ""}) {
    EXPECT_THROW(described(published(), {{"MLLOG_TRAIN_LOSS_LOG_FREQ", text}}), Error) << text;
  }
}

}  // namespace
}  // namespace primus
