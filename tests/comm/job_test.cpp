// Tests jobs of real processes: every collective over shared memory and TCP, and every failure of a rank.
#include "comm/job.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/text/json_text.h"
#include "launch/ranks/local_launch.h"

namespace primus::comm {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

struct Outcome {
  launch::LaunchResult result;
  std::string text;  // output of the ranks
  double seconds = 0;
};

struct Run {
  std::vector<std::string> arguments;
  int ranks = 2;
  std::map<std::string, std::string> environment;
  std::chrono::milliseconds grace = 500ms;
};

Outcome run(const Run& what) {
  launch::LocalLaunch launch;
  launch.command = {RANK_PROGRAM};
  launch.command.insert(launch.command.end(), what.arguments.begin(), what.arguments.end());
  launch.ranks = what.ranks;
  launch.environment = what.environment;
  launch.grace = what.grace;
  const Socket text(memfd_create("text", MFD_CLOEXEC));
  launch.output = launch.error = text.fd();
  const auto start = std::chrono::steady_clock::now();
  Outcome outcome;
  outcome.result = launch::run_local(launch);
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  char buffer[4096];
  for (off_t at = 0;;) {
    const ssize_t got = pread(text.fd(), buffer, sizeof(buffer), at);
    if (got <= 0) break;
    outcome.text.append(buffer, static_cast<std::size_t>(got));
    at += got;
  }
  return outcome;
}

// Lists only files of Primus: other programs create and remove files while the tests run.
std::vector<std::string> shared_memory_files() {
  std::vector<std::string> files = Env::posix().list("/dev/shm");
  std::erase_if(files, [](const std::string& file) { return file.find("primus") == std::string::npos; });
  return files;
}

// Returns the sockets that still exist after 10 s. Waits because ranks of another test have sockets while
// they connect.
std::string abstract_sockets() {
  std::string all;
  for (const Deadline end = in(10s);;) {
    all.clear();
    std::ifstream file("/proc/net/unix");
    for (std::string line; std::getline(file, line);) {
      if (line.find("@primus-") != std::string::npos) all += line + "\n";
    }
    if (all.empty() || milliseconds_until(end) == 0) return all;
    std::this_thread::sleep_for(20ms);
  }
}

struct Processes : ::testing::TestWithParam<std::tuple<int, const char*>> {
  int ranks() const { return std::get<0>(GetParam()); }
  std::string transport() const { return std::get<1>(GetParam()); }
};

TEST_P(Processes, EveryCollectiveEqualsItsReference) {
  const auto before = shared_memory_files();
  const Outcome outcome = run({.arguments = {"conform", transport()}, .ranks = ranks()});
  EXPECT_EQ(outcome.result.exit_code, 0) << outcome.result.failure;
  EXPECT_EQ(outcome.text, "");
  EXPECT_EQ(shared_memory_files(), before);
  EXPECT_EQ(abstract_sockets(), "");
}

INSTANTIATE_TEST_SUITE_P(All, Processes,
                         ::testing::Combine(::testing::Values(2, 3, 4, 8), ::testing::Values("shm", "tcp")),
                         [](const auto& each) {
                           return std::to_string(std::get<0>(each.param)) + std::get<1>(each.param);
                         });

struct Faults : ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(All, Faults, ::testing::Values("shm", "tcp"),
                         [](const auto& each) { return std::string(each.param); });

// Ranks that were not started by mpirun cannot exchange data through MPI.
TEST(Mpi, NeedsMpirun) {
  const Outcome outcome = run({.arguments = {"conform", "mpi"}});
  EXPECT_NE(outcome.result.exit_code, 0);
  EXPECT_THAT(outcome.text, HasSubstr("the ranks were not started by an MPI launcher"));
}

// The launcher ends all ranks at once.
TEST_P(Faults, AKilledRankEndsTheJob) {
  const auto before = shared_memory_files();
  const Outcome outcome = run({.arguments = {"die", GetParam()}, .ranks = 3});
  EXPECT_EQ(outcome.result.failed_rank, 2);
  EXPECT_EQ(outcome.result.exit_code, 128 + SIGKILL);
  EXPECT_THAT(outcome.result.failure, HasSubstr("rank 2 was killed by signal 9"));
  EXPECT_EQ(shared_memory_files(), before);
  EXPECT_EQ(abstract_sockets(), "");
}

// If no launcher ends the other ranks, they notice the loss on their own.
TEST_P(Faults, TheOtherRanksNameAKilledRank) {
  for (const char* const scene : {"die", "die_sending_rows"}) {
    const Outcome outcome = run({.arguments = {scene, GetParam()},
                                 .ranks = 3,
                                 .environment = {{"IGNORE_SIGTERM", "1"}},
                                 .grace = 60s});
    EXPECT_EQ(outcome.result.failed_rank, 2);
    EXPECT_THAT(outcome.text, HasSubstr("[rank 0] error: rank 2 was lost"));
    EXPECT_THAT(outcome.text, HasSubstr("[rank 1] error: rank 2 was lost"));
    EXPECT_LT(outcome.seconds, 30);
  }
}

// Rank 0 hosts the rendezvous. The other ranks also notice when rank 0 ends.
TEST_P(Faults, AMissingRankZeroIsReported) {
  const Outcome outcome = run({.arguments = {"die_first", GetParam()},
                               .ranks = 3,
                               .environment = {{"IGNORE_SIGTERM", "1"}},
                               .grace = 60s});
  EXPECT_EQ(outcome.result.failed_rank, 0);
  EXPECT_THAT(outcome.text,
              HasSubstr("[rank 1] error: the connection to the rendezvous was lost: rank 0 has exited"));
  EXPECT_THAT(outcome.text,
              HasSubstr("[rank 2] error: the connection to the rendezvous was lost: rank 0 has exited"));
}

TEST_P(Faults, AHangingRankIsNamedAndAllWriteTheirFlightRecords) {
  const Path folder = Path(::testing::TempDir()) / ("flight_" + std::string(GetParam()));
  remove_tree(folder);
  const Outcome outcome = run({.arguments = {"hang", GetParam(), folder.string()},
                               .ranks = 3,
                               .environment = {{"IGNORE_SIGTERM", "1"}},
                               .grace = 60s});
  EXPECT_EQ(outcome.result.exit_code, 3);
  EXPECT_THAT(outcome.result.failure,
              HasSubstr("all_reduce #2 (max of 100000 fp32) of group 'world' did not complete within"));
  EXPECT_THAT(
      outcome.result.failure,
      HasSubstr(
          "rank 1 has not called it: its last collective in that group was barrier #1 of group 'world'"));
  for (int rank = 0; rank < 3; ++rank) {
    const std::string name = "flight-rank-" + std::to_string(rank) + ".json";
    const auto record = parse_json_object(read_file(folder / name), name);
    EXPECT_EQ(record["rank"], rank);
    EXPECT_THAT(record["reason"].get<std::string>(), HasSubstr("rank 1 has not called it"));
    const auto& last = record["records"].back();
    if (rank == 1) {
      EXPECT_EQ(last["kind"], "barrier");
      EXPECT_EQ(last["state"], "done");
    } else {
      EXPECT_EQ(last["kind"], "all_reduce");
      EXPECT_EQ(last["waiting_for"], 1);
    }
  }
  remove_tree(folder);
}

TEST_P(Faults, DifferentCallsAreNamed) {
  const Outcome outcome = run({.arguments = {"mismatch", GetParam()}, .ranks = 2});
  EXPECT_EQ(outcome.result.exit_code, 3);
  EXPECT_THAT(outcome.result.failure, HasSubstr("sum of 64 fp32"));
  EXPECT_THAT(outcome.result.failure, HasSubstr("sum of 63 fp32"));
}

TEST_P(Faults, AllRanksReportAnErrorOfOneRank) {
  const Outcome outcome = run({.arguments = {"fail", GetParam()},
                               .ranks = 3,
                               .environment = {{"IGNORE_SIGTERM", "1"}},
                               .grace = 60s});
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_THAT(outcome.text,
                HasSubstr("[rank " + std::to_string(rank) + "] error: the data set of rank 1 is broken"));
  }
  EXPECT_THAT(outcome.result.failure, HasSubstr("the data set of rank 1 is broken"));
}

