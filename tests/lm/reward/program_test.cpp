// Tests reward programs: replies, failures, timeouts and restarts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <future>
#include <thread>

#include "base/error.h"
#include "base/files/file.h"
#include "base/files/scratch_folder.h"
#include "base/system/child_groups.h"
#include "lm/reward/stoppable_score.h"
#include "reward_testing.h"

namespace primus {
namespace {

using testing::HasSubstr;

class ProgramReward : public testing::Test {
 protected:
  std::unique_ptr<RewardFunction> make(const std::string& script, double timeout = 20,
                                       std::int64_t workers = 2) {
    const Path file = folder_.path() / "reward.sh";
    std::filesystem::remove(file);
    write_file(file, "#!/bin/bash\n" + script);
    std::filesystem::permissions(file, std::filesystem::perms::owner_all);
    RewardSettings settings;
    settings.functions = {"program:./reward.sh"};
    settings.workers = workers;
    settings.timeout_seconds = timeout;
    settings.folder = folder_.path().string();
    return std::move(make_rewards(settings).front());
  }
  std::vector<Reward> score(RewardFunction& function, const std::vector<std::string>& texts) {
    std::vector<ScoredAnswer> answers;
    for (const std::string& text : texts)
      answers.push_back({.prompt = "p", .completion = text, .record = &record_});
    return function.score(answers);
  }

  ScratchFolder folder_{"reward-program"};
  nlohmann::json record_ = {{"answer", "7"}};
};

TEST_F(ProgramReward, RepliesAreAssignedInOrder) {
  const auto function = make(R"sh(while read -r line; do
  number=${line#*completion\":\"}
  echo "{\"reward\": ${number%%\"*}.5}"
done)sh");
  EXPECT_EQ(function->name(), "reward.sh");
  std::vector<std::string> texts;
  for (int i = 0; i < 40; ++i) texts.push_back(std::to_string(i));
  for (int round = 0; round < 2; ++round) {
    const auto rewards = score(*function, texts);
    for (int i = 0; i < 40; ++i) EXPECT_EQ(value_of(rewards[static_cast<std::size_t>(i)]), i + 0.5);
  }
}

// A program that writes its process id and then needs a minute for each answer.
constexpr const char* kSlow =
    "echo $$ >pid.new; mv pid.new pid\nwhile read -r line; do sleep 60; echo 1; done";

TEST_F(ProgramReward, AStopRequestEndsTheWaitAndThePrograms) {
  auto function = make(kSlow, 100, 1);
  std::atomic<bool> stop{false};
  const ScoredAnswer answer{.prompt = "p", .completion = "a", .record = &record_};
  const auto began = std::chrono::steady_clock::now();
  auto scored = std::async(std::launch::async, [&] {
    return stoppable_score(*function, {&answer, 1}, &stop);
  });
  while (!std::filesystem::exists(folder_.path() / "pid")) std::this_thread::yield();
  stop = true;
  EXPECT_FALSE(scored.get().front().value);
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(20));
  function.reset();
  const pid_t program = std::stoi(read_file(folder_.path() / "pid"));
  EXPECT_EQ(::kill(program, 0), -1) << "the program remains";
}

TEST_F(ProgramReward, AProcessThatEndsBySignalCanKillItsPrograms) {
  const auto function = make(kSlow, 100, 1);
  auto scored = std::async(std::launch::async, [&] { return score(*function, {"a"}); });
  while (!std::filesystem::exists(folder_.path() / "pid")) std::this_thread::yield();
  kill_child_groups();
  EXPECT_THAT(scored.get().front().problem, HasSubstr("killed by signal 9"));
}

TEST_F(ProgramReward, TheProgramIsStartedOncePerWorker) {
  const auto function = make("echo x >>starts\nwhile read -r line; do echo 1; done", 20, 1);
  score(*function, {"a", "b", "c"});
  score(*function, {"a", "b", "c"});
  EXPECT_EQ(read_file(folder_.path() / "starts"), "x\n");
}

TEST_F(ProgramReward, TheProgramReadsTheRecord) {
  const auto function = make(R"sh(while read -r line; do
  [[ $line == '{"prompt":"p","completion":"a","finished":true,"record":{"answer":"7"}}' ]] && echo 1 || echo 0
done)sh");
  EXPECT_EQ(value_of(score(*function, {"a"})[0]), 1);
}

TEST_F(ProgramReward, NullIsNoReward) {
  const auto function =
      make(R"sh(while read -r line; do echo '{"reward": null, "reason": "no key"}'; done)sh");
  const Reward reward = score(*function, {"a"})[0];
  EXPECT_FALSE(reward.value);
  EXPECT_EQ(reward.problem, "no key");
}

TEST_F(ProgramReward, ALateReplyIsNoRewardAndTheProgramRestarts) {
  const auto function = make(R"sh(while read -r line; do
  if [[ $line == *slow* ]]; then sleep 300 & wait; fi
  echo 1
done)sh",
                             0.5, 1);
  const auto start = std::chrono::steady_clock::now();
  const auto rewards = score(*function, {"a", "slow", "b"});
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
  EXPECT_EQ(value_of(rewards[0]), 1);
  EXPECT_THAT(rewards[1].problem, HasSubstr("did not reply within 0.5"));
  EXPECT_EQ(value_of(rewards[2]), 1);
}

TEST_F(ProgramReward, ACrashIsNoRewardAndRepeatedCrashesAreAnError) {
  const auto once = make(
      "while read -r line; do [[ $line == *bad* ]] && { echo 'KeyError: bad' >&2; exit 3; }; echo 1; done",
      20, 1);
  const auto rewards = score(*once, {"a", "bad", "b"});
  EXPECT_EQ(value_of(rewards[0]), 1);
  EXPECT_THAT(rewards[1].problem, HasSubstr("exit code 3; its standard error ends with: KeyError: bad"));
  EXPECT_EQ(value_of(rewards[2]), 1);

  const auto always = make("echo first >&2; echo 'ImportError: no module' >&2; exit 1");
  try {
    score(*always, std::vector<std::string>(10, "a"));
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.render(), HasSubstr("5 times in a row"));
    EXPECT_THAT(error.render(), HasSubstr("ImportError: no module"));
  }
}

TEST_F(ProgramReward, WrongOutputIsNoReward) {
  for (const char* command :
       {"echo debug", "echo 1; echo 2", "printf '%2000000s' x", "echo '\"text\"'", "echo NaN",
        "echo '{\"score\": 1}'", "printf '[%.0s' {1..9999}; echo", "echo 1e999", "echo"}) {
    const auto function =
        make(std::string("while read -r line; do ") + command + "; sleep 0.05; done", 20, 1);
    for (const Reward& reward : score(*function, {"a", "b"})) {
      // A second line may arrive after the first reply was read. In that case, the next answer has no reward.
      if (std::string_view(command).starts_with("echo 1;")) continue;
      EXPECT_FALSE(reward.value) << command;
      EXPECT_NE(reward.problem, "") << command;
    }
  }
}

TEST_F(ProgramReward, AProgramThatDoesNotReadIsNoReward) {
  const auto function = make("sleep 300", 0.5, 1);
  EXPECT_THAT(score(*function, {std::string(1 << 20, 'x')})[0].problem, HasSubstr("did not reply"));
  const auto ended = make("exec <&-; sleep 300", 0.5, 1);
  EXPECT_FALSE(score(*ended, {std::string(1 << 20, 'x')})[0].value);
}

}  // namespace
}  // namespace primus
