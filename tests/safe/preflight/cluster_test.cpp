// Tests of the comparison of nodes, and of the search for slow nodes and links.
#include "safe/preflight/cluster.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>

#include "safe/preflight/environment_facts.h"
#include "safe/preflight/fake_machine.h"
#include "safe/preflight/slow_search.h"

namespace primus::preflight {
namespace {

using ::testing::HasSubstr;

// Returns `count` equal nodes, with a few percent difference in speed.
std::vector<NodeReport> alike(int count) {
  std::vector<NodeReport> nodes;
  for (int i = 0; i < count; ++i) {
    NodeReport node{.rank = i, .node = i, .host = fmt::format("node-{}", i), .wall_clock = 1.8e9 + 0.01 * i};
    node.facts = {{"gpu", "NVIDIA driver", "580.1", Verdict::kFail},
                  {"host", "kernel", "6.1", Verdict::kWarn},
                  {"host", "memory available", std::to_string(i), Verdict::kPass}};
    node.measurements = {
        {.name = "gemm bf16",
         .where = "cuda:0",
         .unit = "TFLOP/s",
         .value = 700 + 5.0 * (i % 3),
         .compared = true},
        {.name = "storage", .where = "/", .unit = "MB/s", .value = 10.0 * i, .compared = false}};
    nodes.push_back(node);
  }
  return nodes;
}

// Returns the findings that are warnings or failures.
std::vector<Finding> trouble(const std::vector<Finding>& findings) {
  std::vector<Finding> result;
  for (const Finding& f : findings)
    if (f.verdict >= Verdict::kWarn) result.push_back(f);
  return result;
}

TEST(Cluster, EqualNodesGiveNoFinding) {
  for (const int count : {1, 2, 3, 8})
    EXPECT_TRUE(trouble(compare_nodes(alike(count), {.clock_skew_seconds = 1})).empty()) << count;
}

TEST(Cluster, DriftOfVersionsNamesTheNode) {
  auto nodes = alike(5);
  nodes[3].facts[0].value = "570.9";
  nodes[1].facts[1].value = "6.8";
  const auto found = trouble(compare_nodes(nodes, {}));
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[0].check, "cluster.drift");
  EXPECT_EQ(found[0].verdict, Verdict::kFail);
  EXPECT_THAT(found[0].measured, HasSubstr("'570.9' on node-3 (rank 3)"));
  EXPECT_THAT(found[0].wanted, HasSubstr("'580.1', as on 4 nodes"));
  EXPECT_EQ(found[1].verdict, Verdict::kWarn);
  EXPECT_THAT(found[1].measured, HasSubstr("'6.8' on node-1"));
}

TEST(Cluster, DifferentResultsOfADeviceAreDrift) {
  auto nodes = alike(3);
  for (auto& node : nodes)
    node.facts.push_back({"performance", "checksum of products of side 512", "0badcafe", Verdict::kFail});
  nodes[2].facts.back().value = "0badcaff";
  const auto found = trouble(compare_nodes(nodes, {}));
  ASSERT_EQ(found.size(), 1U);
  EXPECT_THAT(found[0].fix, HasSubstr("computes wrong results"));
}

TEST(Cluster, EveryDeviceOfEveryNodeIsCompared) {
  auto nodes = alike(3);
  for (auto& node : nodes)
    for (int device = 0; device < 4; ++device)
      node.facts.push_back({"performance", "checksum of products of side 512", "0badcafe", Verdict::kFail,
                            fmt::format("cuda:{}", device)});
  EXPECT_TRUE(trouble(compare_nodes(nodes, {})).empty());
  nodes[1].facts.back().value = "0badcaff";
  auto found = trouble(compare_nodes(nodes, {}));
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].verdict, Verdict::kFail);
  EXPECT_THAT(found[0].measured, HasSubstr("'0badcaff' on node-1 (rank 1), cuda:3"));
  EXPECT_EQ(found[0].wanted, "'0badcafe', as on 11 devices");
  // The devices of a single node are compared, too.
  found = trouble(compare_nodes({nodes[1]}, {}));
  ASSERT_EQ(found.size(), 1U);
  EXPECT_THAT(found[0].measured, HasSubstr("'0badcaff' on node-1 (rank 1), cuda:3"));
  EXPECT_TRUE(compare_nodes({nodes[0]}, {}).empty());
}

