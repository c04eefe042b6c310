// Tests of the launcher of ranks on this machine: environment, failures, signals and output.
#include "launch/ranks/local_launch.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "base/error.h"
#include "comm/rendezvous/socket.h"

namespace primus::launch {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::Not;

struct Shown {
  LaunchResult result;
  std::string out, err;
  double seconds = 0;
};

std::string text_of(const comm::Socket& file) {
  std::string text;
  char buffer[4096];
  for (;;) {
    const ssize_t got = pread(file.fd(), buffer, sizeof(buffer), static_cast<off_t>(text.size()));
    if (got <= 0) return text;
    text.append(buffer, static_cast<std::size_t>(got));
  }
}

LocalLaunch shell(int ranks, const std::string& script) {
  LocalLaunch launch;
  launch.command = {"sh", "-c", script};
  launch.ranks = ranks;
  return launch;
}

Shown run(LocalLaunch launch) {
  const comm::Socket out(memfd_create("out", MFD_CLOEXEC)), err(memfd_create("err", MFD_CLOEXEC));
  launch.output = out.fd();
  launch.error = err.fd();
  const auto start = std::chrono::steady_clock::now();
  Shown shown;
  shown.result = run_local(launch);
  shown.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  shown.out = text_of(out);
  shown.err = text_of(err);
  return shown;
}

// Returns whether the process has ended. Waits a moment, because the system reaps processes later.
bool gone(pid_t pid) {
  for (int i = 0; i < 500; ++i) {
    std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
    std::string number, name, state;
    if (!(stat >> number >> name >> state) || state == "Z") return true;
    std::this_thread::sleep_for(10ms);
  }
  return false;
}

struct TemporaryFile {
  Path path = Path(::testing::TempDir()) / fmt::format("launch_{}", getpid());
  ~TemporaryFile() { std::filesystem::remove_all(path); }
};

TEST(LocalLaunch, RanksGetTheEnvironmentOfTorchrun) {
  LocalLaunch launch = shell(3,
                             "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $GROUP_RANK $MASTER_ADDR; "
                             "test $MASTER_PORT -gt 0 && test ${#PRIMUS_JOB_TOKEN} = 64 && echo $MORE; "
                             "echo ${PRIMUS_RENDEZVOUS_FD:+inherits} >&2; cat");
  launch.environment = {{"MORE", "than before"}};
  const Shown shown = run(launch);
  EXPECT_EQ(shown.result.exit_code, 0) << shown.result.failure;
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_THAT(shown.out, HasSubstr(fmt::format("[rank {}] {} 3 {} 3 0 127.0.0.1\n", rank, rank, rank)));
    EXPECT_THAT(shown.out, HasSubstr(fmt::format("[rank {}] than before\n", rank)));
    EXPECT_THAT(shown.err, HasSubstr(fmt::format("[rank {}] {}\n", rank, rank == 0 ? "inherits" : "")));
  }
}

TEST(LocalLaunch, HostsNumberTheirRanks) {
  LocalLaunch launch = shell(2, "echo $RANK of $WORLD_SIZE at $MASTER_ADDR $MASTER_PORT");
  launch.hosts = 3;
  launch.host = 2;
  launch.master_address = "10.0.0.1";
  launch.master_port = 29500;
  const Shown shown = run(launch);
  EXPECT_THAT(shown.out, HasSubstr("[rank 4] 4 of 6 at 10.0.0.1 29500\n"));
  EXPECT_THAT(shown.out, HasSubstr("[rank 5] 5 of 6 at 10.0.0.1 29500\n"));
}

