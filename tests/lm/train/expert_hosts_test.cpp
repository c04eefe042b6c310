// Tests the choice between one hop and two hops for tokens that go to the experts of other hosts.
#include "lm/train/settings/expert_hosts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "lm/model/family.h"
#include "lm/train/job_ranks.h"
#include "lm/train/settings/training_settings.h"
#include "lm/train/trainer.h"

namespace primus {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

config::Experiment experiment(const std::string& more, int gpus_per_host = 0) {
  config::LoadOptions options;
  options.environment = [](const std::string&) { return std::nullopt; };
  options.preset_dirs.emplace();
  config::Experiment e = config::load_experiment_text(
      "{work_group: g, user_name: u, exp_name: e, workspace: w, modules: {pre_trainer: {overrides: "
      "{mock_data: true, model_type: mixtral, num_layers: 2, hidden_size: 128, num_attention_heads: 4, "
      "vocab_size: 512, seq_length: 256, micro_batch_size: 1, global_batch_size: 16, num_threads: 1, "
      "num_experts: 16, moe_router_topk: 4, ffn_hidden_size: 64, moe_ffn_hidden_size: 64, "
      "expert_model_parallel_size: 8, moe_token_dispatcher_type: alltoall" +
          more + "}}}}",
      "e.yaml", {}, options);
  if (gpus_per_host > 0) {
    e.hardware =
        std::make_shared<const config::Hardware>(config::Hardware{.file = "x.yaml",
                                                                  .short_name = "x",
                                                                  .name = "a GPU",
                                                                  .source = "this test",
                                                                  .device = "cuda",
                                                                  .match = {"x"},
                                                                  .memory_gib = 80,
                                                                  .peak_tflops = 1000,
                                                                  .peak_memory = 3000,
                                                                  .link = 450,
                                                                  .network = 50,
                                                                  .gpus_per_host = 1.0 * gpus_per_host});
  }
  return e;
}

MoeConfig mixture(std::int64_t experts, std::int64_t top_k) {
  MoeConfig moe;
  moe.experts = experts;
  moe.router.top_k = top_k;
  moe.training.all_to_all = true;
  return moe;
}

// A token with 8 of 256 experts has experts on most hosts, and on several ranks of a host.
TEST(ExpertHosts, ExpectedRowsFollowFromEvenChoices) {
  const engine::MeshShape shape{.expert = 32, .host = 8};
  const ExpertRows one = rows_in_one_hop(mixture(256, 1), shape),
                   two = rows_in_two_hops(mixture(256, 1), shape);
  EXPECT_DOUBLE_EQ(one.between_hosts, 24.0 / 32);
  EXPECT_DOUBLE_EQ(two.between_hosts, 3.0 / 4);
  EXPECT_DOUBLE_EQ(one.within_host, 7.0 / 32);
  EXPECT_DOUBLE_EQ(two.within_host, 7.0 / 8);
  // With as many choices as experts, every token goes to every rank.
  EXPECT_DOUBLE_EQ(rows_in_one_hop(mixture(256, 256), shape).between_hosts, 24);
  EXPECT_DOUBLE_EQ(rows_in_two_hops(mixture(256, 256), shape).between_hosts, 3);
  // 8 of 256: a token misses a host with probability C(192, 8) / C(256, 8), about 0.096.
  EXPECT_NEAR(rows_in_two_hops(mixture(256, 8), shape).between_hosts, 3 * 0.904, 0.01);
  // Two ranks have each expert.
  const engine::MeshShape divided{.expert = 16, .expert_tensor = 2, .host = 8};
  EXPECT_DOUBLE_EQ(rows_in_one_hop(mixture(256, 1), divided).between_hosts, 24.0 / 16);
  EXPECT_DOUBLE_EQ(rows_in_two_hops(mixture(256, 1), divided).between_hosts, 3.0 / 4);
}

// The table of docs/parallelism.md.
TEST(ExpertHosts, TwoHopsPayIfTokensHaveSeveralExpertsOnAHost) {
  struct Row {
    std::int64_t experts, top_k;
    int hosts;  // of eight ranks each
    ExpertRows one, two;
    bool two_hops;
  };
  for (const Row& row : {Row{256, 8, 4, {5.45, 1.59}, {2.71, 6.36}, true},
                         {128, 8, 2, {3.30, 2.89}, {1.00, 5.77}, true},
                         {16, 2, 2, {1.00, 0.88}, {0.77, 1.75}, true},
                         {128, 1, 2, {0.50, 0.44}, {0.50, 0.88}, false},
                         {128, 2, 16, {1.88, 0.11}, {1.82, 1.75}, false}}) {
    SCOPED_TRACE(testing::Message() << row.top_k << " of " << row.experts << " on " << row.hosts << " hosts");
    const MoeConfig moe = mixture(row.experts, row.top_k);
    const engine::MeshShape shape{.expert = 8 * row.hosts, .host = 8};
    constexpr double kHalfDigit = 0.0051;
    EXPECT_NEAR(rows_in_one_hop(moe, shape).between_hosts, row.one.between_hosts, kHalfDigit);
    EXPECT_NEAR(rows_in_one_hop(moe, shape).within_host, row.one.within_host, kHalfDigit);
    EXPECT_NEAR(rows_in_two_hops(moe, shape).between_hosts, row.two.between_hosts, kHalfDigit);
    EXPECT_NEAR(rows_in_two_hops(moe, shape).within_host, row.two.within_host, kHalfDigit);
    EXPECT_EQ(two_hops_are_faster(moe, shape), row.two_hops);
  }
}

TEST(ExpertHosts, HostsHaveEqualNumbersOfConsecutiveRanks) {
  EXPECT_EQ(ranks_per_host({"a"}), 1);
  EXPECT_EQ(ranks_per_host({"a", "a", "b", "b"}), 2);
  EXPECT_EQ(ranks_per_host({"a", "a", "a", "a"}), 4);
  EXPECT_EQ(ranks_per_host({"a", "b", "c", "d"}), 1);
  EXPECT_EQ(ranks_per_host({"a", "a", "b"}), 0);
  EXPECT_EQ(ranks_per_host({"a", "b", "a", "b"}), 0);
  EXPECT_EQ(ranks_per_host({"a", "a", "b", "c"}), 0);
  EXPECT_EQ(ranks_per_host({"a", "a", "b", "b", "a", "a"}), 0);
}

TEST(ExpertHosts, TheChoiceSaysItsReason) {
  const ExpertHostChoice two = choose_expert_hosts(mixture(128, 8), {.expert = 16}, 8);
  EXPECT_EQ(two.host, 8);
  EXPECT_THAT(two.note, HasSubstr("2 hosts in two hops"));
  const auto one_hop = [&](const MoeConfig& moe, const engine::MeshShape& shape, int on_host) {
    const ExpertHostChoice choice = choose_expert_hosts(moe, shape, on_host);
    EXPECT_EQ(choice.host, 0);
    return choice.note;
  };
  EXPECT_THAT(one_hop(mixture(128, 8), {.expert = 16}, 0), HasSubstr("different numbers of ranks"));
  EXPECT_THAT(one_hop(mixture(96, 8), {.expert = 12}, 8), HasSubstr("do not fill several hosts"));
  EXPECT_THAT(one_hop(mixture(128, 1), {.expert = 16}, 8), HasSubstr("moe_ranks_per_host: 8"));
  EXPECT_THAT(one_hop(mixture(128, 8), {.expert = 8}, 8), IsEmpty());
  EXPECT_THAT(one_hop(mixture(128, 8), {.expert = 16}, 1), IsEmpty());
  EXPECT_THAT(one_hop(mixture(0, 0), {}, 8), IsEmpty());
  MoeConfig gathered = mixture(128, 8);
  gathered.training.all_to_all = false;
  EXPECT_THAT(one_hop(gathered, {.expert = 16}, 8), IsEmpty());
}

TEST(ExpertHosts, TheKeySetsTheNumberOfRanks) {
  const auto host = [](const std::string& more) { return mesh_shape_of(experiment(more), 8).host; };
  EXPECT_EQ(host(", moe_ranks_per_host: 4"), 4);
  EXPECT_EQ(host(", moe_ranks_per_host: 2"), 2);
  EXPECT_EQ(host(", moe_ranks_per_host: 1"), 0);
  EXPECT_EQ(host(", moe_ranks_per_host: 72"), 0);
  EXPECT_EQ(host(""), 0);
  const auto refusal = [&](const std::string& more) -> std::string {
    try {
      host(more);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalid);
      return std::string(error.what()) + " " + error.hint();
    }
    return "";
  };
  EXPECT_THAT(refusal(", moe_ranks_per_host: 3"), HasSubstr("does not divide the 8 ranks"));
  EXPECT_THAT(refusal(", moe_ranks_per_host: 3"), HasSubstr("1, 2, 4, 8"));
}