// Returns nodes whose environments have these variables.
std::vector<NodeReport> with_environments(const std::vector<std::map<std::string, std::string>>& variables) {
  auto nodes = alike(static_cast<int>(variables.size()));
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    test::FakeMachine fake;
    for (const auto& [name, value] : variables[i]) fake.set(name, value);
    add_environment_facts(*fake.machine(), nodes[i].facts);
  }
  return nodes;
}

TEST(Cluster, VariablesThatChangeJobsAreCompared) {
  const auto found = trouble(compare_nodes(with_environments({{{"NCCL_ALGO", "Ring"}, {"HOME", "/a"}},
                                                              {{"NCCL_ALGO", "Tree"}, {"HOME", "/b"}},
                                                              {{"NCCL_ALGO", "Ring"}}}),
                                           {}));
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].check, "cluster.drift");
  EXPECT_EQ(found[0].verdict, Verdict::kWarn);
  EXPECT_EQ(found[0].where, "NCCL_ALGO");
  EXPECT_EQ(found[0].measured, "NCCL_ALGO (environment) differs: 'Tree' on node-1 (rank 1)");
  EXPECT_EQ(found[0].wanted, "'Ring', as on 2 nodes");
  EXPECT_THAT(found[0].fix, HasSubstr("--env NCCL_ALGO=VALUE"));
}

TEST(Cluster, VariablesSetOnOnlySomeNodesAreNamed) {
  for (const char* name : {"NCCL_IB_DISABLE", "RCCL_MSCCL_ENABLE", "HSA_NO_SCRATCH_RECLAIM",
                           "GLOO_SOCKET_IFNAME", "UCX_TLS", "OMP_NUM_THREADS", "CUDA_DEVICE_MAX_CONNECTIONS",
                           "HIP_FORCE_DEV_KERNARG", "NVTE_FUSED_ATTN", "OMPI_MCA_btl", "LD_PRELOAD"}) {
    const auto found = trouble(compare_nodes(with_environments({{}, {{name, "1"}}, {}}), {}));
    ASSERT_EQ(found.size(), 1U) << name;
    EXPECT_EQ(found[0].where, name);
    EXPECT_THAT(found[0].measured, HasSubstr("'1' on node-1 (rank 1)"));
    EXPECT_EQ(found[0].wanted, "'not set', as on 2 nodes");
  }
  // A node with only measurements has no environment to compare.
  auto nodes = with_environments({{{"NCCL_ALGO", "Ring"}}, {{"NCCL_ALGO", "Ring"}}});
  nodes.push_back(alike(3).back());
  EXPECT_TRUE(trouble(compare_nodes(nodes, {})).empty());
}

TEST(Cluster, VariablesOfRanksOfOneNodeAreCompared) {
  auto nodes =
      with_environments({{{"NCCL_ALGO", "Ring"}}, {{"NCCL_ALGO", "Tree"}}, {{"NCCL_ALGO", "Ring"}}, {}});
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    nodes[i].host = "node-" + std::to_string(i / 2);
    nodes[i].node = static_cast<int>(i / 2);
  }
  const auto found = trouble(compare_nodes(nodes, {}));
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].measured,
            "NCCL_ALGO (environment) differs: 'Tree' on node-0 (rank 1); 'not set' on node-1 (rank 3)");
  EXPECT_EQ(found[0].wanted, "'Ring', as on 2 ranks");
  // A variable that assigns devices to the ranks of a node may differ between these ranks. Between nodes, the
  // variable is compared.
  auto cards = with_environments({{{"UCX_NET_DEVICES", "mlx5_0"}},
                                  {{"UCX_NET_DEVICES", "mlx5_1"}},
                                  {{"UCX_NET_DEVICES", "mlx5_0"}},
                                  {{"UCX_NET_DEVICES", "mlx5_1"}}});
  for (std::size_t i = 0; i < cards.size(); ++i) {
    cards[i].host = nodes[i].host;
    cards[i].node = nodes[i].node;
  }
  EXPECT_TRUE(trouble(compare_nodes(cards, {})).empty());
  cards[2].facts.back().value = "mlx5_7";
  EXPECT_EQ(trouble(compare_nodes(cards, {})).size(), 1U);
}

