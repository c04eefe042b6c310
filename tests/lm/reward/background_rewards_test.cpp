// Tests rewards that background threads compute: lanes, errors, and the end of functions that are running.
#include "lm/reward/background_rewards.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <thread>

#include "base/error.h"
#include "base/files/scratch_folder.h"
#include "comm/rendezvous/socket.h"
#include "lm/reward/sandbox.h"
#include "reward_testing.h"

namespace primus {
namespace {

using testing::ElementsAre;
using testing::Key;

constexpr std::chrono::milliseconds kLong(20000), kShort(20);

BackgroundRewards::Answers answers_of(const std::vector<std::string>& texts,
                                      const nlohmann::json& record = {{"answer", "7"}}) {
  BackgroundRewards::Answers all;
  for (const std::string& text : texts) {
    all.answers.push_back({.prompt = "p", .completion = text});
    all.records.push_back(record);
  }
  for (std::size_t i = 0; i < texts.size(); ++i) all.answers[i].record = &all.records[i];
  return all;
}

// Returns the reward 1 when it is let go, or throws for the answer "broken".
class Gate final : public RewardFunction {
 public:
  explicit Gate(const std::atomic<bool>& open) : open_(open) {}
  std::string_view name() const override { return "gate"; }
  std::vector<Reward> score(std::span<const ScoredAnswer> answers) override {
    while (!open_ && !interrupted_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (answers.front().completion == "broken") throw invalid("it broke", "mend it");
    return {answers.size(), Reward{.value = 1}};
  }
  std::optional<RewardRetries> take_retries() override { return RewardRetries{.count = 2}; }
  void interrupt() override { interrupted_ = true; }

 private:
  const std::atomic<bool>& open_;
  std::atomic<bool> interrupted_{false};
};

TEST(BackgroundRewards, EachLaneScoresItsBatchesInOrder) {
  std::atomic<bool> open_even = false, open_odd = false;
  std::vector<BackgroundRewards::Functions> lanes(2);
  lanes[0].push_back(std::make_unique<Gate>(open_even));
  lanes[1].push_back(std::make_unique<Gate>(open_odd));
  BackgroundRewards rewards(std::move(lanes));
  for (const std::int64_t number : {1, 2, 3}) rewards.start(number, answers_of({"a", "b"}), {0});
  rewards.start(4, answers_of({}), {});
  EXPECT_FALSE(rewards.wait(1, kShort));
  EXPECT_TRUE(rewards.arrived(1).empty());
  open_even = true;
  EXPECT_TRUE(rewards.wait(2, kLong));
  EXPECT_TRUE(rewards.wait(4, kLong));  // no function is called
  EXPECT_FALSE(rewards.wait(3, kShort));
  open_odd = true;
  EXPECT_TRUE(rewards.wait(3, kLong));
  EXPECT_TRUE(rewards.wait(1, kLong));
  const auto arrived = rewards.arrived(1);
  ASSERT_THAT(arrived, ElementsAre(Key(0)));
  EXPECT_EQ(arrived.at(0).rewards.size(), 2U);
  EXPECT_EQ(arrived.at(0).rewards[1].value, 1);
  EXPECT_EQ(arrived.at(0).retries.count, 2);
  EXPECT_GE(rewards.seconds(1), 0);
  rewards.forget(1);
}

TEST(BackgroundRewards, AnErrorIsThrownAtItsBatch) {
  const std::atomic<bool> open = true;
  std::vector<BackgroundRewards::Functions> lanes(1);
  lanes[0].push_back(std::make_unique<Gate>(open));
  BackgroundRewards rewards(std::move(lanes));
  rewards.start(1, answers_of({"a"}), {0});
  rewards.start(2, answers_of({"broken"}), {0});
  rewards.start(3, answers_of({"a"}), {0});
  EXPECT_TRUE(rewards.wait(3, kLong));
  EXPECT_TRUE(rewards.wait(1, kLong));
  EXPECT_THROW(rewards.wait(2, kLong), Error);
}

// The end interrupts functions that wait for a program, a server or a sandbox for minutes.
TEST(BackgroundRewards, TheEndDoesNotWaitForFunctions) {
  const ScratchFolder folder("background-rewards");
  const Path file = folder.path() / "reward.sh";
  write_file(file, "#!/bin/bash\nwhile read -r line; do sleep 300; done");
  std::filesystem::permissions(file, std::filesystem::perms::owner_all);
  const comm::Socket silent = comm::listen_on("127.0.0.1", 0);  // accepts no request
  RewardSettings settings;
  settings.functions = {"program:./reward.sh",
                        "http://127.0.0.1:" + std::to_string(comm::port_of(silent)) + "/score"};
  if (run_in_sandbox({.code = "pass"}, {}).started) settings.functions.emplace_back("code:tests");
  settings.timeout_seconds = 600;
  settings.folder = folder.path().string();
  const nlohmann::json record = {{"tests", "assert True"}};
  const auto began = std::chrono::steady_clock::now();
  {
    std::vector<BackgroundRewards::Functions> lanes;
    for (std::size_t f = 0; f < settings.functions.size(); ++f) lanes.push_back(make_rewards(settings));
    BackgroundRewards rewards(std::move(lanes));
    for (std::size_t f = 0; f < settings.functions.size(); ++f) {
      const std::string text = "```python\nwhile True: pass\n```";
      rewards.start(static_cast<std::int64_t>(f), answers_of({text, text}, record), {f});
    }
    EXPECT_FALSE(rewards.wait(0, std::chrono::milliseconds(300)));
    EXPECT_FALSE(rewards.wait(1, kShort));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(10));
}

}  // namespace
}  // namespace primus
