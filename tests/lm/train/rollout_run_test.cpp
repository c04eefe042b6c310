// Tests whole runs that learn from rewards (stages grpo and rloo): rewards rise, a run in two parts has the
// same bits as a run at once, and settings that do not fit are refused.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "lm/train/objectives/objective.h"
#include "lm/train/whole_runs.h"

namespace primus::test {
namespace {

using testing::AllOf;
using testing::DoubleNear;
using testing::Each;
using testing::HasSubstr;

class RolloutRuns : public WholeRuns {
 protected:
  RolloutRuns()
      : WholeRuns({"mock_data=false", "bf16=false", "num_query_groups=2", "seq_length=32", "lr=1e-2",
                   "lr_decay_style=constant", "weight_decay=0", "global_batch_size=16", "micro_batch_size=4",
                   "num_generations=8", "max_completion_length=6", "train_iters=4"}) {}

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

  const std::string letters_ = "reward=['regex:^[A-Za-z]']";
};

TEST_F(RolloutRuns, RewardsRise) {
  run("grpo", {"stage=grpo", prompts(), letters_, "train_iters=90", "save_interval=90"});
  const std::vector<double> rewards = values("grpo", "reward");
  EXPECT_LT(rewards.front(), 0.6);
  // The mean reward of the last 80 answers.
  EXPECT_GT(std::accumulate(rewards.end() - 5, rewards.end(), 0.0) / 5, 0.8);
  // Each step uses answers of the current weights, so each ratio is 1. Their mean is a sum in fp32.
  EXPECT_THAT(values("grpo", "ratio/mean"), Each(DoubleNear(1.0, 1e-5)));
}

TEST_F(RolloutRuns, GoOnBitForBit) {
  const Path base = run("base", {"stage=grpo", prompts(), letters_, "train_iters=2"});
  for (const std::vector<std::string>& settings :
       {std::vector<std::string>{"stage=grpo", "beta=0.1", "temperature=0.7"},
        {"stage=rloo"},
        // The rewards of most groups of two answers are equal, so the first part discards groups.
        {"stage=grpo", "num_generations=2", "dynamic_sampling=true", "dynamic_sampling_max_batches=100"},
        {"stage=grpo", "num_generations=2", "dynamic_sampling=true", "dynamic_sampling_max_batches=100",
         "num_iterations=3"},
        // The runs stop after the second of the three steps that learn from the same answers.
        {"stage=grpo", "num_iterations=3", "beta=0.1"},
        {"stage=rloo", "num_iterations=3", "beta=0.05"}}) {
    const std::string name = fmt::format("{}", fmt::join(settings, "-"));
    SCOPED_TRACE(name);
    std::vector<std::string> all = settings;
    all.insert(all.end(), {prompts(), letters_, load(base), "finetune=true"});
    const Path whole = run(name, all);
    all.push_back("exit_interval=2");
    run(name + "-twice", all);
    all.pop_back();
    const Path twice = run(name + "-twice", all);
    for (const char* key : {"lm_loss", "grad_norm", "reward", "completions/mean_length", "ratio/mean"})
      EXPECT_EQ(values(name + "-twice", key), values(name, key)) << key;
    for (const char* part : {"model.safetensors", "optimizer.safetensors"})
      EXPECT_EQ(read_file(twice / part), read_file(whole / part)) << part;
  }
}

TEST_F(RolloutRuns, LogCompletionsRecordsTheAnswersToOnePrompt) {
  const auto samples = [&](const std::string& name) {
    std::istringstream lines(read_file(folder_.path() / "w/u" / name / "samples.jsonl"));
    std::vector<nlohmann::json> all;
    for (std::string line; std::getline(lines, line);) all.push_back(nlohmann::json::parse(line));
    return all;
  };
  const std::vector<std::string> settings = {"stage=grpo", prompts(), letters_, "log_completions=true",
                                             "log_interval=2"};
  run("whole", settings);
  const std::vector<nlohmann::json> all = samples("whole");
  ASSERT_EQ(all.size(), 16U);  // 8 answers in step 2, and 8 in step 4
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i].at("iteration"), i < 8 ? 2 : 4);
    EXPECT_EQ(all[i].at("prompt"), all[i / 8 * 8].at("prompt"));
    const std::string text = all[i].at("text");
    const bool letter = !text.empty() && std::isalpha(static_cast<unsigned char>(text[0])) != 0;
    EXPECT_EQ(all[i].at("rewards").at("regex"), letter ? 1 : 0) << text;
    EXPECT_EQ(all[i].at("finished"), all[i].at("tokens") != 6 || all[i].at("finished") == true);
  }
  // A run in two parts has the same lines.
  std::vector<std::string> parts = settings;
  parts.emplace_back("exit_interval=3");
  run("parts", parts);
  run("parts", settings);
  std::vector<nlohmann::json> again = samples("parts");
  ASSERT_EQ(again.size(), all.size());
  for (std::size_t i = 0; i < all.size(); ++i) EXPECT_EQ(again[i].at("text"), all[i].at("text"));
}

