// Tests of restarts of single ranks in the launcher: which processes stay, who is asked, and when the job
// ends.
#include "launch/ranks/rank_restart.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "launch/ranks/local_launch.h"

namespace primus::launch {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(RankChannel, MessagesKeepTheirFields) {
  const auto loss = loss_report_of(to_text(
      LossReport{.rank = 3, .exit_code = 137, .text = "rank 3 was \"killed\"\n", .replaced = {3, 5}}));
  ASSERT_TRUE(loss);
  EXPECT_EQ(loss->rank, 3);
  EXPECT_EQ(loss->exit_code, 137);
  EXPECT_EQ(loss->text, "rank 3 was \"killed\"\n");
  EXPECT_THAT(loss->replaced, ElementsAre(3, 5));
  const auto order = join_order_of(to_text(std::optional(JoinOrder{1.5, 1234, "secret"})));
  ASSERT_TRUE(order);
  EXPECT_EQ(order->seconds, 1.5);
  EXPECT_EQ(order->port, 1234);
  EXPECT_EQ(order->token, "secret");
  EXPECT_FALSE(join_order_of(to_text(std::optional<JoinOrder>())));
  EXPECT_EQ(ready_port_of(ready_text(80)), 80);
  for (const char* const text : {"", "{}", "[]", R"({"kind":"ready"})", R"({"kind":"join","port":"a"})"}) {
    EXPECT_FALSE(ready_port_of(text)) << text;
    EXPECT_FALSE(join_order_of(text)) << text;
    EXPECT_FALSE(loss_report_of(text)) << text;
  }
}

// A rank in these tests: reports that it is ready, and prints the answer.
constexpr const char* kWait =
    "wait_for_start() {\n"
    "  echo \"{\\\"kind\\\":\\\"ready\\\",\\\"port\\\":$1}\" >&$PRIMUS_RANK_FD\n"
    "  dd bs=4096 count=1 <&$PRIMUS_RANK_FD 2>/dev/null\n"
    "}\n";

struct Outcome {
  LaunchResult result;
  std::vector<LossReport> reports;
  std::vector<std::string> output;  // of the ranks
};

struct Times {
  std::chrono::milliseconds leave = 10s, start = 10s;
  std::chrono::milliseconds decision = 0s;  // that the supervisor needs
};

// Launches two ranks that run the script. The supervisor answers each report with `answer`, or sends the
// launcher this signal.
Outcome launch(const std::string& script, const std::optional<JoinOrder>& answer, Times times = {},
               int signal = 0) {
  auto [supervisor, launcher] = Channel::pair();
  int output[2];
  EXPECT_EQ(pipe(output), 0);
  Outcome outcome;
  std::thread thread([&, own = std::move(supervisor)]() mutable {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, nullptr);
    while (own.valid()) {
      pollfd polled{own.fd(), POLLIN, 0};
      poll(&polled, 1, -1);
      while (const auto text = own.receive()) {
        if (const auto report = loss_report_of(*text)) outcome.reports.push_back(*report);
        std::this_thread::sleep_for(times.decision);
        if (signal != 0) {
          kill(getpid(), signal);
        } else {
          own.send(to_text(answer));
        }
      }
    }
  });
  LocalLaunch start;
  start.command = {"bash", "-c", kWait + script};
  start.ranks = 2;
  start.output = start.error = output[1];
  start.restarts = {.supervisor = &launcher, .leave_time = times.leave, .start_time = times.start};
  outcome.result = run_local(start);
  launcher.close();
  thread.join();
  close(output[1]);
  std::string text;
  for (char c = 0; read(output[0], &c, 1) == 1;) text += c;
  close(output[0]);
  for (std::size_t at = 0, end; (end = text.find('\n', at)) != text.npos; at = end + 1)
    outcome.output.push_back(text.substr(at, end - at));
  std::ranges::sort(outcome.output);
  return outcome;
}

const std::optional<JoinOrder> kYes{JoinOrder{.seconds = 2}};

