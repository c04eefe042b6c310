// Tests rewards by unit tests that run generated code in the sandbox. Skipped without bubblewrap, or where it
// cannot start.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>

#include "base/error.h"
#include "base/files/scratch_folder.h"
#include "comm/rendezvous/socket.h"
#include "lm/reward/sandbox.h"
#include "reward_testing.h"

namespace primus {
namespace {

using testing::HasSubstr;

std::string block(const std::string& code) { return "Here:\n```python\n" + code + "\n```\n"; }

class CodeReward : public testing::Test {
 protected:
  void SetUp() override {
    const SandboxResult trial = run_in_sandbox({.code = "pass"}, {});
    if (!trial.started) GTEST_SKIP() << trial.problem;
  }
  static double score(const std::string& code, const nlohmann::json& tests, double seconds = 20) {
    RewardSettings settings;
    settings.timeout_seconds = seconds;
    const Reward reward = score_one("code:tests", block(code), {{"tests", tests}}, settings);
    EXPECT_EQ(reward.problem, "");
    return value_of(reward);
  }
};

TEST_F(CodeReward, TestsPassOrFail) {
  const std::string code = "def add(a, b):\n    return a + b";
  EXPECT_EQ(score(code, "assert add(2, 3) == 5"), 1);
  EXPECT_EQ(score(code, {"assert add(2, 3) == 5", "assert add(0, 0) == 0"}), 1);
  EXPECT_EQ(score(code, {"assert add(2, 3) == 5", "assert add(0, 0) == 1"}), 0);
  EXPECT_EQ(score("def add(a, b) return", "assert add(2, 3) == 5"), 0);
  EXPECT_EQ(value_of(score_one("code:tests", "no code", {{"tests", "assert True"}})), 0);
}

TEST_F(CodeReward, ComparesTheOutputOfEachInput) {
  const nlohmann::json tests = {{{"input", "2 3\n"}, {"output", "5"}}, {{"input", "1 1"}, {"output", "2\n"}}};
  EXPECT_EQ(score("print(sum(map(int, input().split())))", tests), 1);
  EXPECT_EQ(score("print(5)", tests), 0);
}

TEST_F(CodeReward, CodeThatEndsEarlyFails) {
  for (const char* code : {"import sys; sys.exit(0)", "import os; os._exit(0)", "quit()", "raise SystemExit",
                           "def exec(*a): pass", "exec = compile = lambda *a: None",
                           "import os\nos.write = lambda *a: 0\nos._exit(0)"}) {
    EXPECT_EQ(score(code, "assert False"), 0) << code;
  }
}

TEST_F(CodeReward, TheSandboxLimitsTheCode) {
  const std::string tests = "assert ok";
  // Each of these programs sets ok if the sandbox fails to stop it.
  const std::string escapes[] = {
      "import socket\ns = socket.socket(); s.settimeout(2)\ns.connect(('1.1.1.1', 53)); ok = True",
      "open('/usr/x', 'w'); ok = True",
      "open('/work/x', 'w'); ok = True",
      "open('/x', 'w'); ok = True",
      "open('/etc/passwd').read(); ok = True",
      "import os; ok = 'PATH' in os.environ and 'PRIMUS_TEST_SECRET' in os.environ",
      "ok = len(bytearray(3 << 30)) > 0",
      "open('/tmp/x', 'wb').write(b'x' * (100 << 20)); ok = True",
      "import os\nn = 0\ntry:\n  while n < 64:\n    if os.fork() == 0:\n      import time; time.sleep(100)\n "
      "   n += 1\n"
      "except OSError: pass\nok = n >= 64",
      "import os; ok = any(p.isdigit() and p != '1' for p in os.listdir('/proc'))",
      "import resource; resource.setrlimit(resource.RLIMIT_AS, (-1, -1)); ok = True",
  };
  ::setenv("PRIMUS_TEST_SECRET", "x", 1);
  // A server on this machine is always reachable without the sandbox, so only the sandbox can prevent a
  // connection.
  const comm::Socket server = comm::listen_on("127.0.0.1", 0);
  EXPECT_EQ(score("import socket\nsocket.create_connection(('127.0.0.1', " +
                      std::to_string(comm::port_of(server)) + "), 2); ok = True",
                  tests),
            0);
  for (const std::string& code : escapes) EXPECT_EQ(score(code, tests), 0) << code;
}

TEST_F(CodeReward, EndlessCodeIsKilledWithItsChildren) {
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(score("while True: pass", "pass", 2), 0);
  EXPECT_EQ(score("import os, time\nif os.fork() == 0:\n  os.setsid()\n  time.sleep(300)\ntime.sleep(300)",
                  "pass", 2),
            0);
  EXPECT_EQ(score("while True: print('x' * 10000)", "pass", 2), 0);
  EXPECT_EQ(score("import signal\nfor s in range(1, 64):\n  try: signal.signal(s, signal.SIG_IGN)\n  except "
                  "Exception: pass\n"
                  "while True: pass",
                  "pass", 2),
            0);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
}

TEST_F(CodeReward, RecordsWithoutTestsGiveNoReward) {
  for (const nlohmann::json& tests :
       {nlohmann::json(""), nlohmann::json::array(), nlohmann::json(3),
        nlohmann::json::parse(R"([{"input": "a"}])"),
        nlohmann::json::parse(R"(["assert 1", {"input": "", "output": ""}])")}) {
    EXPECT_THAT(score_one("code:tests", block("pass"), {{"tests", tests}}).problem,
                HasSubstr("has no tests"));
  }
}

TEST_F(CodeReward, TestsThatDoNotCompileGiveNoReward) {
  for (const char* const code : {"def add(a, b): return a + b", "def add(a, b) return"}) {
    const Reward reward = score_one("code:tests", block(code),
                                    {{"tests", {"assert add(2, 3) == 5 +", "assert add(0, 0) == 0"}}});
    EXPECT_FALSE(reward.value) << code;
    EXPECT_THAT(reward.problem, HasSubstr("the tests are no valid Python code: SyntaxError")) << code;
  }
}

TEST(Sandbox, AFailedStartIsNoReward) {
  const ScratchFolder folder("no-bwrap");
  write_file(folder.path() / "bwrap", "#!/bin/sh\necho 'bwrap: No permissions' >&2\nexit 1\n");
  std::filesystem::permissions(folder.path() / "bwrap", std::filesystem::perms(0755));
  std::filesystem::permissions(folder.path(), std::filesystem::perms(0755));
  const std::string path = std::getenv("PATH");
  ::setenv("PATH", folder.path().c_str(), 1);
  const Reward reward = score_one("code:tests", block("pass"), {{"tests", "assert True"}});
  // An answer without code would get 0, but the right answers would get no reward.
  const Reward without_code = score_one("code:tests", "I cannot.", {{"tests", "assert True"}});
  RewardSettings settings;
  settings.functions = {"code:tests"};
  std::string refusal;
  try {
    make_rewards(settings).front()->check();
  } catch (const Error& error) {
    refusal = error.render();
  }
  ::setenv("PATH", path.c_str(), 1);
  EXPECT_FALSE(reward.value);
  EXPECT_THAT(reward.problem, HasSubstr("bwrap: No permissions"));
  EXPECT_FALSE(without_code.value);
  EXPECT_THAT(refusal, testing::AllOf(HasSubstr("reward 'code:tests'"), HasSubstr("bwrap: No permissions")));
}

}  // namespace
}  // namespace primus