// A plan for GPUs counts the bytes and the buffers of both hops.
TEST(ExpertHosts, PlansCountBothHops) {
  Logger log(LogOptions{.console_level = LogLevel::kError});
  const auto plan = [&](const std::string& more, int gpus_per_host) {
    return Trainer(experiment(more, gpus_per_host), builtin_families(), log).forecast(8);
  };
  const auto bytes = [](const TrainingForecast& f, const std::string& name) {
    for (const GroupTraffic& group : f.step().communication)
      if (group.group == name) return group.traffic[comm::Kind::kAllToAll].bytes;
    return 0.0;
  };
  const TrainingForecast two = plan("", 4), one = plan(", moe_ranks_per_host: 1", 4), whole = plan("", 8);
  EXPECT_EQ(two.mesh.host, 4);
  EXPECT_EQ(one.mesh.host, 0);
  EXPECT_EQ(whole.mesh.host, 0);
  EXPECT_EQ(bytes(two, "experts"), 0);
  // In one hop, rows go to 4 ranks of the other host; in two hops, to one.
  EXPECT_DOUBLE_EQ(bytes(two, "expert_places"), bytes(one, "experts") / 7);
  EXPECT_DOUBLE_EQ(bytes(two, "expert_host"), bytes(one, "experts") / 7 * 2 * 3);
  EXPECT_GT(two.step().memory.stash, one.step().memory.stash);
  EXPECT_LT(two.hardware->time.communication, one.hardware->time.communication);
}

}  // namespace
}  // namespace primus