TEST(Job, AllRanksNameDifferentSettings) {
  const Outcome outcome =
      run({.arguments = {"differ"}, .ranks = 3, .environment = {{"IGNORE_SIGTERM", "1"}}, .grace = 60s});
  EXPECT_EQ(outcome.result.exit_code, 2);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_THAT(outcome.text, HasSubstr("[rank " + std::to_string(rank) +
                                        "] error: ranks 0 and 1 differ in seq_length: 4096, 2048"));
  }
}

TEST(Job, AMissingRankIsNamed) {
  const Outcome outcome = run({.arguments = {"conform"},
                               .ranks = 3,
                               .environment = {{"START_TIMEOUT_MS", "1500"}, {"ABSENT_RANK", "1"}}});
  EXPECT_NE(outcome.result.exit_code, 0);
  EXPECT_THAT(outcome.result.failure, HasSubstr("1 of 3 ranks did not reach 'start' in time: 1"));
}

TEST(Job, TheAwaitedRankIsReported) {
  const Outcome outcome =
      run({.arguments = {"conform"},
           .ranks = 3,
           .environment = {{"START_TIMEOUT_MS", "4000"}, {"ABSENT_RANK", "1"}, {"NOTICE_MS", "100"}}});
  EXPECT_THAT(outcome.text, HasSubstr("[rank 0] waiting for rank 1 of 3 (1 s)"));
}

