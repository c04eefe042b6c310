// Tests of the network of a job's nodes, and of the order of nodes that follows from it.
#include "launch/network/node_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <optional>
#include <random>
#include <string>

#include "base/error.h"
#include "base/temporary_folder.h"
#include "launch/network/network.h"
#include "launch/node/node.h"
#include "surroundings.h"

namespace primus::launch {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr const char* kTree =
    "SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=n[1-4]\n"
    "SwitchName=leaf2 Level=0 LinkSpeed=1 Nodes=n[5-8]\n"
    "SwitchName=spine1 Level=1 LinkSpeed=1 Nodes=n[1-8] Switches=leaf[1-2]\n";

// A network in which node i is below the switch with the number above[i].
Network network_of(const std::vector<int>& above) {
  Network network{.source = "test", .nodes = {}, .switches = {}, .notes = {}};
  for (std::size_t i = 0; i < above.size(); ++i) {
    network.nodes.push_back("n" + std::to_string(i));
    network.switches.push_back({"s" + std::to_string(above[i])});
  }
  return network;
}

OrderedJob job_of(int ranks, JobMesh mesh, int spares = 0) {
  return {.ranks = ranks, .spares = spares, .mesh = mesh};
}

CrossedGroups crossed(const Network& network, const NodeOrder& order, const OrderedJob& job,
                      const std::string& kind) {
  for (const CrossedGroups& groups : crossed_groups(network, order, job))
    if (groups.kind == kind) return groups;
  return {};
}

std::string refusal(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    return error.what();
  }
  return "";
}

TEST(Network, ReadsSlurmsTree) {
  const Network network = parse_slurm_topology(kTree, {"n1", "n6", "n4"});
  EXPECT_THAT(network.switches, ElementsAre(ElementsAre("spine1", "leaf1"), ElementsAre("spine1", "leaf2"),
                                            ElementsAre("spine1", "leaf1")));
  EXPECT_THAT(network.notes, IsEmpty());
}

TEST(Network, ReadsSlurmsBlocks) {
  const Network network = parse_slurm_topology(
      "BlockName=b1 BlockIndex=0 Nodes=n[1-2] BlockSize=2\nBlockName=b2 BlockIndex=1 Nodes=n[3-4] "
      "BlockSize=2\n"
      "AggregatedBlock=b[1-2] BlockIndex=2 Nodes=n[1-4] BlockSize=4\n",
      {"n2", "n3"});
  EXPECT_THAT(network.switches, ElementsAre(ElementsAre("b[1-2]", "b1"), ElementsAre("b[1-2]", "b2")));
}

// A switch with a single switch below it has the same nodes, but a higher level.
TEST(Network, TheLevelDecidesBetweenEqualSwitches) {
  const Network network = parse_slurm_topology(
      "SwitchName=low Level=0 Nodes=n[1-2]\nSwitchName=high Level=1 Nodes=n[1-2] Switches=low\n", {"n1"});
  EXPECT_THAT(network.switches, ElementsAre(ElementsAre("high", "low")));
}

TEST(Network, MissingAndHostileRecordsAreNoted) {
  const Network flat = parse_slurm_topology("topology plug-in: flat\n", {"n1", "n2"});
  EXPECT_FALSE(flat.is_known());
  EXPECT_THAT(flat.notes, ElementsAre(HasSubstr("names no switch of the job's nodes")));
  const Network partly =
      parse_slurm_topology(std::string(kTree) + "SwitchName=x Nodes=n[5-\nNodes=n1\n\0\n", {"n1", "other"});
  EXPECT_THAT(partly.switches, ElementsAre(SizeIs(2), IsEmpty()));
  EXPECT_THAT(partly.notes, ElementsAre(HasSubstr("1 line of"), HasSubstr("1 node of the job")));
  std::string many;
  for (int i = 0; i < 40; ++i) many += "SwitchName=s" + std::to_string(i) + " Nodes=n[1-2]\n";
  EXPECT_THAT(parse_slurm_topology(many, {"n1"}).switches, ElementsAre(SizeIs(16)));
  // Each list is cut, and so is the sum of all lists.
  std::string large;
  for (int i = 0; i < 100; ++i) large += "SwitchName=s Nodes=x[0-999999999]\n";
  EXPECT_THAT(parse_slurm_topology(large, {"n1"}).notes, Contains(HasSubstr("could not be read")));
}