// Rank 1 fails. The other ranks ignore SIGTERM and would run for a minute.
TEST(LocalLaunch, OneFailureEndsAllRanksAndItsErrorComesFirst) {
  const Shown shown =
      run(shell(4,
                "trap '' TERM; if [ $RANK = 1 ]; then sleep 0.3; echo 'error: the reason' >&2; "
                "exit 7; fi; sleep 60 & wait; sleep 60"));
  EXPECT_EQ(shown.result.exit_code, 7);
  EXPECT_EQ(shown.result.failed_rank, 1);
  EXPECT_EQ(shown.result.failure, "rank 1 ended with exit code 7\n  error: the reason");
  EXPECT_LT(shown.seconds, 10);  // 0.3 s of work and 0.5 s of grace, plus time for a busy machine
}

TEST(LocalLaunch, AKilledRankIsNamedWithItsSignal) {
  const Shown shown = run(shell(2, "if [ $RANK = 1 ]; then kill -9 $$; fi; sleep 60"));
  EXPECT_EQ(shown.result.exit_code, 137);
  EXPECT_THAT(shown.result.failure, HasSubstr("rank 1 was killed by signal 9 (Killed)"));
}

TEST(LocalLaunch, AStoppedRankIsTheCauseOfOtherFailures) {
  const Shown shown = run(shell(2, "if [ $RANK = 0 ]; then kill -STOP $$; fi; sleep 0.5; exit 3"));
  EXPECT_EQ(shown.result.exit_code, 3);
  EXPECT_EQ(shown.result.failed_rank, 0);
  EXPECT_THAT(shown.result.failure,
              HasSubstr("rank 0 was stopped by a signal (SIGSTOP), so rank 1 ended with exit code 3"));
}

TEST(LocalLaunch, ProcessesThatARankStartedEndWithIt) {
  TemporaryFile file;
  const Shown shown = run(shell(1, "sleep 600 & echo $! > " + file.path.string() + "; exit 0"));
  EXPECT_EQ(shown.result.exit_code, 0);
  pid_t pid = 0;
  std::ifstream(file.path) >> pid;
  ASSERT_GT(pid, 0);
  EXPECT_TRUE(gone(pid));
}

pid_t launch_in_a_process(const LocalLaunch& launch) {
  const pid_t pid = fork();
  if (pid == 0) {
    // A shell starts background processes with SIGINT ignored, and sh cannot trap a signal that was ignored
    // at its start.
    ::signal(SIGINT, SIG_DFL);
    _exit(run_local(launch).exit_code);
  }
  return pid;
}

std::vector<pid_t> pids_in(const Path& path, std::size_t count) {
  for (int i = 0; i < 1000; ++i) {
    std::ifstream file(path);
    std::vector<pid_t> pids;
    for (pid_t pid; file >> pid;) pids.push_back(pid);
    if (pids.size() == count) return pids;
    std::this_thread::sleep_for(10ms);
  }
  return {};
}

TEST(LocalLaunch, RanksEndIfTheLauncherDies) {
  TemporaryFile file;
  const pid_t launcher = launch_in_a_process(
      shell(3, "trap '' TERM HUP; echo $$ >> " + file.path.string() + "; exec sleep 600"));
  const auto pids = pids_in(file.path, 3);
  kill(launcher, SIGKILL);
  waitpid(launcher, nullptr, 0);
  ASSERT_EQ(pids.size(), 3U);
  for (const pid_t pid : pids) EXPECT_TRUE(gone(pid));
}

// The children of ranks, such as a script's workers, end with a killed launcher, too.
TEST(LocalLaunch, ChildrenOfRanksEndWithAKilledLauncher) {
  TemporaryFile file;
  const pid_t launcher =
      launch_in_a_process(shell(2, "sleep 600 & echo $! >> " + file.path.string() + "; wait"));
  const auto pids = pids_in(file.path, 2);
  kill(launcher, SIGKILL);
  waitpid(launcher, nullptr, 0);
  ASSERT_EQ(pids.size(), 2U);
  for (const pid_t pid : pids) EXPECT_TRUE(gone(pid));
}

