// Tests of supervised runs on several machines, which are processes on this one: a rank, a node and the
// leader are killed, and the run continues, bit for bit. scripts/inject-faults.py --nodes injects many more.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>

#include "comm/rendezvous/socket.h"
#include "fault/ranks.h"
#include "lm/events/supervision.h"

namespace primus {
namespace {

using test::losses;
using test::Program;
using test::ProgramResult;
using test::run_folder;
using test::run_program;
using test::TemporaryFolder;
using test::wait_until;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kSteps = 400;

std::vector<std::string> train(const TemporaryFolder& folder, const std::string& name, int ranks,
                               std::vector<std::string> more) {
  more.insert(more.begin(),
              {"num_layers=2", "hidden_size=24", "ffn_hidden_size=48", "num_attention_heads=2",
               "train_iters=" + std::to_string(kSteps), "save_interval=30", "keep_latest=2", "--quiet"});
  return test::train_ranks(folder, name, ranks, "optim", std::move(more));
}

// The supervisors of a job of two nodes with one rank each, and of a spare.
class Nodes {
 public:
  // `started`: so many supervisors are started; absent: all.
  Nodes(const TemporaryFolder& folder, const std::string& name, int nodes, std::vector<std::string> more,
        std::optional<int> started = {})
      : folder_(folder), name_(name), nodes_(nodes), more_(std::move(more)) {
    port_ = comm::port_of(comm::listen_on("127.0.0.1", 0));
    for (int node = 0; node < started.value_or(nodes); ++node) start(node);
  }

  void start(int node) {
    std::vector<std::string> options = {"--supervise", "--nnodes=" + std::to_string(nodes_),
                                        "--node_rank=" + std::to_string(node), "--master_addr=127.0.0.1",
                                        "--master_port=" + std::to_string(port_)};
    options.insert(options.end(), more_.begin(), more_.end());
    programs_[node] = std::make_unique<Program>(train(folder_, name_, 1, options));
  }
  Program& at(int node) { return *programs_.at(node); }

  // Returns the process that starts the node's rank; 0: there is none at the moment.
  pid_t job(int node) { return test::job_of(at(node).pid()); }
  pid_t rank(int node, int number) {
    const pid_t job = this->job(node);
    return job == 0 ? 0 : test::process_of_rank(job, number);
  }

