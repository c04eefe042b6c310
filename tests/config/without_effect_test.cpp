// Tests the warnings about settings that have no effect or contradict each other.
#include "config/validation/without_effect.h"

#include <gmock/gmock.h>

#include <string>
#include <utility>
#include <vector>

#include "support.h"

namespace primus::config {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(WithoutEffect, ContradictionsAndLostSettingsGiveAWarning) {
  const auto warnings = [](const std::vector<std::string>& arguments) {
    std::string all;
    for (const std::string& warning : load_text(experiment_text(""), arguments).warnings)
      all += warning + "\n";
    return all;
  };
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"main_grads_dtype=bf16", "grad_reduce_in_bf16=false"}, "grad_reduce_in_bf16: false has no effect"},
      {{"split=90,10"}, "split has an effect only with data_path"},
      {{"reset_position_ids=true"}, "reset_position_ids has an effect only with data_path"},
      {{"no_load_optim=true", "auto_continue_train=false"}, "no_load_optim has an effect only with load"},
      {{"disable_last_saving=true", "train_iters=4", "save_interval=9"}, "no checkpoint is written"},
      {{"recompute_granularity=full", "recompute_method=block", "recompute_num_layers=0"},
       "nothing is recomputed"},
      {{"pipeline_model_parallel_size=2", "decoder_first_pipeline_num_layers=2"},
       "the other pipeline stages have no layer: 2 of 2"},
      {{"env.WORLD_SIZE=8"}, "env.WORLD_SIZE has no effect"},
      {{"env.OMP_NUM_THREADS=1", "num_threads=2"}, "env.OMP_NUM_THREADS has no effect with num_threads"}};
  for (const auto& [arguments, warning] : cases)
    EXPECT_NE(warnings(arguments).find(warning), std::string::npos) << warning << ": " << warnings(arguments);
  EXPECT_EQ(warnings({"main_grads_dtype=bf16"}), "");
  EXPECT_EQ(warnings({"no_load_optim=true", "load=x"}).find("no_load_optim"), std::string::npos);
  EXPECT_EQ(warnings({"disable_last_saving=true", "save_interval=4"}), "");
  EXPECT_THAT(warnings({"lora.dim=4", "lora.enabled=false"}),
              HasSubstr("lora.dim has no effect with lora.enabled: false"));
  EXPECT_TRUE(load_text(experiment_text(""), {"sequence_parallel=true"}).ignored.empty());
  EXPECT_FALSE(load_text(experiment_text(""), {"sequence_parallel=false"}).ignored.empty());
}

TEST(WithoutEffect, KeysOfOtherLossesOfPairsGiveAWarning) {
  const auto warnings = [](const std::string& stage, const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"stage=" + stage, "mock_data=false", "sft_dataset_name=p.jsonl",
                                          "load=model"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    std::string all;
    for (const std::string& warning : load_text(experiment_text(""), arguments).warnings)
      all += warning + "\n";
    return all;
  };
  struct Case {
    std::string stage, setting, without, with;  // `with`: a choice of losses that gives `setting` an effect
  };
  const std::vector<Case> cases = {
      {"dpo", "label_smoothing=0.1", "loss_type=[sigmoid]", "loss_type=[sigmoid, robust]"},
      {"dpo", "label_smoothing=0.1", "loss_type=[ipo]", "loss_type=[aot]"},
      {"cpo", "label_smoothing=0.1", "loss_type=[hinge]", "loss_type=[simpo]"},
      {"cpo", "label_smoothing=0.1", "loss_type=[ipo]", "loss_type=[sigmoid]"},
      {"dpo", "discopop_tau=0.2", "loss_type=[sigmoid]", "loss_type=[discopop]"},
      {"cpo", "simpo_gamma=1", "loss_type=[sigmoid]", "loss_type=[simpo]"},
      {"dpo", "beta=0.9", "loss_type=[sft]", "loss_type=[sft, sigmoid]"},
      {"dpo", "ld_alpha=0.5", "loss_type=[sft]", "loss_type=[nca_pair]"},
      {"dpo", "f_divergence_type=js_divergence", "loss_type=[nca_pair, aot]", "loss_type=[nca_pair, hinge]"}};
  for (const auto& [stage, setting, without, with] : cases) {
    SCOPED_TRACE(stage + " " + setting);
    EXPECT_THAT(warnings(stage, {setting, without}), HasSubstr(" has an effect only with "));
    EXPECT_EQ(warnings(stage, {setting, with}), "");
  }
  EXPECT_EQ(warnings("dpo", {}), "");
}

