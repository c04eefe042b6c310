// Tests of training started by Open MPI's mpirun. The ranks need no environment variables, and results equal
// those of --nproc. Skipped without mpirun.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/files/file.h"
#include "base/system/subprocess.h"
#include "base/temporary_folder.h"
#include "cli/machines.h"
#include "cli/program.h"

namespace primus {
namespace {

constexpr const char* kPath = "/usr/local/bin:/usr/bin:/bin";

std::vector<std::string> training(const Path& folder, const std::string& name) {
  return {"train",
          "pretrain",
          "--config",
          PRIMUS_SOURCE_DIR "/examples/native/configs/CPU/llama_tiny-pretrain.yaml",
          "train_iters=3",
          "seq_length=32",
          "micro_batch_size=2",
          "global_batch_size=4",
          "tensor_model_parallel_size=2",
          "log_interval=1",
          "workspace=" + folder.string(),
          "work_group=w",
          "user_name=u",
          "exp_name=" + name};
}

std::vector<double> losses(const Path& folder, const std::string& name) {
  std::vector<double> found;
  std::istringstream lines(read_file(folder / "w/u" / name / "metrics.jsonl"));
  for (std::string line; std::getline(lines, line);)
    found.push_back(nlohmann::json::parse(line).at("lm_loss").get<double>());
  return found;
}

// Trains in two processes of this machine and returns the losses of the three steps.
std::vector<double> losses_of_one_machine(const Path& folder) {
  std::vector<std::string> command = training(folder, "alone");
  command.insert(command.end(), {"--nproc", "2"});
  const test::ProgramResult result = test::run_program(command);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  if (result.exit_code != 0) return {};
  return losses(folder, "alone");
}

// Starts two ranks on this machine.
class Mpi : public testing::Test {
 protected:
  void SetUp() override {
    if (find_program("mpirun", kPath).empty()) GTEST_SKIP() << "there is no mpirun: install openmpi-bin";
    if (!std::filesystem::exists(MPI_PLUGIN))
      GTEST_SKIP() << "there is no " MPI_PLUGIN ": install libopenmpi-dev and build again";
  }

  // `transport`: the value of PRIMUS_TRANSPORT; empty: the variable is not set.
  static SubprocessResult mpirun(const std::vector<std::string>& arguments,
                                 const std::string& transport = "") {
    std::vector<std::string> command{"mpirun", "--oversubscribe", "-n", "2"};
    if (getuid() == 0) command.emplace_back("--allow-run-as-root");
    if (!transport.empty()) command.insert(command.end(), {"-x", "PRIMUS_TRANSPORT=" + transport});
    command.emplace_back(PRIMUS_PROGRAM);
    command.insert(command.end(), arguments.begin(), arguments.end());
    return run_subprocess(command, {.timeout = std::chrono::minutes(3), .path = kPath});
  }

