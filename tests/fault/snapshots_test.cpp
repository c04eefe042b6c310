// Tests of snapshots in memory (snapshot_interval): supervised runs whose ranks and machines are killed
// continue from them, bit for bit, and never from damaged ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "comm/rendezvous/socket.h"
#include "fault/ranks.h"
#include "lm/events/supervision.h"

namespace primus {
namespace {

using test::job_of;
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

constexpr int kSteps = 600;

// Trains a model of a few thousand parameters. Only the end of the run writes a checkpoint, so a restart
// without a snapshot begins with step 1.
std::vector<std::string> train(const TemporaryFolder& folder, const std::string& name, int ranks,
                               std::vector<std::string> more) {
  more.insert(more.begin(), {"num_layers=2", "hidden_size=24", "ffn_hidden_size=48", "num_attention_heads=2",
                             "train_iters=" + std::to_string(kSteps), "save_interval=100000", "--quiet"});
  return test::train_ranks(folder, name, ranks, "optim", std::move(more));
}

// Returns the folders for snapshots of this user.
std::set<std::string> homes() {
  std::set<std::string> found;
  const std::string prefix = "primus-" + std::to_string(::geteuid()) + "-";
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    if (entry.path().filename().string().starts_with(prefix)) found.insert(entry.path());
  }
  return found;
}

std::string home_of(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/environ");
  for (std::string variable; std::getline(file, variable, '\0');) {
    if (variable.starts_with("PRIMUS_SNAPSHOT_FOLDER=")) return variable.substr(variable.find('=') + 1);
  }
  return "";
}

// Changes a byte in each snapshot below the folder. Returns the number of files.
int damage(const Path& folder) {
  int files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.path().extension() != ".safetensors") continue;
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(-1, std::ios::end);
    const char last = static_cast<char>(file.get() ^ 1);
    file.seekp(-1, std::ios::end);
    file.put(last);
    ++files;
  }
  return files;
}

// Returns the number of snapshots that all ranks have completed.
std::size_t snapshots(const Path& run) {
  const Path file = run / "events" / "rank-00000.jsonl";
  const std::string text = std::filesystem::exists(file) ? read_file(file) : "";
  std::size_t count = 0;
  for (std::size_t at = 0; (at = text.find(R"("state":"in memory")", at)) != text.npos; ++at) ++count;
  return count;
}

bool waits_for_snapshots(const Path& run) {
  const std::size_t before = snapshots(run);
  return wait_until([&] { return snapshots(run) >= before + 2; });
}

void expect_equal(const Path& run, const Path& whole) {
  EXPECT_EQ(losses(run), losses(whole));
  EXPECT_FALSE(test::final_weights(run, kSteps).empty());
  EXPECT_EQ(test::final_weights(run, kSteps), test::final_weights(whole, kSteps));
}