TEST(WithoutEffect, KeysOfOtherLossesOfAnswersGiveAWarning) {
  const auto warns = [](const std::vector<std::string>& settings, const std::string& text) {
    std::vector<std::string> arguments = {"mock_data=false", "sft_dataset_name=p.jsonl", "load=model",
                                          "reward=[exact:answer]"};
    arguments.insert(arguments.end(), settings.begin(), settings.end());
    for (const std::string& warning : load_text(experiment_text(""), arguments).warnings)
      if (warning.find(text) != std::string::npos) return true;
    return false;
  };
  const std::string estimator = "kl_estimator has an effect only with beta above 0";
  EXPECT_TRUE(warns({"stage=ppo", "kl_estimator=k3", "beta=0"}, estimator));
  EXPECT_FALSE(warns({"stage=ppo", "kl_estimator=k3"}, estimator));
  // Only stages with a value model have several steps of one pass.
  const std::string steps = "epsilon has an effect only with num_iterations above 1";
  EXPECT_TRUE(warns({"stage=grpo", "epsilon=0.1", "num_mini_batches=2"}, steps));
  EXPECT_FALSE(warns({"stage=ppo", "epsilon=0.1", "num_mini_batches=2"}, steps));
  const std::string clips = "has an effect only with a loss_type that clips";
  for (const std::string key : {"epsilon", "epsilon_high"}) {
    EXPECT_TRUE(
        warns({"stage=grpo", key + "=0.1", "num_iterations=2", "loss_type=[sapo]"}, key + " " + clips));
    EXPECT_TRUE(
        warns({"stage=grpo", key + "=0.1", "num_iterations=2", "loss_type=[vespo]"}, key + " " + clips));
    EXPECT_FALSE(warns({"stage=grpo", key + "=0.1", "num_iterations=2"}, clips));
  }
  EXPECT_TRUE(warns({"stage=grpo", "epsilon=0.1", "epsilon_high=5", "num_iterations=2", "loss_type=[cispo]"},
                    "epsilon " + clips));
  EXPECT_FALSE(warns({"stage=grpo", "epsilon_high=5", "num_iterations=2", "loss_type=[cispo]"}, clips));
}

TEST(WithoutEffect, AnswersOfOlderWeightsHaveRatios) {
  const auto warnings = [](std::vector<std::string> settings) {
    settings.insert(settings.begin(), {"mock_data=false", "sft_dataset_name=p.jsonl", "load=model",
                                       "reward=[exact:answer]", "stage=grpo"});
    return load_text(experiment_text(""), settings).warnings;
  };
  const std::string stale = "max_staleness=2", corrects = "sampler_correction=token_mask";
  for (const char* setting : {"epsilon=0.1", "epsilon_high=0.3", "delta=2", "off_policy_mask_threshold=1",
                              "importance_sampling_level=sequence"}) {
    EXPECT_THAT(warnings({setting}), ElementsAre(HasSubstr("or with max_staleness"))) << setting;
    EXPECT_THAT(warnings({setting, stale}), IsEmpty()) << setting;
  }
  // A correction compares the training pass with the sampler, and the ratio is 1.
  EXPECT_THAT(warnings({"epsilon=0.1", stale, corrects}),
              ElementsAre(HasSubstr("or without sampler_correction")));
  EXPECT_THAT(warnings({"epsilon=0.1", stale, corrects, "num_iterations=2"}), IsEmpty());
  EXPECT_THAT(warnings({"off_policy_mask_threshold=1", stale, corrects}), IsEmpty());
  // A run must limit how much tokens of old answers count.
  const auto unlimited = ElementsAre(HasSubstr("epsilon (1) does not limit the ratio"));
  EXPECT_THAT(warnings({"epsilon=1", stale}), unlimited);
  EXPECT_THAT(warnings({"epsilon=1", stale, "stage=rloo"}),
              testing::Contains(HasSubstr("epsilon (1) does not limit the ratio")));
  EXPECT_THAT(warnings({"epsilon=1", stale, "off_policy_mask_threshold=1"}), IsEmpty());
  EXPECT_THAT(warnings({stale, corrects}), IsEmpty());
  EXPECT_THAT(warnings({stale, "loss_type=[sapo]"}), IsEmpty());
  EXPECT_THAT(warnings({stale, "stage=sft"}),
              testing::Contains(HasSubstr("max_staleness has an effect only")));
}

