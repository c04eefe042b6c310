// Tests whole runs whose answers are conversations with an environment: a model learns to call a
// tool, a run in two parts has the same bits as a run at once, and failures of the environment give no
// reward.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include "lm/train/whole_runs.h"

namespace primus::test {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::Each;
using testing::Gt;
using testing::HasSubstr;

class EpisodeRuns : public WholeRuns {
 protected:
  EpisodeRuns()
      : WholeRuns({"mock_data=false", "bf16=false", "num_query_groups=2", "seq_length=24", "lr=1e-2",
                   "lr_decay_style=constant", "weight_decay=0", "global_batch_size=32", "micro_batch_size=8",
                   "num_generations=8", "max_completion_length=8", "train_iters=4", "stage=grpo"}) {
    write_tokenizer();
    std::string lines;
    for (int i = 0; i < 8; ++i) lines += fmt::format("{{\"prompt\": \"?\", \"secret\": \"{}\"}}\n", i % 4);
    write_file(folder_.path() / "prompts.jsonl", lines);
  }

  // Writes a tokenizer of a few characters. A call of the tool is one token, so that a model with random
  // weights calls the tool by chance.
  void write_tokenizer() const {
    nlohmann::json vocab, added = nlohmann::json::array();
    int id = 0;
    for (const char* symbol : {"0", "1", "2", "3", "?"}) vocab[symbol] = id++;
    for (const char* token : {"<end>", "<tool_call>{\"name\": \"secret\"}</tool_call>"}) {
      added.push_back({{"id", id++},
                       {"content", token},
                       {"special", true},
                       {"single_word", false},
                       {"lstrip", false},
                       {"rstrip", false},
                       {"normalized", false}});
    }
    const nlohmann::json bytes{
        {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
    const nlohmann::json tokenizer{
        {"version", "1.0"},
        {"added_tokens", added},
        {"pre_tokenizer", bytes},
        {"decoder", bytes},
        {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", nlohmann::json::array()}}}};
    std::filesystem::create_directories(folder_.path() / "tokenizer");
    write_file(folder_.path() / "tokenizer/tokenizer.json", tokenizer.dump());
    write_file(folder_.path() / "tokenizer/tokenizer_config.json",
               nlohmann::json{{"eos_token", "<end>"}}.dump());
  }

  // Returns the settings of a run with an environment of this name.
  std::vector<std::string> settings(const std::string& name, const std::string& script,
                                    const std::vector<std::string>& more = {}) const {
    const Path file = folder_.path() / name;
    write_file(file, "#!/bin/bash\n" + script);
    std::filesystem::permissions(file, std::filesystem::perms::owner_all);
    std::vector<std::string> all = {
        "tokenizer_type=HuggingFaceTokenizer", "tokenizer_model=" + (folder_.path() / "tokenizer").string(),
        "sft_dataset_name=" + (folder_.path() / "prompts.jsonl").string(), "environment=" + file.string()};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  std::vector<double> values(const std::string& name, const char* key) const {
    std::vector<double> all;
    for (const nlohmann::json& step : metrics(name)) all.push_back(step.at(key));
    return all;
  }

  // The reward is 0.1 for a call of the tool, 0.4 if the turn of the call ends in time, 0.7 if the next turn
  // begins with the secret that the tool has returned, and 1 if it has no more tokens.
  const std::string secret_ = R"sh(while read -r line; do
  secret=${line##*\"secret\":\"}
  secret=${secret:0:1}
  if [[ $line == *'"turn":1,'* && $line == *'"last":false'* && $line == *'"tool_calls"'* ]]; then
    echo "{\"messages\": [{\"role\": \"tool\", \"content\": \"$secret\"}]}"
  elif [[ $line != *'"tool_calls"'* ]]; then
    echo '{"done": true, "reward": 0}'
  elif [[ $line == *"\"role\":\"assistant\",\"content\":\"$secret\"}],\"finished\":true"* ]]; then
    echo '{"done": true, "reward": 1}'
  elif [[ $line == *'"turn":1,'* ]]; then
    echo '{"done": true, "reward": 0.1}'
  elif [[ $line == *"\"role\":\"assistant\",\"content\":\"$secret"* ]]; then
    echo '{"done": true, "reward": 0.7}'
  else
    echo '{"done": true, "reward": 0.4}'
  fi
done
)sh";
};

// Most episodes then contain a call in a turn that ends in time, and a second turn.
TEST_F(EpisodeRuns, AModelLearnsToCallATool) {
  run("learns", settings("env.sh", secret_,
                         {"train_iters=120", "save_interval=120", "batch_invariant=true", "device=cpu"}));
  // Returns the largest mean of ten consecutive steps.
  const auto best = [this](const char* key) {
    const std::vector<double> all = values("learns", key);
    double most = 0;
    for (auto end = all.begin() + 10; end <= all.end(); ++end)
      most = std::max(most, std::accumulate(end - 10, end, 0.0) / 10);
    return most;
  };
  EXPECT_LT(values("learns", "reward").front(), 0.25);
  EXPECT_GT(best("reward"), 0.4);
  EXPECT_LT(values("learns", "episodes/turns").front(), 1.6);
  EXPECT_GT(best("episodes/turns"), 1.8);
  EXPECT_THAT(values("learns", "episodes/failed"), Each(0));
  EXPECT_EQ(values("learns", "rewards/environment/mean"), values("learns", "reward"));
}

// The difference between the log-probabilities of the sampler and of the training pass is exactly 0, although
// the sampler reads prompts, turns and appended tokens in passes of their own.
TEST_F(EpisodeRuns, WithBatchInvariantTheSamplerHasTheBitsOfTheTrainer) {
  for (const char* type : {"bf16=false", "bf16=true"}) {
    run(type, settings("env.sh", secret_,
                       {type, "batch_invariant=true", "device=cpu", "temperature=0.7",
                        "sampler_correction=token_truncate"}));
    EXPECT_THAT(values(type, "sampling/sampling_logp_difference/mean"), Each(0.0));
    EXPECT_THAT(values(type, "ratio/mean"), Each(1.0));
    EXPECT_THAT(values(type, "episodes/turns"), Each(Gt(1)));
  }
}

// The episodes of a step that was not finished begin again, and have the same tokens. With num_iterations,
// the run stops between steps that learn from the same episodes.
TEST_F(EpisodeRuns, GoOnBitForBit) {
  for (const std::vector<std::string>& more : {std::vector<std::string>{"beta=0.1"},
                                               {"num_iterations=3"},
                                               {"stage=rloo"},
                                               {"max_staleness=2", "reward=['regex:^[0-3]']"}}) {
    const std::string name = more.front();
    SCOPED_TRACE(name);
    std::vector<std::string> all = settings("env.sh", secret_, more);
    all.insert(all.end(), {"batch_invariant=true", "device=cpu"});
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

TEST_F(EpisodeRuns, TheRewardsOfFunctionsAndOfTheEnvironmentAreAdded) {
  run("both",
      settings("env.sh", secret_,
               {"reward=['regex:^[0-3]']", "reward_weights=[2]", "environment_weight=0.5", "train_iters=2"}));
  for (const nlohmann::json& step : metrics("both")) {
    const double regex = step.at("rewards/regex/mean"), environment = step.at("rewards/environment/mean");
    EXPECT_NEAR(step.at("reward").get<double>(), 2 * regex + 0.5 * environment, 1e-9);
    EXPECT_GT(regex, 0);
  }
}

// An environment that fails in the middle of a conversation gives no reward, and no function scores the rest.
TEST_F(EpisodeRuns, AFailedEnvironmentIsNoReward) {
  const std::string fails = R"sh(while read -r line; do
  if [[ $line == *'"tool_calls"'* ]]; then echo garbage; else echo '{"done": true, "reward": 1}'; fi
done
)sh";
  run("fails", settings("env.sh", fails, {"reward=['regex:^']", "train_iters=2", "reward_workers=1"}));
  for (const nlohmann::json& step : metrics("fails")) {
    const double failed = step.at("episodes/failed");
    EXPECT_GT(failed, 0);
    EXPECT_LT(failed, 1);
    EXPECT_EQ(step.at("reward"), 2);
    for (const char* name :
         {"rewards/environment/without", "rewards/regex/without", "completions/without_reward"})
      EXPECT_EQ(step.at(name), failed) << name;
  }
  EXPECT_THAT(log_of("fails"), HasSubstr("the reply is no JSON: garbage"));
}

TEST_F(EpisodeRuns, HostileEnvironmentsEndTheRunWithTheirReason) {
  EXPECT_THAT(
      refusal("garbage", settings("env.sh", "while read -r line; do echo garbage; done")),
      AllOf(HasSubstr("none of the 32 answers of the first step has a reward"), HasSubstr("garbage")));
  EXPECT_THAT(refusal("dies", settings("env.sh", "echo 'no module x' >&2; exit 1")),
              AllOf(HasSubstr("failed 5 times in a row"), HasSubstr("no module x")));
  EXPECT_THAT(refusal("huge", settings("env.sh", "while read -r line; do printf '%2000000s' x; done")),
              HasSubstr("a line of more than"));
  EXPECT_THAT(refusal("late", settings("env.sh", "while read -r line; do sleep 300; done",
                                       {"reward_timeout=0.2", "global_batch_size=8", "reward_workers=8"})),
              HasSubstr("did not reply within 0.2"));
}

// An environment without end is bounded by the max number of turns and of tokens. The last request says so.
TEST_F(EpisodeRuns, EndlessEnvironmentsAreBounded) {
  const std::string endless = R"sh(while read -r line; do
  if [[ $line == *'"last":true'* ]]; then
    if [[ $line == *'"finished":true'* ]]; then echo '{"done": true, "reward": 1}'; else echo '{"done": true, "reward": 0}'; fi
  else
    echo '{"messages": [{"role": "user", "content": "?"}]}'
  fi
done
)sh";
  run("turns", settings("env.sh", endless, {"max_turns=2", "max_completion_length=20", "train_iters=2"}));
  EXPECT_THAT(values("turns", "episodes/turns"), Each(testing::Le(2)));
  EXPECT_THAT(values("turns", "reward"), Each(Gt(0)));
  run("tokens", settings("env.sh", endless, {"max_turns=100", "train_iters=2"}));
  EXPECT_THAT(values("tokens", "completions/clipped_ratio"), Each(Gt(0.5)));
  EXPECT_THAT(values("tokens", "completions/max_length"), Each(testing::Le(8)));
  // Messages in reply to the last request are no reward.
  EXPECT_THAT(refusal("rude", settings("env.sh",
                                       "while read -r line; do echo '{\"messages\": [{\"role\": \"user\", "
                                       "\"content\": \"?\"}]}'; done")),
              HasSubstr("replied with messages to a request with last: true"));
}

TEST_F(EpisodeRuns, SettingsThatDoNotFitAreRefused) {
  EXPECT_THAT(refusal("a", settings("env.sh", secret_, {"environment=./no_such_env.py"})),
              HasSubstr("environment './no_such_env.py': the program"));
  EXPECT_THAT(refusal("b", settings("env.sh", secret_, {"tools=no_such_tools.json"})),
              HasSubstr("no_such_tools.json"));
  write_file(folder_.path() / "tools.json", "{}");
  EXPECT_THAT(
      refusal("c", settings("env.sh", secret_, {"tools=" + (folder_.path() / "tools.json").string()})),
      HasSubstr("is no JSON list of tools"));
  write_file(folder_.path() / "tools.json", R"([{"type": "function", "function": {"name": "secret"}}])");
  EXPECT_THAT(
      refusal("d", settings("env.sh", secret_, {"tools=" + (folder_.path() / "tools.json").string()})),
      HasSubstr("cannot write tools"));
}

}  // namespace
}  // namespace primus::test
