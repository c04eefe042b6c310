// Tests ranks that Open MPI's mpirun starts: every collective through MPI, and failures of ranks. Skipped
// without the plug-in or without mpirun.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/system/subprocess.h"

namespace primus::comm {
namespace {

using ::testing::HasSubstr;

struct MpiJob : ::testing::Test {
  void SetUp() override {
    if (find_program("mpirun", kPath).empty()) GTEST_SKIP() << "mpirun was not found: install openmpi-bin";
    if (!std::filesystem::exists(MPI_PLUGIN))
      GTEST_SKIP() << MPI_PLUGIN " was not found: install libopenmpi-dev and build again";
  }

  static SubprocessResult run(int ranks, std::vector<std::string> arguments,
                              std::map<std::string, std::string> environment = {}) {
    std::vector<std::string> command{"mpirun", "--oversubscribe", "-n", std::to_string(ranks)};
    if (getuid() == 0) command.push_back("--allow-run-as-root");
    environment.try_emplace("PRIMUS_PLUGIN_PATH", std::filesystem::path(MPI_PLUGIN).parent_path().string());
    for (const auto& [name, value] : environment) {
      command.push_back("-x");
      command.push_back(name + "=" + value);
    }
    command.push_back(RANK_PROGRAM);
    command.insert(command.end(), arguments.begin(), arguments.end());
    return run_subprocess(command, {.timeout = std::chrono::minutes(3), .path = kPath});
  }

  static constexpr const char* kPath = "/usr/local/bin:/usr/bin:/bin";
};

TEST_F(MpiJob, EveryCollectiveEqualsItsReference) {
  for (const int ranks : {2, 3, 4}) {
    const SubprocessResult result = run(ranks, {"conform", "mpi"});
    EXPECT_EQ(result.exit_code, 0) << ranks << result.out << result.err;
  }
}

// Ranks started by mpirun need no environment variables, and use shared memory within a host.
TEST_F(MpiJob, MpirunNeedsNoVariables) {
  const SubprocessResult result = run(2, {"conform"});
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
}

TEST_F(MpiJob, TheVariableChoosesTheTransport) {
  EXPECT_EQ(run(2, {"conform"}, {{"PRIMUS_TRANSPORT", "mpi"}}).exit_code, 0);
  const SubprocessResult result = run(2, {"conform"}, {{"PRIMUS_TRANSPORT", "smoke"}});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("PRIMUS_TRANSPORT 'smoke' is not a known transport"));
}

TEST_F(MpiJob, AFailingRankEndsTheJob) {
  const SubprocessResult result = run(3, {"fail", "mpi"});
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.err, HasSubstr("the data set of rank 1 is broken"));
}

TEST_F(MpiJob, AKilledRankEndsTheJob) {
  const SubprocessResult result = run(3, {"die", "mpi"});
  EXPECT_NE(result.exit_code, 0);
  EXPECT_FALSE(result.timed_out);
  EXPECT_THAT(result.out + result.err, HasSubstr("signal 9"));
}

TEST_F(MpiJob, AMissingRankIsNamed) {
  const SubprocessResult result = run(2, {"hang", "mpi"});
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.err,
              HasSubstr("rank 1 has not called it: its last collective in that group was barrier #1"));
}

TEST_F(MpiJob, AMissingPluginIsAnErrorWithTheNextStep) {
  const SubprocessResult result = run(2, {"conform"}, {{"PRIMUS_PLUGIN_PATH", "/nowhere"}});
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.err, HasSubstr("cannot find the MPI plug-in: no libprimus_comm-mpi.so in /nowhere"));
  EXPECT_THAT(result.err, HasSubstr("libopenmpi-dev"));
}

}  // namespace
}  // namespace primus::comm
