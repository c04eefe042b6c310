// Tests environments: replies, failures, timeouts and restarts of their programs, and hostile programs.
#include "lm/reward/environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <map>

#include "base/error.h"
#include "base/files/file.h"
#include "base/files/scratch_folder.h"

namespace primus {
namespace {

using testing::HasSubstr;
using testing::SizeIs;

class Environments : public testing::Test {
 protected:
  std::unique_ptr<Environment> make(const std::string& script, double timeout = 20,
                                    std::int64_t workers = 2) {
    const Path file = folder_.path() / "env.sh";
    std::filesystem::remove(file);
    write_file(file, "#!/bin/bash\n" + script);
    std::filesystem::permissions(file, std::filesystem::perms::owner_all);
    return std::make_unique<Environment>(EnvironmentSettings{.command = "./env.sh",
                                                             .workers = workers,
                                                             .timeout_seconds = timeout,
                                                             .folder = folder_.path().string()});
  }
  // Sends one line for each episode, and returns all replies.
  static std::map<std::int64_t, EnvironmentReply> ask(Environment& environment,
                                                      const std::vector<std::string>& lines) {
    for (std::size_t i = 0; i < lines.size(); ++i) environment.send(static_cast<std::int64_t>(i), lines[i]);
    std::map<std::int64_t, EnvironmentReply> replies;
    while (replies.size() < lines.size()) {
      for (Environment::Received& received : environment.receive(std::chrono::seconds(10)))
        replies[received.episode] = std::move(received.reply);
    }
    return replies;
  }

  ScratchFolder folder_{"environment"};
};

TEST_F(Environments, RepliesWithMessagesOrWithAReward) {
  const auto environment = make(R"sh(while read -r line; do
  if [[ $line == *1* ]]; then echo '{"done": true, "reward": 0.5}'
  elif [[ $line == *2* ]]; then echo '{"done": true, "reward": null, "reason": "no key"}'
  else echo '{"messages": [{"role": "tool", "content": "42", "tool_call_id": "call00000"}]}'; fi
done)sh");
  EXPECT_EQ(environment->name(), "env.sh");
  for (int round = 0; round < 3; ++round) {
    auto replies = ask(*environment, {"0", "1", "2"});
    ASSERT_THAT(replies[0].messages, SizeIs(1));
    EXPECT_EQ(replies[0].messages[0].at("content"), "42");
    EXPECT_EQ(replies[0].messages[0].at("tool_call_id"), "call00000");
    EXPECT_FALSE(replies[0].reward.value);
    EXPECT_EQ(replies[1].reward.value, 0.5);
    EXPECT_FALSE(replies[2].reward.value);
    EXPECT_EQ(replies[2].reward.problem, "no key");
    for (auto& [episode, reply] : replies) EXPECT_FALSE(reply.failed) << episode;
  }
}

// A program that keeps a state for each episode reads all requests of an episode.
TEST_F(Environments, AllRequestsOfAnEpisodeGoToOneProgram) {
  const auto environment = make(R"sh(while read -r line; do
  echo "{\"messages\": [{\"role\": \"user\", \"content\": \"$$\"}]}"
done)sh",
                                20, 3);
  const std::vector<std::string> lines(7, "x");
  const auto process = [](const EnvironmentReply& reply) { return reply.messages.at(0).at("content"); };
  auto first = ask(*environment, lines), second = ask(*environment, lines);
  for (std::int64_t i = 0; i < 7; ++i) EXPECT_EQ(process(first[i]), process(second[i])) << i;
  EXPECT_NE(process(first[0]), process(first[1]));
}

// The replies of quick programs arrive while a slow one still works.
TEST_F(Environments, DoNotWaitForEachOther) {
  const auto environment = make(R"sh(while read -r line; do
  if [[ $line == slow ]]; then sleep 300 & wait; fi
  echo '{"done": true, "reward": 1}'
done)sh",
                                20, 2);
  const auto start = std::chrono::steady_clock::now();
  environment->send(0, "slow");
  environment->send(1, "quick");
  std::vector<Environment::Received> received;
  while (received.empty()) received = environment->receive(std::chrono::seconds(10));
  EXPECT_THAT(received, SizeIs(1));
  EXPECT_EQ(received.front().episode, 1);
  EXPECT_TRUE(environment->receive(std::chrono::milliseconds(1)).empty());
  // Requests without a reply are dropped, and later ones are not.
  environment->send(2, "behind the slow request");
  environment->cancel();
  EXPECT_TRUE(environment->receive(std::chrono::milliseconds(1)).empty());
  EXPECT_EQ(ask(*environment, {"a", "b", "c"}).at(2).reward.value, 1);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(15));
}

TEST_F(Environments, ThatAreBusyEndWithTheirOwner) {
  const auto start = std::chrono::steady_clock::now();
  {
    const auto environment = make("while read -r line; do sleep 300; done", 300);
    environment->send(0, "x");
    environment->receive(std::chrono::milliseconds(200));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
}

TEST_F(Environments, LateAndDyingProgramsFail) {
  const auto environment = make(R"sh(while read -r line; do
  if [[ $line == slow ]]; then sleep 300 & wait; fi
  if [[ $line == dies ]]; then exit 3; fi
  echo '{"done": true, "reward": 1}'
done)sh",
                                0.5, 1);
  auto replies = ask(*environment, {"a", "slow", "b", "dies", "c"});
  EXPECT_THAT(replies[1].reward.problem, HasSubstr("did not reply within 0.5"));
  EXPECT_THAT(replies[3].reward.problem, HasSubstr("exit code 3"));
  for (const std::int64_t episode : {1, 3}) {
    EXPECT_TRUE(replies[episode].failed);
    EXPECT_FALSE(replies[episode].reward.value);
  }
  for (const std::int64_t episode : {0, 2, 4}) EXPECT_EQ(replies[episode].reward.value, 1);
}

