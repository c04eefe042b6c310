// Tests of 'primus watch' on simulated machines.
#include "safe/watch/node_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "safe/preflight/fake_machine.h"

namespace primus::watch {
namespace {

using nlohmann::json;
using preflight::Verdict;
using preflight::test::FakeMachine;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class NodeWatches : public ::testing::Test {
 protected:
  NodeWatches() { preflight::test::make_amd_node(fake_); }

  NodeWatchOptions options(Drain drain = Drain::kNone) const {
    NodeWatchOptions options{.drain = drain, .name = "n7"};
    options.node.questions.read_kernel_log = false;
    return options;
  }
  void break_gpu() { fake_.write("/sys/class/drm/card1/device/ras/umc_err_count", "ue: 3\nce: 0\n"); }
  void mend_gpu() { fake_.write("/sys/class/drm/card1/device/ras/umc_err_count", "ue: 0\nce: 0\n"); }
  // Returns the arguments of all calls of the scheduler's tool.
  std::string calls() const {
    std::ifstream file(fake_.root().string() + "/calls");
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void add_tool(const std::string& name, int exit_code) {
    fake_.tool(name, "echo \"" + name + " $*\" >> " + fake_.root().string() +
                         "/calls\necho broken >&2\nexit " + std::to_string(exit_code));
  }
  static std::vector<std::string> failed(const json& line) {
    std::vector<std::string> names;
    for (const json& finding : line.at("findings")) {
      if (finding.at("verdict") == "fail") names.push_back(finding.at("check"));
    }
    return names;
  }

  FakeMachine fake_;
};

TEST_F(NodeWatches, AFaultAndItsEndAreReported) {
  NodeWatch node(fake_.machine(), options());
  json line = json::parse(node.look());
  EXPECT_THAT(failed(line), ElementsAre()) << line.dump(2);
  EXPECT_NE(node.verdict(), Verdict::kFail);
  EXPECT_THAT(node.metrics(), AllOf(HasSubstr("primus_node_healthy{host="), HasSubstr("} 1\n")));
  break_gpu();
  line = json::parse(node.look());
  EXPECT_THAT(failed(line), ElementsAre("gpu.memory-errors"));
  EXPECT_EQ(line.at("verdict"), "fail");
  EXPECT_THAT(line.at("changed").dump(), AllOf(HasSubstr("gpu.memory-errors"), HasSubstr(R"("to":"fail")")));
  EXPECT_THAT(node.metrics(), HasSubstr(R"(check="gpu.memory-errors",where="gpu 1"} 3)"));
  mend_gpu();
  line = json::parse(node.look());
  EXPECT_EQ(failed(line).size(), 0U);
  EXPECT_THAT(line.at("changed").dump(), HasSubstr(R"("from":"fail")"));
}

// A busy GPU with another program is a fault before a job, but not during one.
TEST_F(NodeWatches, AJobOnTheNodeIsNoFault) {
  fake_.write("/sys/class/drm/card0/device/gpu_busy_percent", "100\n");
  fake_.write("/proc/loadavg", "900.00 900.00 900.00 1/1 1\n");
  NodeWatch node(fake_.machine(), options());
  const json line = json::parse(node.look());
  EXPECT_EQ(failed(line).size(), 0U) << line.dump(2);
  EXPECT_THAT(line.dump(), testing::Not(HasSubstr("gpu.activity")));
}

TEST_F(NodeWatches, SlurmDrainsANodeThatStaysUnhealthy) {
  add_tool("scontrol", 0);
  NodeWatch node(fake_.machine(), options(Drain::kSlurm));
  break_gpu();
  EXPECT_FALSE(json::parse(node.look()).contains("drain"));
  EXPECT_EQ(calls(), "");
  EXPECT_TRUE(json::parse(node.look()).contains("drain"));
  EXPECT_THAT(calls(),
              HasSubstr("scontrol update nodename=n7 state=drain reason=primus watch: gpu.memory-errors"));
  const std::string once = calls();
  node.look();
  EXPECT_EQ(calls(), once);
  EXPECT_THAT(node.metrics(), HasSubstr("primus_node_drained{host="));
}

TEST_F(NodeWatches, AFailedDrainIsTriedAgain) {
  add_tool("kubectl", 1);
  NodeWatchOptions of = options(Drain::kKubernetes);
  of.drain_after = 1;
  NodeWatch node(fake_.machine(), of);
  break_gpu();
  EXPECT_EQ(json::parse(node.look()).at("drain").at("error"), "broken");
  add_tool("kubectl", 0);
  EXPECT_FALSE(json::parse(node.look()).at("drain").contains("error"));
  EXPECT_THAT(calls(), HasSubstr("kubectl taint nodes n7 primus/watch=unhealthy:NoSchedule --overwrite"));
}

TEST_F(NodeWatches, ADryRunOnlyReportsTheCommand) {
  add_tool("scontrol", 0);
  NodeWatchOptions of = options(Drain::kSlurm);
  of.drain_after = 1;
  of.dry_run = true;
  NodeWatch node(fake_.machine(), of);
  break_gpu();
  const json line = json::parse(node.look());
  EXPECT_EQ(line.at("drain").at("command").at(0), "scontrol");
  EXPECT_EQ(line.at("drain").at("dry_run"), true);
  EXPECT_EQ(calls(), "");
}

}  // namespace
}  // namespace primus::watch