TEST(Cluster, VariablesOfASingleNodeMayDiffer) {
  for (const char* name : {"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "NODE_RANK",
                           "HOSTNAME", "NCCL_HOSTID", "OMPI_MCA_ess_base_vpid", "OMPI_MCA_orte_hnp_uri",
                           "PRIMUS_JOB_TOKEN", "PRIMUS_SIDE_BY_SIDE", "SLURM_PROCID", "RANK"})
    EXPECT_TRUE(trouble(compare_nodes(with_environments({{{name, "0"}}, {{name, "1"}}, {}}), {})).empty())
        << name;
}

TEST(Cluster, SecretsAreNotShown) {
  const auto nodes = with_environments({{{"UCX_SOME_PASSWORD", "sesame"}}, {}});
  const auto found = trouble(compare_nodes(nodes, {}));
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].where, "UCX_SOME_PASSWORD");
  for (const Fact& fact : nodes[0].facts) EXPECT_EQ(fact.value.find("sesame"), std::string::npos);
  EXPECT_THAT(found[0].measured + found[0].wanted, HasSubstr("'<redacted>'"));
}

TEST(Cluster, ClockSkew) {
  auto nodes = alike(4);
  nodes[2].wall_clock += 7;
  const auto found = trouble(compare_nodes(nodes, {.clock_skew_seconds = 1, .same_start = true}));
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].check, "cluster.clocks");
  EXPECT_THAT(found[0].measured, HasSubstr("node-2"));
  EXPECT_THAT(found[0].fix, HasSubstr("chronyd"));
}

TEST(Cluster, SlowRanksAreFoundAmongManyAndAmongTwo) {
  auto nodes = alike(8);
  nodes[5].measurements[0].value = 400;
  auto found = trouble(compare_nodes(nodes, {}));
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].check, "cluster.slow");
  EXPECT_EQ(found[0].verdict, Verdict::kWarn);  // 57 %
  EXPECT_THAT(found[0].measured,
              HasSubstr("node-5 (rank 5), cuda:0: gemm bf16 is 400 TFLOP/s, 57 % of the other ranks'"));
  nodes[5].measurements[0].value = 100;
  EXPECT_EQ(trouble(compare_nodes(nodes, {}))[0].verdict, Verdict::kFail);
  nodes = alike(2);
  nodes[0].measurements[0].value = 500;
  found = trouble(compare_nodes(nodes, {}));
  ASSERT_EQ(found.size(), 1U);
  EXPECT_THAT(found[0].where, HasSubstr("node-0"));
}

TEST(Cluster, ScatteredSpeedsAreNoOutliers) {
  auto nodes = alike(6);
  const double values[] = {500, 600, 700, 800, 900, 1000};
  for (int i = 0; i < 6; ++i) nodes[static_cast<std::size_t>(i)].measurements[0].value = values[i];
  EXPECT_TRUE(trouble(compare_nodes(nodes, {})).empty());
}

TEST(Cluster, MissingNodesAreNamed) {
  const auto found = trouble(compare_nodes(alike(3), {.missing = {"node-9"}, .missing_after = 60}));
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].verdict, Verdict::kFail);
  EXPECT_THAT(found[0].measured, HasSubstr("node-9 did not report within 60 s"));
}

TEST(Cluster, Median) {
  EXPECT_EQ(median_of({}), 0);
  EXPECT_EQ(median_of({3, 1, 2}), 2);
  EXPECT_EQ(median_of({4, 1, 2, 3}), 2.5);
  EXPECT_NEAR(scatter_of({1, 2, 3, 4, 5}, 3), 1.4826, 1e-12);
}

// --- search for slow nodes

std::vector<std::string> names_of(int count) {
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) names.push_back(fmt::format("node-{}", i));
  return names;
}

// Simulates a cluster. `rate` gives the speed of each group.
SearchRates simulate(const SearchPlan& plan, const std::function<double(const Group&)>& rate) {
  SearchRates rates;
  for (const auto& [rounds, out] :
       {std::pair(&plan.halves, &rates.halves), std::pair(&plan.pairs, &rates.pairs)}) {
    for (const Round& round : *rounds) {
      out->emplace_back();
      for (const Group& group : round) out->back().push_back(rate(group));
    }
  }
  return rates;
}

