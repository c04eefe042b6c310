// Tests what PPO computes from answers, and whole runs with a value model (stage ppo): rewards rise, a run in
// two parts has the same bits as a run at once, and settings that do not fit are refused. tests/lm/verify
// compares losses and gradients with TRL; rollout_test.cpp compares meshes with one device.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "config/trainer_config.h"
#include "lm/generate/model_folder.h"
#include "lm/train/objectives/objective.h"
#include "lm/train/objectives/rules/ppo_estimates.h"
#include "lm/train/rank_training.h"
#include "lm/train/whole_runs.h"

namespace primus::test {
namespace {

using testing::AllOf;
using testing::DoubleNear;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

TEST(PpoEstimates, TheScoreIsTheRewardOfTheTokenAfterTheAnswer) {
  PpoAnswer answer{.log_probs = {-1, -2}, .reference = {-1.5, -1}, .values = {0.5, 0.25, 1}, .score = 2};
  set_rewards({.kl_coef = 0.1}, answer);
  EXPECT_THAT(answer.rewards, ElementsAre(DoubleNear(-0.05, 1e-12), DoubleNear(0.1, 1e-12), 2));
  set_advantages({.gamma = 0.5, .lam = 0.5}, answer);
  // Errors of the values: -0.05 + 0.125 - 0.5, 0.1 + 0.5 - 0.25, and 2 - 1; each advantage adds a quarter of
  // the next one.
  EXPECT_THAT(answer.advantages,
              ElementsAre(DoubleNear(-0.425 + 0.6 / 4, 1e-12), DoubleNear(0.35 + 0.25, 1e-12), 1));
  EXPECT_THAT(answer.returns,
              ElementsAre(DoubleNear(0.225, 1e-12), DoubleNear(0.85, 1e-12), DoubleNear(2, 1e-12)));
}

TEST(PpoEstimates, AnAnswerOfTheMaxLengthHasItsScoreAtTheLastToken) {
  PpoAnswer answer{.log_probs = {-1, -2}, .reference = {}, .values = {0, 0}, .score = 2};
  set_rewards({.kl_coef = 0}, answer);
  EXPECT_THAT(answer.rewards, ElementsAre(0, 2));
}

TEST(PpoEstimates, TheSecondEstimatorOfTheDivergenceIsNeverNegative) {
  const PpoAnswer answer{.log_probs = {-1, -2}, .reference = {-2, -1}};
  EXPECT_THAT(divergences_of({.kl_estimator = "k3"}, answer),
              ElementsAre(DoubleNear(std::exp(-1.0), 1e-12), DoubleNear(std::exp(1.0) - 2, 1e-12)));
  EXPECT_THAT(divergences_of({}, answer), ElementsAre(1, -1));
}

class PpoRuns : public WholeRuns {
 protected:
  PpoRuns() : WholeRuns(settings()) {}

  static std::vector<std::string> settings() {
    return {"mock_data=false",
            "bf16=false",
            "num_query_groups=2",
            "seq_length=32",
            "lr=1e-2",
            "lr_decay_style=constant",
            "weight_decay=0",
            "global_batch_size=16",
            "micro_batch_size=4",
            "num_generations=1",
            "max_completion_length=6",
            "train_iters=4",
            "stage=ppo",
            "reward=['regex:^[A-Za-z]']"};
  }
  // Returns the number of steps that a dry run shows.
  std::int64_t planned_steps(const std::vector<std::string>& overrides) const {
    std::vector<std::string> all = settings();
    all.insert(all.end(), overrides.begin(), overrides.end());
    const config::Experiment experiment =
        config::load_experiment_text(yaml_of("plan"), "experiment.yaml", all);
    Logger quiet(LogOptions{.console_level = LogLevel::kError});
    return Trainer(experiment, families_, quiet).forecast().steps;
  }