TEST(Network, ReadsAFile) {
  const test::TemporaryFolder folder;
  const Path file = folder.path() / "network.txt";
  write_file(file, "# nodes and switches\nn[1-2] spine leaf1\r\n\n n3\tspine leaf2  # last\n");
  Network network = read_network_file(file, {}, 3);
  EXPECT_THAT(network.nodes, ElementsAre("n1", "n2", "n3"));
  EXPECT_THAT(network.switches, ElementsAre(ElementsAre("spine", "leaf1"), ElementsAre("spine", "leaf1"),
                                            ElementsAre("spine", "leaf2")));
  network = read_network_file(file, {"n3", "n9"}, 2);
  EXPECT_THAT(network.switches, ElementsAre(ElementsAre("spine", "leaf2"), IsEmpty()));
  EXPECT_THAT(network.notes, ElementsAre(HasSubstr("1 node of the job")));
  EXPECT_FALSE(read_network_file(file, {"n8", "n9"}, 2).is_known());
  EXPECT_THAT(refusal([&] { read_network_file(file, {}, 4); }), HasSubstr("has 3 nodes, but the job has 4"));
  for (const auto& [line, said] : {std::pair("n4", "network.txt:5: 'n4' has no switch"),
                                   {"n[4 s", ":5: 'n[4' is neither a node nor a list"},
                                   {"n1 s", ":5: the node n1 occurs twice"},
                                   {"n4 slots=8", ":5: '=' has no meaning"},
                                   {"n4 1 2 3 4 5 6 7 8 9 a b c d e f g h", ":5: there are more than 16"}}) {
    write_file(file, std::string("n[1-2] spine leaf1\nn3 spine leaf2\n\n\n") + line + "\n");
    EXPECT_THAT(refusal([&] { read_network_file(file, {}, 4); }), HasSubstr(said)) << line;
  }
}

TEST(Network, SlicesAndSources) {
  test::Machine machine;
  machine.variables["PATH"] = "/nonexistent";
  const Network network = find_network("slices=2", {}, 5, machine.surroundings());
  EXPECT_THAT(network.switches,
              ElementsAre(ElementsAre("slice-0"), ElementsAre("slice-0"), ElementsAre("slice-1"),
                          ElementsAre("slice-1"), ElementsAre("slice-2")));
  EXPECT_THAT(refusal([&] { find_network("slices=0", {}, 5, machine.surroundings()); }),
              HasSubstr("the size of a slice is a number"));
  EXPECT_THAT(refusal([&] { find_network("slurm", {}, 5, machine.surroundings()); }),
              HasSubstr("this is no step of a Slurm job"));
  // Without scontrol, nodes keep Slurm's order.
  const Network none = find_network("slurm", {"n1", "n2"}, 2, machine.surroundings());
  EXPECT_FALSE(none.is_known());
  EXPECT_THAT(none.notes, ElementsAre(HasSubstr("scontrol is not installed here")));
}

// Nodes may get different answers, so a node does not decide alone to keep its place.
TEST(Network, ANodeDoesNotKeepItsOrderAlone) {
  test::Machine machine;
  const auto refused = [&] {
    try {
      find_network("slurm", {"n1", "n2"}, 2, machine.surroundings(), {.orders = true, .node = 1});
    } catch (const Error& error) {
      return error.render();
    }
    return std::string();
  };
  machine.variables["PATH"] = "/nonexistent";
  EXPECT_THAT(refused(), AllOf(HasSubstr("scontrol is not installed here"), HasSubstr("--topology FILE")));
  const test::TemporaryFolder folder;
  const Path scontrol = folder.path() / "scontrol";
  machine.variables["PATH"] = folder.path().string();
  const auto answers = [&](const std::string& script) {
    write_file(scontrol, "#!/bin/sh\n" + script + "\n");
    std::filesystem::permissions(scontrol, std::filesystem::perms::owner_all);
  };
  answers(":");
  EXPECT_THAT(refused(), HasSubstr("failed 3 times: empty answer"));
  answers("echo No topology information available >&2");
  EXPECT_EQ(refused(), "");
  EXPECT_EQ(wait_before_query(0, 5).count(), 0);
  EXPECT_NE(wait_before_query(1, 4), wait_before_query(1, 5));
}

