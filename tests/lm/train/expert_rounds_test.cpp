// Tests rounds in which tokens are sent to experts of other ranks (engine/parallel/expert_rounds.h). Results
// equal those of one round up to rounding, and have the same bits for every number of kept rows, for every
// load of the experts, and with and without overlap. The step uses exactly the measured memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "config/trainer_config.h"
#include "lm/train/rank_training.h"

namespace primus::test {
namespace {

// A mixture with shared experts and eight experts.
ModelConfig mixture(bool all_to_all) {
  ModelConfig c = tiny_deepseek();
  c.moe.experts = 8;
  c.moe.router.groups = c.moe.router.top_groups = 1;
  c.moe.training.all_to_all = all_to_all;
  return c;
}

struct Way {
  int ranks;
  engine::MeshShape mesh;
  engine::Sharding sharding = engine::Sharding::kNone;
  bool recompute = false, alternate = false;
  std::int64_t sequence = 16;  // a microbatch has two sequences
};

constexpr int kSteps = 3;
constexpr std::int64_t kMicrobatches = 8;

Outcome train(const ModelConfig& model, const Way& way, std::int64_t rounds, double margin,
              DType compute = DType::kF32) {
  SessionSettings settings = tiny_settings(compute, model);
  settings.model.moe.training.rounds = rounds;
  settings.model.moe.training.capacity_margin = margin;
  settings.evaluation = true;
  settings.sharding = way.sharding;
  settings.step.sequence = way.sequence;
  settings.step.recompute.full_layers = way.recompute ? model.layers : 0;
  settings.step.expert_overlap = {.microbatches = way.alternate};
  // With this epsilon, a gradient that is zero except for rounding does not cause an update of full size.
  config::TrainerConfig optimizer;
  optimizer.adam_eps = 1e-4;
  settings.optimizer.rules = update_rules_of(optimizer);
  Outcome outcome = train_on_ranks(settings, way.ranks, way.mesh, kSteps, kMicrobatches);
  expect_measured(outcome);
  return outcome;
}

void expect_near(const Outcome& a, const Outcome& b, double tolerance) {
  ASSERT_EQ(a.losses.size(), b.losses.size());
  for (std::size_t s = 0; s < a.losses.size(); ++s) {
    EXPECT_NEAR(a.losses[s], b.losses[s], tolerance * std::abs(b.losses[s]));
    EXPECT_NEAR(a.norms[s], b.norms[s], 10 * tolerance * std::abs(b.norms[s]));
  }
  EXPECT_NEAR(a.evaluation_loss, b.evaluation_loss, tolerance * std::abs(b.evaluation_loss));
}

TEST(ExpertRounds, TrainLikeOneRound) {
  using engine::Sharding;
  for (const bool all_to_all : {false, true}) {
    const ModelConfig model = mixture(all_to_all);
    for (const Way& way : {Way{2, {.expert = 2}}, Way{4, {.expert = 4}, Sharding::kStates, true},
                           Way{4, {.tensor = 2, .expert = 4}},
                           Way{4, {.expert = 2, .expert_tensor = 2}, Sharding::kParameters},
                           Way{4, {.expert = 4}, Sharding::kStates, false, true}}) {
      SCOPED_TRACE(testing::Message() << all_to_all << " " << way.ranks << " " << way.mesh.expert << " "
                                      << way.mesh.tensor << " " << way.alternate);
      const Outcome one = train(model, way, 1, 1000);
      // Ranges of different lengths: 32 tokens, or 16 with two tensor ranks, in 3 rounds.
      const Outcome three = train(model, way, 3, 1000);
      expect_near(three, one, 1e-5);
      EXPECT_TRUE(train(model, way, 3, 0.6) == three) << "the kept rows change bits";
      if (!way.alternate) continue;
      Way in_turn = way;
      in_turn.alternate = false;
      EXPECT_TRUE(train(model, in_turn, 3, 1000) == three) << "the overlap changes bits";
    }
  }
}

// All tokens of a step choose the same experts, so that one rank gets all rows, and other ranks get none.
TEST(ExpertRounds, TakeEveryLoad) {
  ModelConfig model = mixture(true);
  for (const std::int64_t first : {0, 6}) {
    for (const Way& way : {Way{4, {.expert = 4}}, Way{4, {.expert = 4, .host = 2}}}) {
      const auto losses = [&](std::int64_t rounds) {
        SessionSettings settings = tiny_settings(DType::kF32, model);
        settings.model.moe.training.rounds = rounds;
        settings.model.moe.training.capacity_margin = 0.6;
        settings.step.microbatches = 2;
        settings.evaluation = false;
        std::vector<double> of_steps;
        on_ranks(way.ranks, way.mesh, [&](engine::Rank& rank) {
          const auto session = open_session(rank, settings, all_families());
          session->store().initialize(rank.context(), 7);
          session->parallel().distribute_values();
          for (const engine::Parameter& p : session->store().parameters()) {
            if (!p.name.ends_with(".moe.choice_bias")) continue;
            auto* bias = static_cast<float*>(p.value.data);
            std::fill_n(bias, 8, 0.0F);
            bias[first] = bias[first + 1] = 100;
          }
          TrainingStep& step = session->step();
          for (int s = 0; s < 2; ++s) {
            step.begin(s + 1);
            for (std::int64_t i = 0; i < settings.step.microbatches; ++i) {
              const TestBatch batch(
                  32, model.vocab,
                  static_cast<std::uint64_t>(s * 100 + i * way.ranks + rank.mesh().data_rank()));
              step.microbatch(i, batch);
            }
            step.finish_gradients();
            const StepResult result = step.result();
            step.update(s + 1, 3e-3, 0.1);
            if (rank.mesh().rank() == 0) of_steps.push_back(result.loss);
          }
        });
        return of_steps;
      };
      const std::vector<double> one = losses(1);
      ASSERT_EQ(one.size(), 2U);
      // 100: more rounds than tokens
      for (const std::int64_t rounds : {4, 100}) {
        const std::vector<double> several = losses(rounds);
        for (std::size_t s = 0; s < one.size(); ++s) EXPECT_NEAR(several[s], one[s], 1e-5 * one[s]);
      }
    }
  }
}

// A microbatch with fewer tokens than rounds has one round for each token.
TEST(ExpertRounds, FewTokensTravelInFewerRounds) {
  using engine::Sharding;
  for (const bool all_to_all : {false, true}) {
    const ModelConfig model = mixture(all_to_all);
    for (Way way :
         {Way{4, {.expert = 4}, Sharding::kStates, true}, Way{2, {.expert = 2}, Sharding::kParameters},
          Way{4, {.expert = 4, .host = 2}}, Way{4, {.expert = 4}, Sharding::kNone, false, true}}) {
      if (way.mesh.host > 0 && !all_to_all) continue;
      SCOPED_TRACE(testing::Message() << all_to_all << " " << way.ranks << " " << way.alternate);
      way.sequence = 3;
      for (const double margin : {1000.0, 0.6}) {
        const Outcome six = train(model, way, 6, margin);
        EXPECT_TRUE(train(model, way, 7, margin) == six);
        EXPECT_TRUE(train(model, way, 64, margin) == six);
        expect_near(six, train(model, way, 1, margin), 1e-5);
      }
    }
    // Two tensor ranks share the two tokens of a microbatch, so each has one.
    const Way one{.ranks = 4, .mesh = {.tensor = 2, .expert = 4}, .sequence = 1};
    EXPECT_TRUE(train(model, one, 4, 0.6) == train(model, one, 1, 0.6));
  }
  ModelConfig adapted = tiny_lora_mixture();
  adapted.moe.experts = 4;
  const Way few{.ranks = 2, .mesh = {.expert = 2}, .sequence = 3};
  EXPECT_TRUE(train(adapted, few, 7, 1000) == train(adapted, few, 6, 1000));
}

TEST(ExpertRounds, AdaptersOfExpertsAndFp8RowsWork) {
  ModelConfig adapted = tiny_lora_mixture();
  adapted.moe.experts = 4;
  adapted.moe.training.all_to_all = true;
  const Way way{2, {.expert = 2}};
  expect_near(train(adapted, way, 3, 1000), train(adapted, way, 1, 1000), 1e-5);
  ModelConfig coded = mixture(true);
  coded.moe.training.fp8_dispatch = true;
  expect_near(train(coded, way, 3, 0.6), train(coded, way, 1, 1000), 1e-5);
  expect_near(train(coded, way, 3, 0.6, DType::kBF16), train(coded, way, 1, 1000, DType::kBF16), 1e-2);
}

// If each rank must be able to compute all tokens, the experts' rows take most of a step's stash.
TEST(ExpertRounds, DivideTheBuffers) {
  for (const bool all_to_all : {false, true}) {
    const auto stash = [&](std::int64_t rounds) {
      ModelConfig model = mixture(all_to_all);
      model.moe.training.rounds = rounds;
      model.moe.training.capacity_margin = 1;
      SessionSettings settings = tiny_settings(DType::kF32, model);
      settings.step.sequence = 512;
      settings.evaluation = false;
      std::int64_t bytes = 0;
      on_ranks(4, {.expert = 4}, [&](engine::Rank& rank) {
        const StepMeasurement measured = measure_session(rank, settings, builtin_families());
        if (rank.mesh().rank() == 0) bytes = measured.memory.stash;
      });
      return bytes;
    };
    const std::int64_t one = stash(1), two = stash(2), eight = stash(8);
    EXPECT_LT(two, one);
    EXPECT_LT(eight, two);
    // Halving the rounds' memory repeatedly leaves the rest: each halving saves half as much as the one
    // before.
    EXPECT_NEAR(static_cast<double>(two - eight) / static_cast<double>(one - two), 0.75, 0.1);
  }
}

}  // namespace
}  // namespace primus::test