TEST_F(Environments, ThatAlwaysDieAreAnError) {
  const auto environment = make("echo first >&2; echo 'ImportError: no module' >&2; exit 1");
  try {
    ask(*environment, std::vector<std::string>(10, "a"));
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.render(), HasSubstr("the environment 'env.sh' failed 5 times in a row"));
    EXPECT_THAT(error.render(), HasSubstr("ImportError: no module"));
  }
}

TEST_F(Environments, WrongRepliesFailAndTheProgramRestarts) {
  for (const char* command :
       {"echo debug", "printf '%2000000s' x", "echo 1", "echo null", "echo '{}'", "echo '[]'", "echo",
        R"(echo '{"done": true}')", R"(echo '{"done": true, "reward": "1"}')",
        R"(echo '{"done": true, "reward": 1e999}')", R"(echo '{"done": false}')",
        R"(echo '{"messages": []}')", R"(echo '{"messages": {}}')", R"(echo '{"messages": [3]}')",
        R"(echo '{"messages": [{"role": "assistant", "content": "x"}]}')",
        R"(echo '{"messages": [{"role": "tool"}]}')",
        R"(echo '{"messages": [{"role": "tool", "content": 3}]}')",
        R"(echo '{"done": true, "reward": 1, "messages": [{"role": "tool", "content": "3"}]}')",
        "printf '[%.0s' {1..9999}; echo"}) {
    const auto environment = make(std::string("while read -r line; do if [[ $line == good ]]; then echo "
                                              R"('{"done": true, "reward": 1}'; else )") +
                                      command + "; sleep 0.02; fi; done",
                                  20, 1);
    auto replies = ask(*environment, {"a", "good"});
    EXPECT_TRUE(replies[0].failed) << command;
    EXPECT_FALSE(replies[0].reward.value) << command;
    EXPECT_NE(replies[0].reward.problem, "") << command;
    EXPECT_LT(replies[0].reward.problem.size(), 1000U) << command;
    EXPECT_EQ(replies[1].reward.value, 1) << command;
  }
  std::string many = R"({"role": "tool", "content": "x"})";
  for (std::size_t i = 0; i < EnvironmentReply::kMaxMessages; ++i)
    many += R"(, {"role": "tool", "content": "x"})";
  EXPECT_THAT(environment_reply("{\"messages\": [" + many + "]}").reward.problem, HasSubstr("at most 64"));
}

// The example of docs/posttrain.md.
TEST_F(Environments, TheCalculatorRunsItsToolAndScoresTheAnswer) {
  if (!std::filesystem::exists("/usr/bin/python3")) GTEST_SKIP() << "needs python3";
  Environment environment(
      {.command = "/usr/bin/python3 " PRIMUS_SOURCE_DIR "/examples/native/environments/calculator.py",
       .workers = 1});
  EXPECT_EQ(environment.name(), "calculator.py");
  const auto request = [](const std::string& message, bool last = false) {
    return R"({"episode": 1, "turn": 1, "messages": [{"role": "user", "content": "6 * 7?"}, )" + message +
           R"(], "finished": true, "last": )" + (last ? "true" : "false") +
           R"(, "record": {"answer": "42"}})";
  };
  const auto call = [](const std::string& name, const std::string& expression) {
    return R"({"role": "assistant", "content": "", "tool_calls": [{"id": "call00000", "type": "function", )"
           R"("function": {"name": ")" +
           name + R"(", "arguments": {"expression": ")" + expression + R"("}}}]})";
  };
  auto replies = ask(environment,
                     {request(call("calculate", "6 * (3 + 4)")), request(call("calculate", "9**9**9")),
                      request(call("run", "1")), request(R"({"role": "assistant", "content": "It is 42."})"),
                      request(R"({"role": "assistant", "content": "It is 43."})"),
                      request(call("calculate", "6 * 7"), true)});
  EXPECT_EQ(replies[0].messages.at(0).at("content"), "42");
  EXPECT_THAT(replies[1].messages.at(0).at("content").get<std::string>(), HasSubstr("error"));
  EXPECT_THAT(replies[2].messages.at(0).at("content").get<std::string>(), HasSubstr("no tool run"));
  EXPECT_EQ(replies[3].reward.value, 1);
  EXPECT_EQ(replies[4].reward.value, 0);
  EXPECT_EQ(replies[5].reward.value, 0);
}

TEST_F(Environments, MustExist) {
  try {
    Environment({.command = "./no_such_program.py", .folder = folder_.path().string()});
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("environment './no_such_program.py': the program"));
    EXPECT_THAT(error.what(), HasSubstr("does not exist"));
    EXPECT_EQ(error.exit_code(), 2);
  }
}

}  // namespace
}  // namespace primus
