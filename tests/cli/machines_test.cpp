// Tests of preflight on two simulated machines, healthy and with network faults, and of a training between
// them. Skipped where the machines cannot be made (cli/machines.h).
#include "cli/machines.h"

#include "cli/program_names.h"

namespace primus {
namespace {

using namespace std::chrono_literals;
using test::Program;
using ::testing::AnyOf;
using Words = std::vector<std::string>;

const std::string kExperiment = PRIMUS_SOURCE_DIR "/examples/native/configs/CPU/llama_tiny-pretrain.yaml";

class Machines : public test::TwoMachines {
 protected:
  // Starts a rank on each machine.
  std::vector<std::unique_ptr<Program>> start(const Words& words,
                                              const std::map<std::string, std::string>& more = {}) {
    std::vector<std::unique_ptr<Program>> programs;
    for (int rank = 0; rank < 2; ++rank) {
      test::ProgramOptions options{.folder = folder_.path().string(),
                                   .environment = {{"RANK", std::to_string(rank)},
                                                   {"WORLD_SIZE", "2"},
                                                   {"LOCAL_RANK", "0"},
                                                   {"LOCAL_WORLD_SIZE", "1"},
                                                   {"GROUP_RANK", std::to_string(rank)},
                                                   {"MASTER_ADDR", "10.77.0.1"},
                                                   {"MASTER_PORT", "29400"},
                                                   {"PRIMUS_JOB_TOKEN", "between machines"}}};
      for (const auto& [name, value] : more) options.environment[name] = value;
      programs.push_back(machines_[static_cast<std::size_t>(rank)]->start(words, options));
    }
    return programs;
  }
  struct Report {
    int exit_code;
    json report;
    std::string err;
    // Returns the text of a check's findings with this verdict, of all nodes and of the cluster.
    std::string of(const std::string& check, const std::string& verdict) const {
      std::string text;
      const auto look = [&](const json& list) {
        for (const json& f : list) {
          if (f["check"] == check && f["verdict"] == verdict) text += f.dump() + "\n";
        }
      };
      for (const json& node : report["nodes"]) look(node["findings"]);
      look(report["cluster"]);
      return text;
    }
  };
  Report preflight(Words words, const std::map<std::string, std::string>& more = {}) {
    words.insert(words.begin(), "preflight");
    words.insert(words.end(), {"--skip-dmesg", "--dump-path", file("out"), "--no-html", "--json"});
    const auto programs = start(words, more);
    const ProgramResult first = programs[0]->wait();
    programs[1]->wait();
    return {first.exit_code, json::parse(first.out, nullptr, false), first.err};
  }
};

TEST_F(Machines, HealthyMachinesPass) {
  const Report network = preflight({"--network"});
  ASSERT_TRUE(network.report.is_object()) << network.err;
  EXPECT_EQ(network.exit_code, 0) << network.report.dump(1);
  ASSERT_EQ(network.report["nodes"].size(), 2U);
  EXPECT_EQ(network.report["nodes"][0]["host"], "node-a");
  EXPECT_EQ(network.report["nodes"][1]["host"], "node-b");
  EXPECT_THAT(network.of("network.way", "pass"), HasSubstr("eth0 leads to 10.77.0.1"));
  const Report speeds = preflight({"--tests", "inter-allreduce,inter-p2p", "--device", "cpu",
                                   "--comm-sizes-mb", "1", "--inter-group-sizes", "all"});
  ASSERT_TRUE(speeds.report.is_object()) << speeds.err;
  EXPECT_EQ(speeds.exit_code, 0) << speeds.report.dump(1);
  EXPECT_THAT(speeds.report.dump(), HasSubstr("all-reduce between nodes, 2 nodes, 1 MiB"));
}

TEST_F(Machines, AWrongInterfaceIsNamed) {
  // Tests an interface that neither machine has, and then an interface that is down.
  const Report absent = preflight({"--network"}, {{"NCCL_SOCKET_IFNAME", "ib0"}});
  EXPECT_EQ(absent.exit_code, 2);
  EXPECT_THAT(absent.of("network.interface-variables", "fail"),
              HasSubstr("NCCL_SOCKET_IFNAME=ib0 names no interface of this machine"));
  for (const auto& machine : machines_) machine->ip({"link", "add", "ib0", "type", "veth"});
  const Report down = preflight({"--network"}, {{"NCCL_SOCKET_IFNAME", "ib0"}});
  EXPECT_EQ(down.exit_code, 2);
  EXPECT_THAT(down.of("network.interface-variables", "fail"), HasSubstr("which is down"));
}

TEST_F(Machines, DifferentPacketSizesAreNamed) {
  b().ip({"link", "set", "eth0", "mtu", "1400"});
  const Report report = preflight({"--network"});
  ASSERT_TRUE(report.report.is_object()) << report.err;
  EXPECT_THAT(report.of("cluster.drift", "warn") + report.of("cluster.drift", "fail"),
              ::testing::AllOf(HasSubstr("1400"), HasSubstr("1500")))
      << report.report.dump(1);
}

TEST_F(Machines, AnUnpluggedCableIsNamedOnBothSides) {
  b().ip({"link", "set", "eth0", "down"});
  const auto began = std::chrono::steady_clock::now();
  const Words words = {"preflight",   "--network", "--skip-dmesg", "--dist-timeout-sec", "4", "--no-html",
                       "--dump-path", file("out"), "--json"};
  const auto programs = start(words);
  const ProgramResult first = programs[0]->wait(), second = programs[1]->wait();
  EXPECT_LT(std::chrono::steady_clock::now() - began, 60s);
  EXPECT_EQ(first.exit_code, 2);
  EXPECT_EQ(second.exit_code, 2);
  EXPECT_THAT(first.out, AllOf(HasSubstr("cluster.missing"), HasSubstr("rank 1")));
  EXPECT_THAT(second.out + second.err,
              AnyOf(HasSubstr("no route leads to MASTER_ADDR"), HasSubstr("leads to rank 0, is down"),
                    HasSubstr("Network is unreachable")));
}

TEST_F(Machines, TrainsAcrossTheCable) {
  const auto programs = start({"train", "pretrain", "--config", kExperiment, "train_iters=3",
                               "exp_name=two-machines", "workspace=" + file("runs"), "device=cpu"});
  for (const auto& program : programs) {
    ProgramResult result = program->wait();
    EXPECT_EQ(result.exit_code, 0) << result.out << result.err;
  }
}

// A pulled cable closes no connection. The silence is noticed after a timeout, and the error names the silent
// rank.
TEST_F(Machines, AMachineThatStopsRespondingInATrainingIsNamed) {
  const auto programs = start({"train", "pretrain", "--config", kExperiment, "train_iters=1000000",
                               "exp_name=silent", "workspace=" + file("runs"), "device=cpu"});
  ASSERT_TRUE(programs[0]->wait_for_error("iteration        2/", 60) || !programs[0]->running());
  ASSERT_TRUE(programs[0]->running());
  const auto cut = std::chrono::steady_clock::now();
  b().ip({"link", "set", "eth0", "down"});
  const ProgramResult first = programs[0]->wait(), second = programs[1]->wait();
  EXPECT_LT(std::chrono::steady_clock::now() - cut, 60s);
  EXPECT_NE(first.exit_code, 0);
  EXPECT_NE(second.exit_code, 0);
  EXPECT_THAT(first.err, HasSubstr("rank 1"));
}

}  // namespace
}  // namespace primus