TEST(Snapshots, ARunContinuesFromMemoryAndNotFromDamage) {
  const TemporaryFolder folder;
  test::expect_done(run_program(train(folder, "whole", 2, {})));
  const Path run = run_folder(folder.path(), "killed"), whole = run_folder(folder.path(), "whole");
  Program program(train(folder, "killed", 2, {"--supervise", "snapshot_interval=10"}));
  ASSERT_TRUE(waits_for_snapshots(run));
  pid_t victim = 0, job = 0;
  ASSERT_TRUE(
      wait_until([&] { return (job = job_of(program.pid())) && (victim = test::process_of_rank(job, 1)); }));
  const std::string home = home_of(victim);
  ASSERT_TRUE(homes().contains(home));
  EXPECT_EQ(std::filesystem::status(home).permissions(), std::filesystem::perms::owner_all);
  kill(victim, SIGKILL);
  const auto restarts = [&] { return read_supervision(run).value_or(Supervision{}).restarts; };
  const auto recovered = [&] {
    const std::string events =
        std::filesystem::exists(supervision_file(run)) ? read_file(supervision_file(run)) : "";
    return events.find("supervise_recovered") != std::string::npos;
  };
  ASSERT_TRUE(wait_until(recovered));
  EXPECT_EQ(restarts(), 1);
  EXPECT_THAT(read_file(supervision_file(run)),
              AllOf(HasSubstr(R"("rung":"rank restart")"), HasSubstr(R"("state_from":"memory")")));
  // The second fault meets damaged snapshots of one rank. The supervisor is stopped meanwhile.
  ASSERT_TRUE(waits_for_snapshots(run));
  ASSERT_TRUE(
      wait_until([&] { return (job = job_of(program.pid())) && (victim = test::process_of_rank(job, 0)); }));
  const pid_t other = test::process_of_rank(job, 1);
  program.send(SIGSTOP);
  kill(victim, SIGKILL);
  kill(other, SIGKILL);
  // A new process may exist, but waits for the supervisor.
  ASSERT_TRUE(wait_until([&] { return test::process_of_rank(job, 1) != other; }));
  EXPECT_GE(damage(Path(home) / "own" / "rank-00001"), 1);
  program.send(SIGCONT);
  const ProgramResult result = program.wait();
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("supervise: 2 restarts; useful"));
  EXPECT_THAT(read_file(supervision_file(run)), HasSubstr(R"("first_step":1,"state_from":"start")"));
  expect_equal(run, whole);
  EXPECT_FALSE(homes().contains(home));
  const ProgramResult list = run_program({"runs", run.string(), "--json"});
  EXPECT_THAT(list.out, HasSubstr("\"restarts\": 2"));
}

TEST(Snapshots, ASpareFetchesTheSnapshotsOfALostNode) {
  const TemporaryFolder folder;
  test::expect_done(run_program(train(folder, "whole", 2, {})));
  const Path run = run_folder(folder.path(), "lost"), whole = run_folder(folder.path(), "whole");
  const std::uint16_t port = comm::port_of(comm::listen_on("127.0.0.1", 0));
  std::vector<std::unique_ptr<Program>> nodes;
  const std::set<std::string> earlier = homes();
  constexpr int kNodes = 3;
  for (int node = 0; node < kNodes; ++node) {
    nodes.push_back(std::make_unique<Program>(
        train(folder, "lost", 1,
              {"--supervise", "--nnodes=3", "--spares=1", "--node_rank=" + std::to_string(node),
               "--master_addr=127.0.0.1", "--master_port=" + std::to_string(port), "snapshot_interval=10"})));
  }
  ASSERT_TRUE(waits_for_snapshots(run));
  nodes[1]->send(SIGKILL);
  const ProgramResult leader = nodes[0]->wait(), spare = nodes[2]->wait();
  nodes[1]->wait();
  EXPECT_EQ(leader.exit_code, 0) << leader.err;
  EXPECT_EQ(spare.exit_code, 0) << spare.err;
  EXPECT_THAT(leader.err, HasSubstr("supervise: 1 restart; useful"));
  EXPECT_THAT(read_file(supervision_file(run)), HasSubstr(R"("state_from":"partner")"));
  expect_equal(run, whole);
  // A killed supervisor cannot remove its folder; the next one does.
  for (const std::string& home : homes()) {
    if (!earlier.contains(home) && home.find("-1-") != home.npos) std::filesystem::remove_all(home);
  }
}

TEST(Snapshots, UnsupportedRunsAreRefusedAndSettingsWithoutEffectNamed) {
  const TemporaryFolder folder;
  const ProgramResult alone =
      run_program(train(folder, "alone", 1, {"snapshot_interval=10", "train_iters=3"}));
  EXPECT_EQ(alone.exit_code, 0) << alone.err;
  EXPECT_THAT(alone.out + alone.err, HasSubstr("snapshot_interval has no effect without --supervise"));
  const ProgramResult four_bit = run_program(
      train(folder, "four", 1,
            {"snapshot_interval=10", "lora.enabled=true", "lora.base_weights=nf4", "load=/none"}));
  EXPECT_EQ(four_bit.exit_code, 2) << four_bit.err;
  EXPECT_THAT(four_bit.err, HasSubstr("snapshots in memory do not support frozen weights in 4 bits"));
}

}  // namespace
}  // namespace primus