TEST(WithoutEffect, KeysOfGeneratedAnswersNeedAShareOfOwnAnswers) {
  const auto warnings = [](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"stage=distill", "teacher=x", "sft_dataset_name=data.jsonl",
                                       "mock_data=false", "eval_iters=0", "hf_path=null"});
    return load_text(experiment_text(""), arguments).warnings;
  };
  EXPECT_THAT(warnings({"max_completion_length=8"}),
              ElementsAre(HasSubstr("only with distillation_on_policy_share above 0")));
  EXPECT_THAT(warnings({"max_completion_length=8", "top_p=0.9", "lmbda=0.5"}), IsEmpty());
  EXPECT_THAT(warnings({"lmbda=0.5", "enable_packed_sequences=false"}),
              ElementsAre(HasSubstr("no effect with distillation_on_policy_share: each step packs")));
}

TEST(WithoutEffect, SettingsOfTheFileWithoutEffectAreListedForPlansOnly) {
  const Experiment experiment =
      load_text(experiment_text("      split: 90,10\n"
                                "      no_load_optim: true\n"
                                "      auto_continue_train: false\n"
                                "      train_iters: 4\n"
                                "      lr_warmup_iters: 0\n"
                                "      save_interval: 9\n"
                                "      disable_last_saving: true\n"));
  EXPECT_TRUE(experiment.warnings.empty()) << experiment.warnings.front();
  const std::vector<std::string> unused = unused_settings_of_file(experiment);
  ASSERT_EQ(unused.size(), 3U);
  EXPECT_EQ(unused[0],
            "exp.yaml:14:14: split has an effect only with data_path: mock_data has random tokens");
  EXPECT_THAT(unused[1], HasSubstr("no_load_optim has an effect only with load"));
  EXPECT_THAT(unused[2], HasSubstr("no checkpoint is written"));
  EXPECT_TRUE(unused_settings_of_file(load_text(experiment_text(""))).empty());
}

TEST(WithoutEffect, VariablesThatTheExperimentSetsDoNotReplaceItsPlaceholders) {
  const auto warnings = [](const std::string& text, const Variables& variables = {}) {
    return load_text(text, {}, variables).warnings;
  };
  const std::string rate = experiment_text("      lr: ${MY_LR:0.1}\n");
  const std::vector<std::string> unset = warnings("env: {MY_LR: 0.5}\n" + rate);
  ASSERT_EQ(unset.size(), 1U);
  EXPECT_THAT(unset[0], HasSubstr("exp.yaml:1:14: env.MY_LR has no effect on ${MY_LR} in this file"));
  EXPECT_EQ(warnings("env: {MY_LR: 0.5}\n" + rate, {{"MY_LR", "0.25"}}).size(), 1U);
  EXPECT_TRUE(warnings("env: {MY_LR: 0.5}\n" + rate, {{"MY_LR", "0.5"}}).empty());
  // A default of a variable, and escaped text.
  EXPECT_TRUE(warnings("env: {DEBUG: \"${DEBUG:WARN}\"}\n" + experiment_text("")).empty());
  EXPECT_TRUE(warnings("env: {MY: 1}\n" + experiment_text("      wandb_project: $${MY}\n")).empty());
}

}  // namespace
}  // namespace primus::config