  const test::TemporaryFolder folder_;
};

TEST_F(Mpi, TrainingEqualsProcessesOfOneMachine) {
  const std::vector<double> expected = losses_of_one_machine(folder_.path());
  ASSERT_EQ(expected.size(), 3U);

  for (const std::string transport : {"auto", "mpi"}) {
    const SubprocessResult result = mpirun(training(folder_.path(), transport), transport);
    EXPECT_EQ(result.exit_code, 0) << transport << result.out << result.err;
    EXPECT_EQ(losses(folder_.path(), transport), expected) << transport;
  }
}

TEST_F(Mpi, BenchmarksMeasureCollectivesOverMpi) {
  const SubprocessResult result = mpirun({"benchmark", "rccl", "--transport", "mpi", "--sizes", "64K", "--op",
                                          "all_reduce", "--iters", "2", "--json"});
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_THAT(result.out, testing::HasSubstr("2 ranks on 1 node, MPI"));
}

// Each rank prints the error. The rank where it occurred prints it in full; the others name that rank and the
// next step.
TEST_F(Mpi, EveryRankPrintsTheError) {
  std::vector<std::string> command = training(folder_.path(), "wrong");
  command.insert(command.end(), {"mock_data=false", "data_path=/nowhere/text"});
  const SubprocessResult result = mpirun(command);
  EXPECT_EQ(result.exit_code, 2) << result.out << result.err;
  const std::string what = "data '/nowhere/text' does not exist";
  const std::size_t own = result.err.find("error: " + what), other = result.err.find("error: rank ");
  EXPECT_NE(own, std::string::npos) << result.err;
  if (other == std::string::npos) return;  // mpirun ended the other rank before it printed
  EXPECT_NE(result.err.find(what + " (", other), std::string::npos) << result.err;
}

// A command that needs no other rank also runs under mpirun, and ends with exit code 0.
TEST_F(Mpi, ADryRunUnderMpirunSucceeds) {
  std::vector<std::string> command = training(folder_.path(), "planned");
  command.push_back("--dry-run");
  const SubprocessResult result = mpirun(command);
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_THAT(result.out, testing::HasSubstr("memory of a rank"));
}

// Two simulated machines with a cable. mpirun on the first starts one rank there and one on the second,
// through a stand-in for ssh. The machines share only TCP.
class MpiMachines : public test::TwoMachines {
 protected:
  void SetUp() override {
    test::TwoMachines::SetUp();
    if (IsSkipped()) return;
    for (const auto& [tool, package] :
         {std::pair("mpirun", "openmpi-bin"), std::pair("nsenter", "util-linux")}) {
      if (find_program(tool, kPath).empty())
        GTEST_SKIP() << "there is no " << tool << ": install " << package;
    }
    if (!std::filesystem::exists(MPI_PLUGIN))
      GTEST_SKIP() << "there is no " MPI_PLUGIN ": install libopenmpi-dev and build again";
    // The stand-in gets the arguments of ssh: options, the host, and a command for the host's shell.
    write_file(agent_,
               "#!/bin/sh\nwhile [ \"$1\" != 10.77.0.2 ]; do shift; done\nshift\nexec nsenter --net=" +
                   b().space("net") + " --uts=" + b().space("uts") + " --mount=" + b().space("mnt") +
                   " sh -c \"$*\"\n");
    std::filesystem::permissions(agent_, std::filesystem::perms::owner_all);
  }

  // Starts a rank on each machine.
  SubprocessResult mpirun(const std::string& transport, const std::vector<std::string>& arguments) {
    std::vector<std::string> command{"mpirun", "--allow-run-as-root", "--bind-to", "none", "-n", "2"};
    command.insert(command.end(),
                   {"--host", "10.77.0.1:1,10.77.0.2:1", "-x", "PRIMUS_TRANSPORT=" + transport});
    for (const auto& [name, value] :
         {std::pair("plm_rsh_agent", agent_.c_str()), std::pair("btl", "tcp,self"),
          std::pair("btl_tcp_if_include", "10.77.0.0/24"), std::pair("oob_tcp_if_include", "10.77.0.0/24")})
      command.insert(command.end(), {"--mca", name, value});
    command.push_back(PRIMUS_PROGRAM);
    command.insert(command.end(), arguments.begin(), arguments.end());
    return a().call(
        [&] { return run_subprocess(command, {.timeout = std::chrono::minutes(3), .path = kPath}); });
  }

  const std::string agent_ = file("agent");
};

TEST_F(MpiMachines, TrainingEqualsTwoProcessesOfOneMachine) {
  const std::vector<double> expected = losses_of_one_machine(folder_.path());
  ASSERT_EQ(expected.size(), 3U);
  for (const std::string transport : {"auto", "mpi"}) {
    const SubprocessResult result = mpirun(transport, training(folder_.path(), transport));
    EXPECT_EQ(result.exit_code, 0) << transport << result.out << result.err;
    EXPECT_EQ(losses(folder_.path(), transport), expected) << transport;
  }
}

TEST_F(MpiMachines, CountAsTwoNodes) {
  const SubprocessResult result = mpirun(
      "auto", {"benchmark", "collectives", "--sizes", "64K", "--op", "all_reduce", "--iters", "2", "--json"});
  EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  EXPECT_THAT(result.out, testing::HasSubstr("2 ranks on 2 nodes, MPI"));
}

}  // namespace
}  // namespace primus
