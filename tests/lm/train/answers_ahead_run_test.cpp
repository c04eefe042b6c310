// Tests whole runs that learn from answers of older weights (max_staleness): their schedule, runs in two
// parts, rewards that are computed while the run trains, stops, and settings that do not fit.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "lm/train/whole_runs.h"

namespace primus::test {
namespace {

using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

class AnswersAhead : public WholeRuns {
 protected:
  AnswersAhead()
      : WholeRuns({"mock_data=false", "bf16=false", "num_query_groups=2", "seq_length=32", "lr=1e-2",
                   "lr_decay_style=constant", "weight_decay=0", "global_batch_size=16", "micro_batch_size=4",
                   "num_generations=8", "max_completion_length=6", "train_iters=6", "stage=grpo"}) {}

  // Returns the settings of a run; `more` come last.
  std::vector<std::string> with(std::vector<std::string> more) const {
    std::string lines;
    for (int i = 0; i < 12; ++i) lines += fmt::format("{{\"prompt\": \"{}+\", \"answer\": \"{}\"}}\n", i, i);
    write_file(folder_.path() / "prompts.jsonl", lines);
    more.insert(more.begin(), {"sft_dataset_name=" + (folder_.path() / "prompts.jsonl").string(),
                               "reward=['regex:^[A-Za-z]']"});
    return more;
  }
  std::string program(const std::string& script) const {
    const Path file = folder_.path() / "reward.sh";
    write_file(file, "#!/bin/bash\n" + script);
    std::filesystem::permissions(file, std::filesystem::perms::owner_all);
    return fmt::format("reward=['program:{}']", file.string());
  }
  std::vector<double> values(const std::string& name, const char* key) const {
    std::vector<double> all;
    for (const nlohmann::json& step : metrics(name))
      if (step.contains(key)) all.push_back(step.at(key));
    return all;
  }
  double sum(const std::string& name, const char* key) const {
    const std::vector<double> all = values(name, key);
    return std::accumulate(all.begin(), all.end(), 0.0);
  }
};

TEST_F(AnswersAhead, StepsLearnFromAnswersOfOlderWeights) {
  run("zero", with({"max_staleness=0"}));
  run("none", with({}));
  EXPECT_EQ(values("zero", "lm_loss"), values("none", "lm_loss"));
  EXPECT_EQ(values("zero", "grad_norm"), values("none", "grad_norm"));
  EXPECT_THAT(values("zero", "rollout/staleness"), testing::IsEmpty());
  run("two", with({"max_staleness=2"}));
  EXPECT_THAT(values("two", "rollout/staleness"), ElementsAre(0, 1, 2, 2, 2, 2));
  // The last steps of the run generate nothing.
  EXPECT_EQ(values("two", "rollout/seconds").size(), 4U);
  // The ratios compare the current weights with those of the sampler.
  const std::vector<double> ratios = values("two", "ratio/mean");
  EXPECT_NEAR(ratios[0], 1, 1e-5);
  EXPECT_GT(std::abs(ratios[2] - 1), 1e-4);
  // With a correction, the ratios compare the weights with those of the first step for the answers, and the
  // correction compares these with the sampler.
  run("corrected", with({"max_staleness=2", "sampler_correction=token_truncate"}));
  EXPECT_THAT(values("corrected", "ratio/mean"), Each(testing::DoubleNear(1, 1e-5)));
  const std::vector<double> corrections = values("corrected", "sampling/importance_sampling_ratio/mean");
  EXPECT_NEAR(corrections[0], 1, 1e-5);
  EXPECT_GT(std::abs(corrections[2] - 1), 1e-4);
  // The steps for the answers of two batches alternate.
  run("replayed", with({"max_staleness=2", "num_iterations=2"}));
  EXPECT_THAT(values("replayed", "rollout/staleness"), ElementsAre(0, 2, 2));
}

TEST_F(AnswersAhead, RewardsRise) {
  run("rise", with({"max_staleness=3", "train_iters=90", "save_interval=90"}));
  const std::vector<double> rewards = values("rise", "reward");
  EXPECT_LT(rewards.front(), 0.6);
  // The mean reward of the last 80 answers.
  EXPECT_GT(std::accumulate(rewards.end() - 5, rewards.end(), 0.0) / 5, 0.8);
}

// Checkpoints contain the answers whose steps are still to come.
TEST_F(AnswersAhead, GoOnBitForBit) {
  for (const std::vector<std::string>& settings :
       {std::vector<std::string>{"max_staleness=1"},
        {"max_staleness=2", "beta=0.1", "temperature=0.7"},
        {"max_staleness=3", "sampler_correction=sequence_mask", "off_policy_mask_threshold=0.5"},
        {"stage=rloo", "max_staleness=2", "beta=0.05"},
        // The runs stop within the steps that learn from the same answers.
        {"max_staleness=3", "num_iterations=3"},
        {"max_staleness=3", "num_iterations=3", "sampler_correction=token_mask"}}) {
    const std::string name = fmt::format("{}", fmt::join(settings, "-"));
    SCOPED_TRACE(name);
    std::vector<std::string> all = with(settings);
    const Path whole = run(name, all);
    all.push_back("exit_interval=2");
    run(name + "-parts", all);
    run(name + "-parts", all);
    const Path parts = run(name + "-parts", all);
    for (const char* key :
         {"lm_loss", "grad_norm", "reward", "completions/mean_length", "ratio/mean", "rollout/staleness"})
      EXPECT_EQ(values(name + "-parts", key), values(name, key)) << key;
    EXPECT_EQ(values(name, "lm_loss").size(), 6U);
    for (const char* part : {"model.safetensors", "optimizer.safetensors"})
      EXPECT_EQ(read_file(parts / part), read_file(whole / part)) << part;
    EXPECT_THAT(log_of(name + "-parts"), Not(HasSubstr("the checkpoint has no answers")));
  }
}

// A program is asked again for rewards that had not arrived, and only for these.
TEST_F(AnswersAhead, RewardsOfACheckpointAreNotAskedForAgain) {
  const std::string count = "cd \"$(dirname \"$0\")\"\nwhile read -r line; do echo x >>asked; echo 1; done";
  const auto asked = [&] {
    const std::string all = read_file(folder_.path() / "asked");
    return std::ranges::count(all, 'x');
  };
  const std::vector<std::string> settings =
      with({program(count), "max_staleness=1", "train_iters=2", "reward_workers=1", "exit_interval=1"});
  run("again", settings);
  EXPECT_GE(asked(), 16);
  EXPECT_LE(asked(), 32);
  run("again", settings);
  EXPECT_GE(asked(), 32);
  EXPECT_LT(asked(), 48);
  EXPECT_THAT(values("again", "reward"), Each(1));
}

TEST_F(AnswersAhead, AChangedBoundNeedsNewAnswers) {
  run("bound", with({"max_staleness=3", "exit_interval=4"}));
  run("bound", with({"max_staleness=1"}));
  // The answers for steps 5 and 6 have the weights after steps 1 and 2, and are too old.
  EXPECT_THAT(values("bound", "rollout/staleness"), ElementsAre(0, 1, 2, 3, 0, 1));
  EXPECT_THAT(log_of("bound"), HasSubstr("step 5: the checkpoint has no answers for this step"));
  run("more", with({"exit_interval=4"}));
  run("more", with({"max_staleness=1"}));
  EXPECT_THAT(values("more", "rollout/staleness"), ElementsAre(0, 1));
}

// Each answer takes half a second. One after the other, the rewards of 8 steps take 4 s.
TEST_F(AnswersAhead, RewardsAreComputedWhileTheRunGoesOn) {
  const std::vector<std::string> settings =
      with({program("while read -r line; do sleep 0.5; echo 1; done"), "global_batch_size=4",
            "num_generations=4", "reward_workers=4", "train_iters=8", "max_staleness=4", "save_interval=8"});
  const auto began = std::chrono::steady_clock::now();
  run("overlap", settings);
  const double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  const double scoring = sum("overlap", "rollout/reward_seconds");
  EXPECT_GE(scoring, 4);
  EXPECT_LT(sum("overlap", "rollout/reward_wait_seconds"), 0.6 * scoring);
  EXPECT_LT(took, scoring);
}

// A run that is asked to stop does not wait for rewards. It saves its answers, and continues with the same
// bits.
TEST_F(AnswersAhead, AStopDoesNotWaitForRewards) {
  const std::string reward = program(
      "cd \"$(dirname \"$0\")\"\n"
      "while read -r line; do if [ -e slow ]; then sleep 300; fi; echo ${#line}; done");
  const auto settings = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all =
        with({reward, "max_staleness=2", "reward_workers=2", "reward_timeout=600", "train_iters=8"});
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  run("whole", settings({}));
  run("stopped", settings({"exit_interval=2"}));
  write_file(folder_.path() / "slow", "");
  // The run waits at the latest for the rewards of the answers of step 5.
  const auto began = std::chrono::steady_clock::now();
  std::atomic<bool> stop = false;
  std::thread stopper([&stop] {
    std::this_thread::sleep_for(std::chrono::seconds(1));
    stop = true;
  });
  const TrainingSummary summary = run_until(stop, "stopped", settings({}));
  stopper.join();
  EXPECT_TRUE(summary.interrupted);
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(20));
  std::filesystem::remove(folder_.path() / "slow");
  run("stopped", settings({}));
  for (const char* key : {"lm_loss", "grad_norm", "reward", "rollout/staleness"})
    EXPECT_EQ(values("stopped", key), values("whole", key)) << key;
}

// A program that fails ends the run at the step that learns from its answers, with the reason.
TEST_F(AnswersAhead, AFailedProgramEndsTheRun) {
  const std::string dies = program("echo 'no module x' >&2\nexit 1");
  EXPECT_THAT(refusal("dies", with({dies, "max_staleness=2"})),
              AllOf(HasSubstr("failed 5 times in a row"), HasSubstr("no module x")));
  const std::string no_reward = program("while read -r line; do echo garbage; done");
  EXPECT_THAT(refusal("garbage", with({no_reward, "max_staleness=2"})),
              HasSubstr("none of the 16 answers of the first step has a reward"));
}

TEST_F(AnswersAhead, SettingsThatDoNotFitAreRefused) {
  EXPECT_THAT(refusal("a", with({"max_staleness=1", "dynamic_sampling=true"})),
              HasSubstr("max_staleness and dynamic_sampling exclude each other"));
  EXPECT_THAT(refusal("b", with({"max_staleness=3", "num_iterations=2"})),
              AllOf(HasSubstr("max_staleness (3) is not a multiple of num_iterations (2)"),
                    HasSubstr("set max_staleness to 2")));
  EXPECT_THAT(refusal("c", with({"stage=ppo", "max_staleness=1"})),
              HasSubstr("stage ppo does not support max_staleness"));
  EXPECT_THAT(refusal("d", with({"max_off_policy_steps=1"})), HasSubstr("max_staleness"));
}

}  // namespace
}  // namespace primus::test