  std::string prompts() const {
    std::string lines;
    for (int i = 0; i < 12; ++i) lines += fmt::format("{{\"prompt\": \"{}+\", \"answer\": \"{}\"}}\n", i, i);
    write_file(folder_.path() / "prompts.jsonl", lines);
    return "sft_dataset_name=" + (folder_.path() / "prompts.jsonl").string();
  }
  std::vector<double> values(const std::string& name, const char* key) const {
    std::vector<double> all;
    for (const nlohmann::json& step : metrics(name)) all.push_back(step.at(key));
    return all;
  }
  // Trains a reward model for one step.
  Path reward_model() {
    write_file(folder_.path() / "pairs.jsonl",
               "{\"prompt\": \"1+\", \"chosen\": \"a\", \"rejected\": \"b\"}\n"
               "{\"prompt\": \"2+\", \"chosen\": \"a\", \"rejected\": \"b\"}\n");
    return run("scores", {"stage=reward", "sft_dataset_name=" + (folder_.path() / "pairs.jsonl").string(),
                          "train_iters=1", "seq_length=320", "max_position_embeddings=512",
                          "global_batch_size=4", "micro_batch_size=2", "reward=[]"});
  }
};

TEST_F(PpoRuns, RewardsRise) {
  run("ppo", {prompts(), "train_iters=120", "save_interval=120", "num_iterations=2"});
  const std::vector<double> rewards = values("ppo", "reward");
  EXPECT_LT(rewards.front(), 0.6);
  EXPECT_GT(std::accumulate(rewards.end() - 10, rewards.end(), 0.0) / 10, 0.8);
  // Every other step uses answers of the current weights, so each ratio is 1.
  const std::vector<double> ratios = values("ppo", "ratio/mean");
  for (std::size_t s = 0; s < ratios.size(); s += 2) EXPECT_NEAR(ratios[s], 1, 1e-5) << s;
  EXPECT_GT(std::ranges::max(ratios), 1 + 1e-3);
  const std::vector<double> errors = values("ppo", "value_loss");
  EXPECT_LT(errors.back(), errors.front());
  // The values approach the returns, which grow with the rewards.
  EXPECT_GT(values("ppo", "returns/mean").back(), 0.6);
  EXPECT_NEAR(values("ppo", "values/mean").back(), values("ppo", "returns/mean").back(), 0.3);
  for (const char* key :
       {"kl", "rlhf_reward", "explained_variance", "returns/mean", "values/mean", "value_clip_ratio",
        "entropy", "policy_loss", "approx_kl", "clip_ratio/region_mean"})
    EXPECT_TRUE(metrics("ppo").front().contains(key)) << key;
}

TEST_F(PpoRuns, GoOnBitForBit) {
  const Path base = run("base", {prompts(), "train_iters=2"});
  const Path scores = reward_model();
  for (const std::vector<std::string>& settings :
       {std::vector<std::string>{"temperature=0.7"},
        // The runs stop after the second of the four steps that learn from the same answers.
        {"num_iterations=2", "num_mini_batches=2", "missing_eos_penalty=1"},
        {"num_iterations=3", "lora={enabled: true, dim: 4, alpha: 8}"},
        {"num_iterations=3", "bf16=true", "kl_coef=0", "value_load=" + scores.string()}}) {
    const std::string name = fmt::format("run-{}", settings.size() + settings.back().size());
    SCOPED_TRACE(fmt::format("{}", fmt::join(settings, " ")));
    std::vector<std::string> all = settings;
    all.insert(all.end(), {prompts(), load(base), "finetune=true"});
    const Path whole = run(name, all);
    all.push_back("exit_interval=2");
    run(name + "-twice", all);
    all.pop_back();
    const Path twice = run(name + "-twice", all);
    for (const char* key : {"lm_loss", "grad_norm", "reward", "value_loss", "ratio/mean", "rlhf_reward",
                            "returns/mean", "explained_variance"})
      EXPECT_EQ(values(name + "-twice", key), values(name, key)) << key;
    for (const char* part : {"model.safetensors", "optimizer.safetensors"})
      EXPECT_EQ(read_file(twice / part), read_file(whole / part)) << part;
    EXPECT_THAT(read_file(whole / "optimizer.safetensors"), HasSubstr("value_model.score.weight"));
  }
}

TEST_F(PpoRuns, ACheckpointWithoutOptimizerStatesHasNoValueModel) {
  run("run", {prompts(), "train_iters=2", "no_save_optim=true"});
  EXPECT_THAT(log_of("run"), Not(HasSubstr("starts from its first weights again")));
  run("run", {prompts(), "train_iters=4", "no_save_optim=true"});
  EXPECT_THAT(log_of("run"), HasSubstr("the value model is stored with the optimizer states, which are not "
                                       "loaded: it starts from its first weights again"));
}

TEST_F(PpoRuns, TheValueModelStartsFromTheModelOfValueLoad) {
  const Path base = run("base", {prompts(), "train_iters=1"});
  const std::vector<std::string> settings = {prompts(), load(base), "finetune=true", "train_iters=1"};
  std::vector<std::string> loaded = settings;
  loaded.push_back("value_load=" + reward_model().string());
  run("new", settings);
  run("loaded", loaded);
  EXPECT_EQ(values("loaded", "reward"), values("new", "reward"));
  EXPECT_NE(values("loaded", "values/mean"), values("new", "values/mean"));
}

// 12 prompts for a batch of 16 answers. Four steps learn from the same answers.
TEST_F(PpoRuns, AnEpochWithFewerPromptsThanABatchUsesAllAnswersEquallyOften) {
  const std::vector<std::string> settings = {prompts(), "train_iters=null", "train_epochs=1",
                                             "num_iterations=2", "num_mini_batches=2"};
  EXPECT_EQ(planned_steps(settings), 4);
  run("short", settings);
  EXPECT_EQ(metrics("short").size(), 4U);
  EXPECT_THAT(log_of("short"),
              AllOf(HasSubstr("1 epoch of the training data is 48 samples: 4 steps"),
                    HasSubstr("global_batch_size is 16, but the training data has only 12 samples")));
}

TEST_F(PpoRuns, SettingsThatDoNotFitAreRefused) {
  const auto refused = [&](const std::vector<std::string>& settings) {
    std::vector<std::string> all = settings;
    all.push_back(prompts());
    return refusal("refused", all);
  };
  EXPECT_THAT(refused({"num_mini_batches=3"}),
              AllOf(HasSubstr("cannot be divided into 3 parts"), HasSubstr("a multiple of 12")));
  EXPECT_THAT(refused({"value_load=" + (folder_.path() / "none").string()}), HasSubstr("has no model"));
  EXPECT_THAT(refused({"mtp_num_layers=1"}), HasSubstr("stage ppo does not support multi-token prediction"));
  EXPECT_THAT(refused({"stage=grpo"}), HasSubstr("stage grpo compares the answers to one prompt"));
  EXPECT_THAT(refused({"reward=[]"}), HasSubstr("no reward function"));
  EXPECT_THAT(refusal("environment", {"stage=ppo", prompts(), "environment=./env.py"}),
              HasSubstr("stage ppo does not support environments"));
}

TEST_F(PpoRuns, AMeshThatCannotDivideTheValueModelIsRefused) {
  const std::vector<std::string> settings = {"stage=ppo",
                                             "reward=['regex:^[A-Za-z]']",
                                             prompts(),
                                             "value_load=" + reward_model().string(),
                                             "pipeline_model_parallel_size=4",
                                             "num_layers=4",
                                             "hidden_size=32",
                                             "num_attention_heads=4",
                                             "tokenizer_type=ByteTokenizer",
                                             "micro_batch_size=1",
                                             "global_batch_size=16",
                                             "seq_length=32",
                                             "mock_data=false",
                                             "eval_iters=0",
                                             "max_completion_length=6"};
  const config::Experiment experiment = config::load_experiment_text(
      "exp_name: mesh\nmodules:\n  pre_trainer:\n    framework: native\n    overrides: {}\n",
      "experiment.yaml", settings);
  SessionSettings session = tiny_settings();
  const ModelFolder value_model = find_model_folder(*experiment.trainer->value_load);
  session.model.vocab = load_model_config(value_model, builtin_families()).vocab;
  try {
    make_objective(experiment.trainer)->prepare_session(experiment, 4, session);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.render(),
                AllOf(HasSubstr("the value model"), HasSubstr("fewer than the 4 pipeline parts"),
                      HasSubstr("pipeline_model_parallel_size")));
  }
}

}  // namespace
}  // namespace primus::test
