// Tests that a rank can keep the tokens that it receives for its experts (moe_keep_received_tokens): results
// have the same bits as if the backward pass receives the tokens again, and a layer has one transfer less.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "lm/train/rank_training.h"

namespace primus::test {
namespace {

SessionSettings settings_of(bool all_to_all, bool keeps) {
  ModelConfig model = tiny_deepseek();
  model.moe.experts = 8;
  model.moe.router.groups = model.moe.router.top_groups = 1;
  model.moe.training.all_to_all = all_to_all;
  model.moe.training.keep_received = keeps;
  return tiny_settings(DType::kF32, model);
}

struct Way {
  int ranks;
  engine::MeshShape mesh;
  std::int64_t rounds = 1;
  double margin = 1000;
  bool alternate = false, fp8 = false, recompute = false;
};

TEST(KeptTokens, ChangeNoBits) {
  for (const bool all_to_all : {false, true}) {
    for (const Way& way :
         {Way{2, {.expert = 2}}, Way{.ranks = 4, .mesh = {.expert = 4}, .rounds = 3, .margin = 0.6},
          Way{.ranks = 4, .mesh = {.expert = 4}, .alternate = true},
          Way{4, {.tensor = 2, .expert = 2, .expert_tensor = 2}}, Way{4, {.expert = 4, .host = 2}},
          Way{.ranks = 2, .mesh = {.expert = 2}, .fp8 = true},
          Way{.ranks = 2, .mesh = {.expert = 2}, .recompute = true}}) {
      if (!all_to_all && (way.mesh.host > 0 || way.fp8)) continue;
      SCOPED_TRACE(testing::Message() << all_to_all << " " << way.ranks << " " << way.rounds << " "
                                      << way.alternate << way.fp8 << way.recompute);
      const auto train = [&](bool keeps) {
        SessionSettings settings = settings_of(all_to_all, keeps);
        settings.model.moe.training.rounds = way.rounds;
        settings.model.moe.training.capacity_margin = way.margin;
        settings.model.moe.training.fp8_dispatch = way.fp8;
        settings.step.expert_overlap = {.microbatches = way.alternate};
        settings.step.recompute.full_layers = way.recompute ? settings.model.layers : 0;
        Outcome outcome = train_on_ranks(settings, way.ranks, way.mesh, 2, 8);
        expect_measured(outcome);
        return outcome;
      };
      EXPECT_TRUE(train(true) == train(false));
    }
  }
}

TEST(KeptTokens, SaveATransferAndNeedMemory) {
  struct Cost {
    std::int64_t stash = 0;
    double bytes = 0;
  };
  for (const bool all_to_all : {false, true}) {
    const auto cost = [&](bool keeps) {
      Cost result;
      on_ranks(2, {.expert = 2}, [&](engine::Rank& rank) {
        const StepMeasurement measured =
            measure_session(rank, settings_of(all_to_all, keeps), builtin_families());
        if (rank.mesh().rank() != 0) return;
        result.stash = measured.memory.stash;
        for (const GroupTraffic& group : measured.communication) {
          if (group.group != "experts") continue;
          result.bytes += group.traffic[all_to_all ? comm::Kind::kAllToAll : comm::Kind::kAllGather].bytes;
        }
      });
      return result;
    };
    const Cost again = cost(false), kept = cost(true);
    EXPECT_GT(kept.stash, again.stash);
    EXPECT_LT(kept.bytes, again.bytes);
    // The four transfers send tokens, results, and both of their gradients.
    if (!all_to_all) continue;
    EXPECT_DOUBLE_EQ(kept.bytes * 5, again.bytes * 4);
  }
}

}  // namespace
}  // namespace primus::test