 private:
  const TemporaryFolder& folder_;
  std::string name_;
  int nodes_;
  std::vector<std::string> more_;
  std::uint16_t port_ = 0;
  std::map<int, std::unique_ptr<Program>> programs_;
};

// Waits for a checkpoint after the steps that exist now, because faults without one in between are a crash
// loop.
bool progress(const Path& run) {
  const std::size_t before = losses(run).size();
  return wait_until([&] { return losses(run).size() >= before + 61; });
}

void expect_equal(const Path& run, const Path& whole) {
  EXPECT_EQ(losses(run), losses(whole));
  EXPECT_FALSE(test::final_weights(run, kSteps).empty());
  EXPECT_EQ(test::final_weights(run, kSteps), test::final_weights(whole, kSteps));
}

// Orphans that have ended may wait for a moment until the system's first process has read their status.
bool has_ended(pid_t process) {
  if (kill(process, 0) != 0) return true;
  std::ifstream file(fmt::format("/proc/{}/stat", process));
  std::string line;
  std::getline(file, line);
  const std::size_t name_end = line.rfind(") ");
  return name_end == std::string::npos || line[name_end + 2] == 'Z';
}

TEST(SuperviseNodes, ARunOutlivesARankAndANode) {
  const TemporaryFolder folder;
  test::expect_done(run_program(train(folder, "whole", 2, {})));
  const Path run = run_folder(folder.path(), "killed"), whole = run_folder(folder.path(), "whole");
  const Path sent = folder.path() / "alerts";
  Nodes nodes(folder, "killed", 3,
              {"--spares=1",
               "alerts=[\"node_lost, rank_lost, failed, gave_up -> run:cat >> " + sent.string() + "\"]"});
  std::vector<pid_t> seen;
  // A rank of node 1.
  ASSERT_TRUE(progress(run));
  pid_t victim = 0;
  ASSERT_TRUE(wait_until([&] { return (victim = nodes.rank(1, 1)) != 0; }));
  seen.push_back(victim);
  seen.push_back(nodes.rank(0, 0));
  EXPECT_EQ(nodes.job(2), 0);
  kill(victim, SIGKILL);
  // Node 1 itself: the spare takes its place.
  ASSERT_TRUE(progress(run));
  ASSERT_TRUE(wait_until([&] { return (victim = nodes.rank(1, 1)) != 0; }));
  seen.push_back(victim);
  kill(nodes.at(1).pid(), SIGKILL);
  ASSERT_TRUE(wait_until([&] { return nodes.rank(2, 1) != 0; }));
  seen.push_back(nodes.rank(2, 1));
  const ProgramResult leader = nodes.at(0).wait(), spare = nodes.at(2).wait();
  EXPECT_EQ(leader.exit_code, 0) << leader.err;
  EXPECT_EQ(spare.exit_code, 0) << spare.err;
  EXPECT_THAT(leader.err, AllOf(HasSubstr("lost node"), HasSubstr("takes place 1 of the job"),
                                HasSubstr("supervise: 2 restarts; useful")));
  for (const pid_t process : seen)
    EXPECT_TRUE(wait_until([&] { return has_ended(process); })) << "a process still runs";
  expect_equal(run, whole);
  const std::string events = read_file(supervision_file(run));
  EXPECT_THAT(events, AllOf(HasSubstr(R"("cause":"lost node")"), HasSubstr(R"("node":1)")));
  // The supervisor of node 0 reports both losses. A failed end is not reported, because the run continues.
  EXPECT_THAT(read_file(sent),
              AllOf(HasSubstr(R"("condition":"rank_lost")"), HasSubstr(R"("condition":"node_lost")"),
                    HasSubstr("node 1 ("), Not(HasSubstr("failed")), Not(HasSubstr("gave_up"))));
}

// The supervisors of the other nodes end their ranks when the leader is lost, and continue when it returns.
TEST(SuperviseNodes, ARunContinuesWhenItsLeaderReturns) {
  const TemporaryFolder folder;
  test::expect_done(run_program(train(folder, "whole", 2, {})));
  const Path run = run_folder(folder.path(), "led"), whole = run_folder(folder.path(), "whole");
  Nodes nodes(folder, "led", 2, {});
  ASSERT_TRUE(progress(run));
  pid_t victim = 0;
  ASSERT_TRUE(wait_until([&] { return (victim = nodes.rank(1, 1)) != 0; }));
  kill(nodes.at(0).pid(), SIGKILL);
  EXPECT_TRUE(wait_until([&] { return kill(victim, 0) != 0; }));
  nodes.at(0).wait();
  nodes.start(0);
  const ProgramResult leader = nodes.at(0).wait(), other = nodes.at(1).wait();
  EXPECT_EQ(leader.exit_code, 0) << leader.err;
  EXPECT_EQ(other.exit_code, 0) << other.err;
  EXPECT_THAT(other.err,
              HasSubstr("the supervisor of node 0 (127.0.0.1) is lost; node 1 has ended its ranks"));
  expect_equal(run, whole);
}

// No other node may lead, so the node that is left ends, and records what it has seen.
TEST(SuperviseNodes, TheLossOfOneOfTwoNodesIsRecordedByTheOther) {
  const TemporaryFolder folder;
  const Path run = run_folder(folder.path(), "left");
  const Path sent = folder.path() / "alerts";
  Nodes nodes(folder, "left", 2,
              {"train_iters=1000000", "alerts=[\"gave_up -> run:cat >> " + sent.string() + "\"]"});
  ASSERT_TRUE(progress(run));
  kill(nodes.at(0).pid(), SIGKILL);
  nodes.at(0).wait();
  const ProgramResult other = nodes.at(1).wait();
  EXPECT_EQ(other.exit_code, 3);
  EXPECT_THAT(other.err, AllOf(HasSubstr("supervise: lost leader: node 1 did not reach"),
                               HasSubstr("supervise: 0 restarts; useful")));
  EXPECT_EQ(read_supervision(run)->ended, "lost leader");
  EXPECT_GT(read_supervision(run)->times.useful, 0);
  EXPECT_THAT(read_file(supervision_file(run)),
              AllOf(HasSubstr(R"("cause":"lost node")"), HasSubstr(R"("node":0)")));
  EXPECT_THAT(read_file(run / "ending.json"), HasSubstr("which led the job, was lost"));
  EXPECT_THAT(read_file(sent), HasSubstr("gave_up: lost leader"));
  EXPECT_THAT(run_program({"postmortem", run.string()}).out,
              AllOf(HasSubstr("node 0 ("), HasSubstr("lost leader")));
}

// The run has no events yet, but is listed, and can be stopped.
TEST(SuperviseNodes, ARunThatWaitsForItsNodesIsListedAndStopped) {
  const TemporaryFolder folder;
  const Path run = run_folder(folder.path(), "waits");
  Nodes nodes(folder, "waits", 2, {}, 1);
  ASSERT_TRUE(wait_until([&] { return std::filesystem::exists(run / ".supervisor"); }));
  const ProgramResult runs = run_program({"runs", folder.path().string(), "--json"});
  EXPECT_THAT(runs.out, HasSubstr(R"("state": "waiting")"));
  const ProgramResult jobs = run_program({"jobs", folder.path().string()});
  EXPECT_THAT(jobs.out, AllOf(HasSubstr(fmt::format("process {}", nodes.at(0).pid())), HasSubstr("waiting"),
                              HasSubstr("waits for the machines")));
  const ProgramResult stop = run_program({"stop", run.string()});
  EXPECT_EQ(stop.exit_code, 0) << stop.err;
  EXPECT_EQ(nodes.at(0).wait().exit_code, 128 + SIGTERM);
  EXPECT_FALSE(std::filesystem::exists(run / ".supervisor"));
}

// Node 0, which leads, is lost for good: node 1 leads, the spare takes the place, and nothing is counted
// twice. Node 0 then returns as a spare.
TEST(SuperviseNodes, ARunOutlivesItsLeader) {
  const TemporaryFolder folder;
  test::expect_done(run_program(train(folder, "whole", 2, {})));
  const Path run = run_folder(folder.path(), "led"), whole = run_folder(folder.path(), "whole");
  Nodes nodes(folder, "led", 3, {"--spares=1"});
  ASSERT_TRUE(progress(run));
  pid_t victim = 0;
  ASSERT_TRUE(wait_until([&] { return (victim = nodes.rank(1, 1)) != 0; }));
  kill(victim, SIGKILL);  // one restart is counted before
  ASSERT_TRUE(progress(run));
  kill(nodes.at(0).pid(), SIGKILL);
  nodes.at(0).wait();
  ASSERT_TRUE(wait_until([&] { return nodes.rank(2, 0) != 0; }));
  ASSERT_TRUE(progress(run));
  nodes.start(0);
  const auto has = [&](const std::string& text) {
    return read_file(supervision_file(run)).find(text) != std::string::npos;
  };
  ASSERT_TRUE(wait_until([&] { return has(R"("cause":"joined","facts":{"node":0)"); }));
  const ProgramResult leader = nodes.at(1).wait(), spare = nodes.at(2).wait(), returned = nodes.at(0).wait();
  EXPECT_EQ(leader.exit_code, 0) << leader.err;
  EXPECT_EQ(spare.exit_code, 0) << spare.err;
  EXPECT_EQ(returned.exit_code, 0) << returned.err;
  EXPECT_THAT(leader.err, AllOf(HasSubstr("leads the job; node 0"), HasSubstr("takes place 0 of the job"),
                                HasSubstr("supervise: 2 restarts; useful")));
  EXPECT_THAT(spare.err, HasSubstr("the supervisor of node 0 (127.0.0.1) is lost"));
  expect_equal(run, whole);
  EXPECT_EQ(read_supervision(run)->restarts, 2);
  EXPECT_TRUE(has(R"("cause":"leads")"));
  EXPECT_FALSE(std::filesystem::exists(run / ".supervisors"));
  EXPECT_FALSE(std::filesystem::exists(run / ".supervisors-votes"));
}

// A request to stop on one machine ends the run on all, with a checkpoint.
TEST(SuperviseNodes, AStopOfOneNodeStopsTheJob) {
  const TemporaryFolder folder;
  const Path run = run_folder(folder.path(), "stopped");
  Nodes nodes(folder, "stopped", 2, {"train_iters=1000000"});
  ASSERT_TRUE(progress(run));
  kill(nodes.at(1).pid(), SIGTERM);
  const ProgramResult leader = nodes.at(0).wait(), other = nodes.at(1).wait();
  EXPECT_EQ(leader.exit_code, 0) << leader.err;
  EXPECT_EQ(other.exit_code, 0) << other.err;
  EXPECT_EQ(read_supervision(run)->ended, "stopped");
  EXPECT_EQ(read_supervision(run)->restarts, 0);
}

// The other machines would continue the run after the loss of the first supervisor.
TEST(SuperviseNodes, AnEndWithoutSavingEndsAllMachines) {
  const TemporaryFolder folder;
  const Path run = run_folder(folder.path(), "now");
  Nodes nodes(folder, "now", 3, {"--spares=1", "train_iters=1000000"});
  ASSERT_TRUE(progress(run));
  const ProgramResult stop = run_program({"stop", run.string(), "--now"});
  EXPECT_EQ(stop.exit_code, 0) << stop.err;
  EXPECT_THAT(stop.out, HasSubstr("the ranks of all machines"));
  for (const int node : {0, 1, 2}) EXPECT_NE(nodes.at(node).wait().exit_code, 0);
  EXPECT_EQ(read_supervision(run)->ended, "stopped");
  EXPECT_EQ(read_supervision(run)->restarts, 0);
  EXPECT_THAT(read_file(run / ".stop"), HasSubstr("\"now\":true"));
}

// A process that SIGSTOP has stopped continues with the request.
TEST(SuperviseNodes, AStopReachesAStoppedSupervisor) {
  const TemporaryFolder folder;
  const Path run = run_folder(folder.path(), "halted");
  Nodes nodes(folder, "halted", 2, {"train_iters=1000000"});
  ASSERT_TRUE(progress(run));
  kill(nodes.at(0).pid(), SIGSTOP);
  EXPECT_EQ(run_program({"stop", run.string()}).exit_code, 0);
  EXPECT_EQ(nodes.at(0).wait().exit_code, 0);
  EXPECT_EQ(nodes.at(1).wait().exit_code, 0);
  EXPECT_EQ(read_supervision(run)->ended, "stopped");
}

// The leader is lost before the others know of a request to stop. The next leader does not start the job
// again.
TEST(SuperviseNodes, ARequestToStopOutlivesTheLeader) {
  const TemporaryFolder folder;
  const Path run = run_folder(folder.path(), "asked");
  Nodes nodes(folder, "asked", 3, {"--spares=1", "train_iters=1000000"});
  ASSERT_TRUE(progress(run));
  kill(nodes.at(0).pid(), SIGSTOP);  // so it does not receive the request
  kill(nodes.at(1).pid(), SIGTERM);
  ASSERT_TRUE(wait_until([&] { return nodes.rank(1, 1) == 0; })) << "the ranks stop";
  kill(nodes.at(0).pid(), SIGKILL);
  nodes.at(0).wait();
  const ProgramResult leader = nodes.at(1).wait(), spare = nodes.at(2).wait();
  EXPECT_EQ(leader.exit_code, spare.exit_code);
  EXPECT_THAT(leader.err, HasSubstr("was asked to stop, and is not started again"));
  EXPECT_EQ(read_supervision(run)->ended, "stopped");
  EXPECT_EQ(read_supervision(run)->restarts, 0);
}

TEST(SuperviseNodes, WrongStartsAreRefused) {
  const TemporaryFolder folder;
  const auto refused = [&](std::vector<std::string> options) {
    const ProgramResult result = run_program(train(folder, "refused", 1, std::move(options)));
    EXPECT_EQ(result.exit_code, 2) << result.err;
    return result.err;
  };
  EXPECT_THAT(refused({"--spares=1"}), HasSubstr("--spares needs --supervise"));
  EXPECT_THAT(refused({"--supervise", "--spares=1"}),
              HasSubstr("--spares 1 of 1 machine leaves fewer than two"));
  EXPECT_THAT(
      refused({"--supervise", "--nnodes=2", "--spares=1", "--master_addr=127.0.0.1", "--master_port=1"}),
      HasSubstr("--spares 1 of 2 machines leaves fewer than two"));
  EXPECT_FALSE(std::filesystem::exists(run_folder(folder.path(), "refused")));
}

}  // namespace
}  // namespace primus