TEST(LocalLaunch, SignalsArePassedOn) {
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1}) {
    TemporaryFile file;
    const pid_t launcher =
        launch_in_a_process(shell(2, "trap 'sleep 0.2; exit 0' TERM INT USR1; echo $$ >> " +
                                         file.path.string() + "; while :; do sleep 0.05; done"));
    const auto pids = pids_in(file.path, 2);
    kill(launcher, signal);
    int status = 0;
    waitpid(launcher, &status, 0);
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0) << signal;
    for (const pid_t pid : pids) EXPECT_TRUE(gone(pid));
  }
}

// A step and a checkpoint may take minutes, so ranks that stop have no deadline unless one of them fails.
TEST(LocalLaunch, RanksThatStopHaveNoDeadline) {
  for (const bool fails : {false, true}) {
    TemporaryFile file, shown;
    LocalLaunch launch = shell(2, std::string("trap 'test $RANK = 0 || ") + (fails ? "exit 3" : "sleep 1") +
                                      "; sleep 1; exit 0' INT; echo $$ >> " + file.path.string() +
                                      "; while :; do sleep 0.05; done");
    launch.grace_after_signal = 100ms;
    launch.notice_after_signal = 300ms;
    const int to = open(shown.path.c_str(), O_WRONLY | O_CREAT, 0600);
    launch.error = to;
    const pid_t launcher = launch_in_a_process(launch);
    close(to);
    EXPECT_EQ(pids_in(file.path, 2).size(), 2U);
    kill(launcher, SIGINT);
    int status = 0;
    waitpid(launcher, &status, 0);
    EXPECT_EQ(WEXITSTATUS(status), fails ? 3 : 0);
    const std::string text = read_file(shown.path);
    EXPECT_EQ(text.find("waiting for 2 of 2 ranks: they finish their step") != std::string::npos, !fails)
        << text;
  }
}

// Runs two ranks that ignore the signals `trap`. Sends `first` and, after `pause`, `second`. Returns the exit
// code, or -1 if the launcher still ran 1.5 s later.
int after_two_signals(const std::string& trap, int first, std::chrono::milliseconds pause, int second) {
  TemporaryFile file;
  const pid_t launcher = launch_in_a_process(
      shell(2, "trap '' " + trap + "; echo $$ >> " + file.path.string() + "; while :; do sleep 1; done"));
  EXPECT_EQ(pids_in(file.path, 2).size(), 2U);
  kill(launcher, first);
  std::this_thread::sleep_for(pause);
  kill(launcher, second);
  int status = 0;
  for (int i = 0; i < 150; ++i) {
    if (waitpid(launcher, &status, WNOHANG) == launcher) return WEXITSTATUS(status);
    std::this_thread::sleep_for(10ms);
  }
  kill(launcher, SIGKILL);
  waitpid(launcher, &status, 0);
  return -1;
}

TEST(LocalLaunch, ASecondSignalDoesNotWait) {
  EXPECT_EQ(after_two_signals("INT", SIGINT, 200ms, SIGINT), 137);
  EXPECT_EQ(after_two_signals("TERM", SIGTERM, 1200ms, SIGTERM), 137);
}

TEST(LocalLaunch, TwoSignalsOfASchedulerAreOneRequest) {
  EXPECT_EQ(after_two_signals("TERM", SIGTERM, 200ms, SIGTERM), -1);
}

// SIGUSR1 warns before a time limit and does not count as a request to stop. The later SIGTERM is the first
// request.
TEST(LocalLaunch, TheWarningBeforeATimeLimitIsNoSecondRequest) {
  EXPECT_EQ(after_two_signals("USR1 TERM", SIGUSR1, 200ms, SIGTERM), -1);
}