TEST(RankRestarts, OnlyTheLostProcessIsNew) {
  const Outcome seen = launch(
      "echo start $RANK new=$PRIMUS_RANK_REPLACES\n"
      "[ $RANK$PRIMUS_RANK_REPLACES = 1 ] && kill -9 $$\n"
      "wait_for_start $((77 * (1 - RANK)))",
      kYes);
  EXPECT_EQ(seen.result.exit_code, 0);
  EXPECT_EQ(seen.result.failed_rank, -1);
  ASSERT_EQ(seen.reports.size(), 1U);
  EXPECT_EQ(seen.reports[0].rank, 1);
  EXPECT_EQ(seen.reports[0].exit_code, 137);
  EXPECT_THAT(seen.reports[0].text, HasSubstr("rank 1 was killed by signal 9"));
  EXPECT_THAT(seen.reports[0].replaced, ElementsAre(1));
  EXPECT_THAT(seen.output,
              ElementsAre("[rank 0] start 0 new=",
                          HasSubstr("[rank 0] {\"kind\":\"join\",\"seconds\":2.0,\"port\":77,"),
                          "[rank 1] start 1 new=", "[rank 1] start 1 new=1",
                          HasSubstr("[rank 1] {\"kind\":\"join\",\"seconds\":2.0,\"port\":77,")));
}

TEST(RankRestarts, ASupervisorThatRefusesEndsTheJob) {
  const Outcome seen = launch(
      "[ $RANK = 1 ] && [ -z \"$PRIMUS_RANK_REPLACES\" ] && kill -9 $$\n"
      "wait_for_start 1; exit 3",
      std::nullopt);
  EXPECT_EQ(seen.result.exit_code, 137);
  EXPECT_EQ(seen.result.failed_rank, 1);
  EXPECT_TRUE(seen.result.reported);
  EXPECT_EQ(seen.reports.size(), 1U);
}

TEST(RankRestarts, ANewProcessThatEndsEndsTheJob) {
  const Outcome seen = launch(
      "[ $RANK = 1 ] && kill -9 $$\n"
      "sleep 0.3; wait_for_start 1; exit 3",
      kYes);
  EXPECT_EQ(seen.result.exit_code, 137);
  EXPECT_TRUE(seen.reports.empty());
}

TEST(RankRestarts, ALateRankIsReplaced) {
  const Outcome seen = launch(
      "[ $RANK$PRIMUS_RANK_REPLACES = 1 ] && kill -9 $$\n"
      "[ -z \"$PRIMUS_RANK_REPLACES\" ] && exec sleep 60\n"
      "wait_for_start 1",
      kYes, {.leave = 200ms});
  EXPECT_EQ(seen.result.exit_code, 0);
  ASSERT_EQ(seen.reports.size(), 1U);
  EXPECT_THAT(seen.reports[0].replaced, ElementsAre(0, 1));
}

// The supervisor may delay a restart for longer than a new process may need to start.
TEST(RankRestarts, ARankThatIsLostDuringALongDelayIsReplaced) {
  const Outcome seen = launch(
      "[ $RANK$PRIMUS_RANK_REPLACES = 1 ] && kill -9 $$\n"
      "[ $RANK$PRIMUS_RANK_REPLACES = 0 ] && { sleep 0.8; kill -9 $$; } &\n"
      "[ $RANK$PRIMUS_RANK_REPLACES = 01 ] && sleep 0.1\n"
      "wait_for_start 1",
      kYes, {.start = 500ms, .decision = 1500ms});
  EXPECT_EQ(seen.result.exit_code, 0);
  EXPECT_EQ(seen.reports.size(), 1U);
}

// SIGUSR1 would kill a new process, and the others have nothing to save.
TEST(RankRestarts, AWarningBeforeATimeLimitCallsTheRestartOff) {
  const Outcome seen = launch(
      "[ $RANK$PRIMUS_RANK_REPLACES = 1 ] && kill -9 $$\n"
      "wait_for_start 1; echo rank $RANK ends; exit 3",
      kYes, {}, SIGUSR1);
  EXPECT_EQ(seen.result.exit_code, 137);
  EXPECT_EQ(seen.result.failed_rank, 1);
  EXPECT_THAT(seen.output, ElementsAre("[rank 0] {\"kind\":\"end\"}rank 0 ends",
                                       "[rank 1] {\"kind\":\"end\"}rank 1 ends"));
}

// A rank with an error of its own, and ranks that wait although none is lost, end the job.
TEST(RankRestarts, OtherFaultsEndTheJob) {
  const Outcome error = launch("[ $RANK = 1 ] && exit 3; wait_for_start 1; exit 4", kYes);
  EXPECT_EQ(error.result.exit_code, 3);
  EXPECT_EQ(error.result.failed_rank, 1);
  EXPECT_TRUE(error.reports.empty());
  const Outcome hang = launch("[ $RANK = 1 ] && exec sleep 60; wait_for_start 1; exit 4", kYes);
  EXPECT_EQ(hang.result.exit_code, 4);
  EXPECT_EQ(hang.result.failed_rank, 0);
  EXPECT_TRUE(hang.reports.empty());
}

}  // namespace
}  // namespace primus::launch