TEST_F(RolloutRuns, DynamicSamplingReplacesGroupsWithEqualRewards) {
  const std::vector<std::string> settings = {"stage=grpo", prompts(), letters_, "num_generations=2"};
  std::vector<std::string> dynamic = settings;
  dynamic.insert(dynamic.end(), {"dynamic_sampling=true", "dynamic_sampling_max_batches=100"});
  run("plain", settings);
  const Path saved = run("dynamic", dynamic);
  EXPECT_THAT(values("plain", "frac_reward_zero_std"), testing::Contains(testing::Gt(0)));
  EXPECT_THAT(values("dynamic", "frac_reward_zero_std"), Each(0));
  EXPECT_THAT(values("dynamic", "dynamic_sampling/batches"), Each(testing::Ge(1)));
  EXPECT_THAT(values("dynamic", "dynamic_sampling/discarded"),
              testing::Contains(AllOf(testing::Gt(0), testing::Lt(1))));
  EXPECT_THAT(read_file(saved / "optimizer.safetensors"), HasSubstr("rollouts.next_prompt"));
}

TEST_F(RolloutRuns, RlooHasNoDynamicSampling) {
  run("rloo", {"stage=rloo", prompts(), letters_, "dynamic_sampling=true", "train_iters=1"});
  EXPECT_FALSE(metrics("rloo").front().contains("dynamic_sampling/batches"));
}

TEST_F(RolloutRuns, DynamicSamplingEndsIfAllRewardsAreEqual) {
  EXPECT_THAT(refusal("equal", {"stage=grpo", prompts(), "reward=['regex:^']", "dynamic_sampling=true",
                                "dynamic_sampling_max_batches=3"}),
              AllOf(HasSubstr("step 1: each of the 6 groups that were generated in 3 attempts"),
                    HasSubstr("dynamic_sampling: false")));
}

TEST_F(RolloutRuns, SeveralStepsLearnFromTheSameAnswers) {
  run("twice", {"stage=grpo", prompts(), letters_, "num_iterations=2", "train_iters=60", "save_interval=60"});
  const std::vector<double> rewards = values("twice", "reward"), ratios = values("twice", "ratio/mean");
  double drift = 0;
  for (std::size_t s = 0; s < rewards.size(); s += 2) {
    EXPECT_EQ(rewards[s], rewards[s + 1]) << s;
    EXPECT_NEAR(ratios[s], 1, 1e-5) << s;
    drift = std::max(drift, std::abs(ratios[s + 1] - 1));
  }
  EXPECT_GT(drift, 1e-3);
  EXPECT_GT(std::accumulate(rewards.end() - 6, rewards.end(), 0.0) / 6, rewards.front() + 0.2);
}

// The difference between the log-probabilities of the sampler and of the training pass is exactly 0 in every
// step, although rows pack several answers, and prompts are read in passes of their own.
TEST_F(RolloutRuns, WithBatchInvariantTheSamplerHasTheBitsOfTheTrainer) {
  for (const char* type : {"bf16=false", "bf16=true"}) {
    for (const char* kind : {"batch_invariant=true", "batch_invariant=false"}) {
      const std::string name = fmt::format("{}-{}", type, kind);
      run(name,
          {"stage=grpo", prompts(), letters_, type, kind, "device=cpu", "temperature=0.7",
           "sampler_correction=token_truncate", "model_type=mixtral", "num_experts=4", "moe_router_topk=2"});
      const std::vector<double> differences = values(name, "sampling/sampling_logp_difference/mean");
      EXPECT_EQ(differences.size(), 4U);
      if (std::string_view(kind) == "batch_invariant=true") {
        EXPECT_THAT(differences, Each(0.0));
        EXPECT_THAT(values(name, "sampling/importance_sampling_ratio/mean"), Each(1.0));
        EXPECT_THAT(values(name, "ratio/mean"), Each(1.0));
      } else if (std::string_view(type) == "bf16=false") {
        // In bf16, rounding may hide the different order of additions in so small a model.
        EXPECT_GT(*std::ranges::max_element(differences), 0);
      }
    }
  }
}

TEST_F(RolloutRuns, BatchInvariantRefusesWhatItCannotKeep) {
  const std::vector<std::string> base = {"stage=grpo", prompts(), letters_, "batch_invariant=true"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), base.begin(), base.end());
    return more;
  };
  EXPECT_THAT(refusal("capacity", with({"device=cpu", "model_type=mixtral", "num_experts=4",
                                        "moe_router_topk=2", "moe_expert_capacity_factor=1"})),
              HasSubstr("experts with a limited capacity drop tokens"));
  EXPECT_THAT(refusal("fp8", with({"device=cpu", "bf16=true", "fp8=hybrid", "fp8_recipe=tensorwise"})),
              HasSubstr("fp8 and fp4 products scale"));
}