// Ranks with different transports fail soon. The error names these ranks and their transports.
TEST(Job, RanksWithDifferentTransportsAreNamed) {
  const Outcome outcome = run({.arguments = {"conform"},
                               .ranks = 3,
                               .environment = {{"TCP_RANK", "2"}, {"IGNORE_SIGTERM", "1"}},
                               .grace = 60s});
  EXPECT_EQ(outcome.result.exit_code, 2);
  EXPECT_LT(outcome.seconds, 30);
  EXPECT_THAT(outcome.text,
              HasSubstr("ranks 0 and 2 have different transports (PRIMUS_TRANSPORT): auto, tcp"));
}

TEST(Job, OneRankNeedsNoNetwork) {
  const Outcome outcome = run({.arguments = {"conform"}, .ranks = 1});
  EXPECT_EQ(outcome.result.exit_code, 0) << outcome.result.failure;
}

TEST(Job, ANetworkNeedsAToken) {
  JobEnvironment environment;
  environment.rank = 1;
  environment.world = 2;
  environment.master_address = "192.0.2.1";
  environment.master_port = 29500;
  try {
    Job::connect(environment, {});
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("needs a secret token"));
    EXPECT_THAT(error.hint(), HasSubstr("PRIMUS_JOB_TOKEN"));
    EXPECT_EQ(error.exit_code(), 2);
  }
}

// Two hosts: network namespaces joined by a virtual cable. Within each host, ranks use shared memory.
TEST(Job, RanksOfTwoHostsCommunicate) {
  const std::string names[] = {"primus_a_" + std::to_string(getpid()),
                               "primus_b_" + std::to_string(getpid())};
  const auto shell = [](const std::string& command) {
    return std::system((command + " 2>/dev/null").c_str());
  };
  const auto clean = [&] {
    for (const std::string& name : names) shell("ip netns del " + name);
  };
  const std::string cable =
      "ip link add eth0 netns " + names[0] + " type veth peer name eth0 netns " + names[1];
  bool made =
      shell("ip netns add " + names[0]) == 0 && shell("ip netns add " + names[1]) == 0 && shell(cable) == 0;
  for (int host = 0; host < 2; ++host) {
    const std::string ip = "ip -n " + names[host];
    made = made && shell(ip + " addr add 10.77.0." + std::to_string(host + 1) + "/24 dev eth0") == 0 &&
           shell(ip + " link set eth0 up") == 0 && shell(ip + " link set lo up") == 0;
  }
  if (!made) {
    clean();
    GTEST_SKIP() << "network namespaces need root and the program 'ip'";
  }
  pid_t pids[2];
  for (int host = 0; host < 2; ++host) {
    pids[host] = fork();
    if (pids[host] != 0) continue;
    const int space = open(("/run/netns/" + names[host]).c_str(), O_RDONLY);
    if (setns(space, CLONE_NEWNET) != 0) _exit(100);
    launch::LocalLaunch launch;
    launch.command = {RANK_PROGRAM, "conform"};
    launch.ranks = 2;
    launch.hosts = 2;
    launch.host = host;
    launch.master_address = "10.77.0.1";
    launch.master_port = 29555;
    launch.environment = {{"PRIMUS_JOB_TOKEN", "a secret of two hosts"}};
    int code = 101;
    try {
      code = launch::run_local(launch).exit_code;
    } catch (const std::exception& error) {
      fprintf(stderr, "%s\n", error.what());
    }
    _exit(code);
  }
  for (const pid_t pid : pids) {
    int status = 0;
    waitpid(pid, &status, 0);
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0);
  }
  clean();
}

}  // namespace
}  // namespace primus::comm