// nohup ignores SIGHUP. A terminal that is closed then neither stops nor kills the ranks.
TEST(LocalLaunch, AnIgnoredHangupIsNoRequest) {
  TemporaryFile file;
  LocalLaunch launch = shell(2, "echo $$ >> " + file.path.string() + "; exec sleep 600");
  launch.grace_after_signal = 100ms;
  const auto before = ::signal(SIGHUP, SIG_IGN);
  const pid_t launcher = launch_in_a_process(launch);
  ::signal(SIGHUP, before);
  EXPECT_EQ(pids_in(file.path, 2).size(), 2U);
  kill(launcher, SIGHUP);
  std::this_thread::sleep_for(500ms);
  int status = 0;
  EXPECT_EQ(waitpid(launcher, &status, WNOHANG), 0) << "the launcher has ended";
  kill(launcher, SIGKILL);
  waitpid(launcher, &status, 0);
}

TEST(LocalLaunch, StartsAProcessThatIsNoRank) {
  TemporaryFile folder;
  LocalLaunch launch = shell(1, "echo ${RANK:-none} ${WORLD_SIZE:-none} $MORE; echo err >&2; exit 3");
  launch.is_job = false;
  launch.environment = {{"MORE", "than before"}};
  launch.log_file = folder.path / "logs" / "log.txt";
  unsetenv("RANK");
  const Shown shown = run(launch);
  EXPECT_EQ(shown.result.exit_code, 3);
  EXPECT_THAT(shown.result.failure, HasSubstr("'sh' ended with exit code 3"));
  EXPECT_EQ(shown.out, "none none than before\n");
  EXPECT_EQ(shown.err, "err\n");
  const std::string log = read_file(launch.log_file);
  EXPECT_THAT(log, HasSubstr("none none than before\n"));
  EXPECT_THAT(log, HasSubstr("err\n"));
}

TEST(LocalLaunch, OutputGoesToAFileForEachRank) {
  TemporaryFile folder;
  LocalLaunch launch = shell(2, "echo out of $RANK; echo err of $RANK >&2; printf 'no end'");
  launch.output_file = [&](int rank) { return folder.path / fmt::format("rank-{}", rank) / "console.log"; };
  const Shown shown = run(launch);
  EXPECT_EQ(shown.result.exit_code, 0);
  EXPECT_THAT(shown.out, HasSubstr("out of 0\n"));
  EXPECT_THAT(shown.out, Not(HasSubstr("of 1")));
  EXPECT_EQ(shown.err, "err of 0\n");
  const std::string second = read_file(folder.path / "rank-1" / "console.log");
  EXPECT_THAT(second, HasSubstr("out of 1\n"));
  EXPECT_THAT(second, HasSubstr("err of 1\n"));
  EXPECT_THAT(second, HasSubstr("no end\n"));
}

TEST(LocalLaunch, LongLinesAreCut) {
  const Shown shown = run(shell(1, "head -c 200000 /dev/zero | tr '\\0' x; echo; echo end"));
  EXPECT_GE(std::count(shown.out.begin(), shown.out.end(), 'x'), 200000);
  EXPECT_THAT(shown.out, HasSubstr("[rank 0] end\n"));
}

TEST(LocalLaunch, AProgramThatCannotStartIsAnError) {
  LocalLaunch launch;
  launch.command = {"/no/such/program"};
  launch.ranks = 2;
  try {
    run_local(launch);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("cannot run '/no/such/program'"));
    EXPECT_EQ(error.exit_code(), 2);
  }
  EXPECT_THROW(run_local(shell(0, "true")), Error);
  EXPECT_THROW(run_local({}), Error);
  LocalLaunch hosts = shell(1, "true");
  hosts.hosts = 2;
  EXPECT_THROW(run_local(hosts), Error);
  // A port in use is reported before any rank starts.
  const comm::Socket other = comm::listen_on("127.0.0.1", 0);
  LocalLaunch taken = shell(1, "true");
  taken.master_address = "127.0.0.1";
  taken.master_port = comm::port_of(other);
  try {
    run_local(taken);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr(fmt::format("port {} of 127.0.0.1 is in use", taken.master_port)));
    EXPECT_EQ(error.exit_code(), 2);
  }
}

}  // namespace
}  // namespace primus::launch