// A checkpoint without optimizer states has no answers, so the next step generates new ones.
TEST_F(RolloutRuns, WithoutSavedAnswersTheNextStepGeneratesNewOnes) {
  const std::vector<std::string> settings = {"stage=grpo", prompts(), letters_, "num_iterations=4"};
  std::vector<std::string> first = settings, second = settings;
  first.insert(first.end(), {"no_save_optim=true", "exit_interval=2"});
  second.push_back("no_load_optim=true");
  run("bare", first);
  run("bare", second);
  const std::vector<nlohmann::json> steps = metrics("bare");
  ASSERT_EQ(steps.size(), 4U);
  EXPECT_TRUE(steps[0].contains("rollout/seconds"));
  EXPECT_FALSE(steps[1].contains("rollout/seconds"));
  EXPECT_TRUE(steps[2].contains("rollout/seconds"));
  EXPECT_FALSE(steps[3].contains("rollout/seconds"));
  EXPECT_NEAR(steps[2].at("ratio/mean").get<double>(), 1, 1e-5);
}

TEST_F(RolloutRuns, SettingsThatDoNotFitAreRefused) {
  EXPECT_THAT(refusal("a", {"stage=grpo", prompts()}), HasSubstr("no reward function"));
  EXPECT_THAT(refusal("b", {"stage=grpo", prompts(), "reward=[missing:answer]"}), HasSubstr("missing"));
  EXPECT_THAT(refusal("c", {"stage=grpo", prompts(), letters_, "eval_iters=1"}),
              HasSubstr("has no evaluation"));
  EXPECT_THAT(refusal("d", {"stage=grpo", prompts(), letters_, "global_batch_size=12"}),
              AllOf(HasSubstr("12 answers per step"), HasSubstr("num_generations")));
  EXPECT_THAT(refusal("e", {"stage=grpo", prompts(), "reward=['exact:no_such_column']"}),
              HasSubstr("no record has the column 'no_such_column'"));
  EXPECT_THAT(refusal("f", {"stage=grpo", prompts(), "reward=[regex:1, exact:answr]"}),
              HasSubstr("did you mean 'answer'?"));
}

// The changed data explain the difference, not a setting that was changed at the same time.
TEST_F(RolloutRuns, ChangedDataAreNamedBeforeChangedSettings) {
  run("a", {"stage=grpo", prompts(), letters_, "train_iters=1"});
  const std::string other = folder_.write("other.jsonl", "{\"prompt\": \"a\"}\n{\"prompt\": \"b\"}\n");
  EXPECT_THAT(refusal("a", {"stage=grpo", "sft_dataset_name=" + other, letters_, "max_completion_length=4"}),
              AllOf(HasSubstr("another set of prompts"), HasSubstr("other.jsonl")));
}

TEST_F(RolloutRuns, AFinishedRunNamesChangedRewardsAndLosses) {
  const auto changes_of = [&](const std::vector<std::string>& changed) {
    std::vector<std::string> settings = {"stage=grpo",
                                         prompts(),
                                         letters_,
                                         "train_iters=1",
                                         "mock_data=false",
                                         "bf16=false",
                                         "lr=1e-2",
                                         "seq_length=32",
                                         "global_batch_size=16",
                                         "num_layers=1",
                                         "hidden_size=32",
                                         "num_attention_heads=4",
                                         "tokenizer_type=ByteTokenizer",
                                         "max_completion_length=2",
                                         "eval_iters=0"};
    settings.insert(settings.end(), changed.begin(), changed.end());
    const std::string yaml =
        "work_group: w\nuser_name: u\nexp_name: changed\nworkspace: " + folder_.path().string() +
        "\nmodules:\n  pre_trainer:\n    framework: native\n    overrides: {}\n";
    Logger log(LogOptions{});
    Trainer trainer(config::load_experiment_text(yaml, "experiment.yaml", settings), families_, log);
    trainer.prepare();
    const std::atomic<bool> stop = false;
    return trainer.run(stop).unused_changes;
  };
  changes_of({});
  EXPECT_THAT(changes_of({"reward_workers=2"}), testing::IsEmpty());
  EXPECT_THAT(changes_of({"reward=regex:^[0-9]", "loss_type=grpo", "beta=0.1", "num_generations=4"}),
              testing::IsSupersetOf({HasSubstr("reward was "), HasSubstr("loss_type was "),
                                     HasSubstr("beta was "), HasSubstr("num_generations was ")}));
}

TEST_F(RolloutRuns, ThePlanOfARunChecksRewardFunctions) {
  const std::vector<std::string> settings = {"stage=grpo",
                                             prompts(),
                                             "reward=exakt:answer",
                                             "mock_data=false",
                                             "eval_iters=0",
                                             "num_layers=1",
                                             "hidden_size=32",
                                             "num_attention_heads=4",
                                             "tokenizer_type=ByteTokenizer",
                                             "global_batch_size=16"};
  const config::Experiment experiment = config::load_experiment_text(
      "exp_name: plan\nmodules:\n  pre_trainer:\n    framework: native\n    overrides: {}\n",
      "experiment.yaml", settings);
  try {
    make_objective(experiment.trainer)->plan(experiment, families_, 1);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.render(), AllOf(HasSubstr("'exakt:answer' names no kind"), HasSubstr("reward=exakt")));
  }
}

}  // namespace
}  // namespace primus::test