TEST(Network, NodesNeedEqualNumbersOfTasks) {
  require_equal_tasks("4(x2),4", 3);
  EXPECT_THAT(refusal([] { require_equal_tasks("4(x2),2", 3); }), HasSubstr("node 0 has 4 and node 2 has 2"));
}

TEST(NodeOrder, NodesOfASwitchAreConsecutive) {
  const Network network = network_of({0, 1, 0, 1, 2, 2, 0, 0});
  const NodeOrder order = order_nodes(network, RankOrder::kSwitch, job_of(8, {}));
  // Switch 0 has four nodes; then two and two.
  EXPECT_THAT(order.nodes, ElementsAre(0, 2, 6, 7, 1, 3, 4, 5));
  EXPECT_EQ(order.place_of(6), 2);
  EXPECT_THAT(order_nodes(network, RankOrder::kGiven, job_of(8, {})).nodes,
              ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
}

// Node 0 is below a switch of three nodes. The switch of one node completes four, before the switch of four.
TEST(NodeOrder, SmallSwitchesCompleteGroups) {
  const NodeOrder order =
      order_nodes(network_of({0, 1, 1, 0, 2, 1, 1, 0}), RankOrder::kSwitch, job_of(1, {}));
  EXPECT_THAT(order.nodes, ElementsAre(0, 3, 7, 4, 1, 2, 5, 6));
}

TEST(NodeOrder, StagesOfAPipelineShareASwitch) {
  // Four nodes of eight ranks below two switches, two stages: 16 ranks each.
  const Network network = network_of({0, 1, 0, 1});
  const JobMesh mesh{.tensor = 8, .pipeline = 2};
  const OrderedJob job = job_of(8, mesh);
  const NodeOrder order = order_nodes(network, RankOrder::kPipeline, job);
  EXPECT_THAT(order.nodes, ElementsAre(0, 1, 2, 3));  // places 0 and 2 are one pipeline, below switch 0
  EXPECT_EQ(crossed(network, order, job, "pipeline").across, std::vector<int>{0});
  EXPECT_EQ(crossed(network, order, job, "data").across, std::vector<int>{16});
  EXPECT_EQ(crossed(network, order, job, "tensor").across_hosts, 0);
  const NodeOrder compact = order_nodes(network, RankOrder::kSwitch, job);
  EXPECT_THAT(compact.nodes, ElementsAre(0, 2, 1, 3));
  EXPECT_EQ(crossed(network, compact, job, "pipeline").across, std::vector<int>{16});
  EXPECT_EQ(crossed(network, compact, job, "data").across, std::vector<int>{0});
}

TEST(NodeOrder, StagesThatDoNotDivideTheNodesAreNoted) {
  const NodeOrder order =
      order_nodes(network_of({0, 1, 0}), RankOrder::kPipeline, job_of(2, {.pipeline = 6}));
  EXPECT_THAT(order.nodes, ElementsAre(0, 2, 1));
  EXPECT_THAT(order.notes, IsEmpty());  // a node holds two whole stages
  const NodeOrder uneven =
      order_nodes(network_of({0, 1, 0}), RankOrder::kPipeline, job_of(4, {.pipeline = 2}));
  EXPECT_THAT(uneven.notes, ElementsAre(HasSubstr("2 stages do not divide 3 nodes")));
  EXPECT_EQ(order.used, RankOrder::kPipeline);
  EXPECT_EQ(uneven.used, RankOrder::kSwitch);
}

TEST(NodeOrder, UnknownStagesAreNoted) {
  const Network network = network_of({0, 1, 0, 1});
  OrderedJob job = job_of(8, {.pipeline = 2});
  EXPECT_EQ(order_nodes(network, RankOrder::kPipeline, job).used, RankOrder::kPipeline);
  job.mesh = std::nullopt;
  const NodeOrder unknown = order_nodes(network, RankOrder::kPipeline, job);
  EXPECT_THAT(unknown.nodes, ElementsAre(0, 2, 1, 3));
  EXPECT_EQ(unknown.used, RankOrder::kSwitch);
  EXPECT_THAT(unknown.notes, ElementsAre(HasSubstr("the pipeline's stages are not known")));
  EXPECT_THAT(crossed_groups(network, unknown, job), IsEmpty());
  EXPECT_THAT(order_nodes(network, RankOrder::kSwitch, job).notes, IsEmpty());
  const NodeOrder single = order_nodes(network, RankOrder::kPipeline, job_of(8, {}));
  EXPECT_EQ(single.used, RankOrder::kSwitch);
  EXPECT_THAT(single.notes, ElementsAre(HasSubstr("the job has one stage")));
}

TEST(NodeOrder, SparesAreBelowSmallSwitches) {
  const Network network = network_of({0, 1, 0, 2, 2, 0, 0});
  const NodeOrder order = order_nodes(network, RankOrder::kSwitch, job_of(8, {}, 1));
  EXPECT_THAT(order.nodes, ElementsAre(0, 2, 5, 6, 3, 4, 1));
  EXPECT_THAT(drawn_network(network, order, job_of(8, {}, 1)),
              Contains("    n1: node 6 (given as 1), a spare"));
}

TEST(NodeOrder, UnknownNodesAreLast) {
  Network network = network_of({0, 1, 0, 1});
  network.switches[1].clear();
  EXPECT_THAT(order_nodes(network, RankOrder::kSwitch, job_of(1, {})).nodes, ElementsAre(0, 2, 3, 1));
  network.switches.assign(4, {});
  EXPECT_THAT(order_nodes(network, RankOrder::kPipeline, job_of(1, {.pipeline = 2})).nodes,
              ElementsAre(0, 1, 2, 3));
}

// Any order is a permutation that keeps node 0, and no order by switches is worse for groups of consecutive
// nodes than the given one.
TEST(NodeOrder, AnyNetworkGivesAPermutation) {
  std::mt19937 random(7);
  const auto below = [&](int limit) { return static_cast<int>(random() % static_cast<unsigned>(limit)); };
  for (int run = 0; run < 100; ++run) {
    const int stages = 1 << below(4), count = stages * (1 + below(12)), spares = below(4);
    Network network{.source = "test", .nodes = {}, .switches = {}, .notes = {}};
    for (int node = 0; node < count + spares; ++node) {
      SwitchPath path;
      for (int level = below(4); level > 0; --level) path.push_back("s" + std::to_string(below(3)));
      network.nodes.push_back("n" + std::to_string(node));
      network.switches.push_back(std::move(path));
    }
    const OrderedJob job = job_of(2, {.pipeline = stages}, spares);
    for (const RankOrder asked : {RankOrder::kSwitch, RankOrder::kPipeline}) {
      NodeOrder order = order_nodes(network, asked, job);
      EXPECT_EQ(order.nodes.front(), 0);
      EXPECT_THAT(drawn_network(network, order, job), Contains(HasSubstr("n0: node 0, ranks 0..1")));
      std::ranges::sort(order.nodes);
      std::vector<int> all(static_cast<std::size_t>(count + spares));
      std::iota(all.begin(), all.end(), 0);
      EXPECT_EQ(order.nodes, all);
    }
  }
}

TEST(NodeOrder, AdjacentGroupsCrossFewerSwitches) {
  std::mt19937 random(11);
  int given = 0, ordered = 0;
  for (int run = 0; run < 50; ++run) {
    std::vector<int> above;
    for (int node = 0; node < 64; ++node) above.push_back(static_cast<int>(random() % 9));
    const Network network = network_of(above);
    // Expert groups of 4 nodes.
    const OrderedJob job = job_of(8, {.expert = 32});
    const int before =
        crossed(network, order_nodes(network, RankOrder::kGiven, job), job, "expert").across.at(0);
    const int after =
        crossed(network, order_nodes(network, RankOrder::kSwitch, job), job, "expert").across.at(0);
    EXPECT_LE(after, before);
    given += before;
    ordered += after;
  }
  EXPECT_LT(ordered * 2, given);  // of 16 groups, at most 8 can cross one of 8 limits between switches
}

TEST(NodeOrder, IsFastForLargeJobs) {
  constexpr int kNodes = 1 << 16;
  std::vector<int> above(kNodes);
  for (int i = 0; i < kNodes; ++i) above[static_cast<std::size_t>(i)] = i;  // a switch for each node
  EXPECT_EQ(order_nodes(network_of(above), RankOrder::kPipeline, job_of(8, {.pipeline = 16})).nodes.size(),
            static_cast<std::size_t>(kNodes));
}

}  // namespace
}  // namespace primus::launch