TEST(SlowSearch, PlansIncludeEveryNode) {
  for (int nodes = 2; nodes <= 33; ++nodes) {
    const SearchPlan plan = plan_search(nodes);
    ASSERT_FALSE(plan.halves.empty());
    EXPECT_EQ(plan.halves[0][0].size(), static_cast<std::size_t>(nodes));
    std::vector<int> met(static_cast<std::size_t>(nodes), 0);
    for (const Round& round : plan.pairs) {
      std::vector<int> in_round(met.size(), 0);
      for (const Group& pair : round) {
        ASSERT_EQ(pair.size(), 2U);
        EXPECT_LT(pair[0], pair[1]);
        for (const int node : pair) {
          ++met[static_cast<std::size_t>(node)];
          EXPECT_EQ(++in_round[static_cast<std::size_t>(node)], 1) << "a node in two concurrent pairs";
        }
      }
    }
    for (const int times : met) EXPECT_GE(times, std::min(nodes - 1, 6)) << nodes;
    for (const Round& round : plan.halves) {
      std::size_t covered = 0;
      for (const Group& group : round) covered += group.size();
      EXPECT_LE(covered, static_cast<std::size_t>(nodes));
    }
  }
  EXPECT_TRUE(plan_search(1).pairs.empty());
}

TEST(SlowSearch, EveryPairIsMeasuredIfRoundsAreEnough) {
  for (const int nodes : {2, 3, 4, 7, 8}) {
    std::set<Group> pairs;
    for (const Round& round : plan_search(nodes).pairs) pairs.insert(round.begin(), round.end());
    EXPECT_EQ(pairs.size(), static_cast<std::size_t>(nodes * (nodes - 1) / 2)) << nodes;
  }
}

TEST(SlowSearch, FindsSlowNodesWhereverTheyAre) {
  for (const int nodes : {3, 4, 5, 8, 16, 31}) {
    for (const std::set<int>& slow : {std::set<int>{0}, {nodes - 1}, {nodes / 2}, {0, nodes - 1}}) {
      if (2 * slow.size() >= static_cast<std::size_t>(nodes)) continue;
      const SearchPlan plan = plan_search(nodes);
      const SearchRates rates = simulate(plan, [&](const Group& group) {
        for (const int node : group)
          if (slow.count(node)) return 9.0;
        return 40.0 - 0.2 * static_cast<double>(group.size());
      });
      std::set<std::string> found, expected;
      for (const Finding& f : judge_search(plan, rates, names_of(nodes)))
        if (f.verdict >= Verdict::kWarn) found.insert(f.where);
      for (const int node : slow) expected.insert(fmt::format("node-{}", node));
      EXPECT_EQ(found, expected) << nodes;
    }
  }
}

TEST(SlowSearch, FindsASlowLinkBetweenHalves) {
  const SearchPlan plan = plan_search(16);
  auto findings = judge_search(plan, simulate(plan, [](const Group&) { return 40.0; }), names_of(16));
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].verdict, Verdict::kPass);
  // All groups of more than two nodes that cross the middle share one slow link.
  findings = judge_search(
      plan,
      simulate(plan,
               [](const Group& g) { return g.size() > 2 && g.front() < 8 && g.back() >= 8 ? 8.0 : 40.0; }),
      names_of(16));
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].check, "cluster.links");
  EXPECT_THAT(findings[0].measured, HasSubstr("node-0 to node-15 (16 nodes)"));
  EXPECT_THAT(findings[0].fix, HasSubstr("switches"));
  // Two nodes are slow only with each other, and the plan measures this pair.
  const Group& pair = plan.pairs[2][1];
  findings = judge_search(plan, simulate(plan, [&](const Group& g) { return g == pair ? 4.0 : 40.0; }),
                          names_of(16));
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].where, fmt::format("node-{} and node-{}", pair[0], pair[1]));
}

// A node is slow below 60 % of the median. A single pair is slow below 30 % of the median: 12 of 40 GB/s.
TEST(SlowSearch, ASinglePairIsSlowBelowHalfTheSpeed) {
  const SearchPlan plan = plan_search(16);
  const Group& pair = plan.pairs[2][1];
  const auto verdict_at = [&](double rate) {
    const SearchRates rates = simulate(plan, [&](const Group& g) { return g == pair ? rate : 40.0; });
    const std::vector<Finding> findings = judge_search(plan, rates, names_of(16), 0.6);
    EXPECT_EQ(findings.size(), 1U);
    return findings[0].verdict;
  };
  EXPECT_EQ(verdict_at(23), Verdict::kPass);
  EXPECT_EQ(verdict_at(12.1), Verdict::kPass);
  EXPECT_EQ(verdict_at(11.9), Verdict::kWarn);
}

}  // namespace
}  // namespace primus::preflight
