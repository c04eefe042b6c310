// Tests the training of a whole mixture of experts. The losses enter the gradient with their reported weight.
// Choices are counted once and dropped above the capacity of an expert. Biases balance the experts.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "lm/train/tiny_model.h"

namespace primus::test {
namespace {

struct TrainingRun {
  explicit TrainingRun(const SessionSettings& settings, std::uint64_t seed = 7)
      : config(settings.model),
        rank(turbo::make_cpu_device(2)),
        session(open_session(rank, settings, builtin_families())) {
    session->store().initialize(rank.context(), seed);
  }

  StepResult forward_backward(std::int64_t step_number = 1) {
    TrainingStep& step = session->step();
    const StepSettings& s = step.settings();
    step.begin(step_number);
    for (std::int64_t i = 0; i < s.microbatches; ++i) {
      step.microbatch(i, TestBatch(s.micro_batch * s.sequence, config.vocab, static_cast<std::uint64_t>(i)));
    }
    step.finish_gradients();
    return step.result();
  }

  // Returns the value whose gradient the step computes.
  double objective() {
    const StepResult result = forward_backward();
    double sum = result.loss;
    for (const LayerRouting& layer : result.routing) {
      sum +=
          config.moe.training.balance_loss * layer.balance_loss + config.moe.training.z_loss * layer.z_loss;
    }
    return sum;
  }

  std::vector<float> read(const Tensor& tensor) {
    std::vector<float> values(static_cast<std::size_t>(tensor.elements()));
    rank.compute().copy_to_host(values.data(), tensor.data, tensor.bytes());
    rank.compute().synchronize();
    return values;
  }
  void write(const Tensor& tensor, const std::vector<float>& values) {
    rank.compute().copy_to_device(tensor.data, values.data(), tensor.bytes());
    rank.compute().synchronize();
  }

  // Enlarges router weights, which gives clear choices and uneven loads.
  void scale_routers(float factor) {
    for (engine::Parameter& p : session->store().parameters()) {
      if (!p.name.ends_with("router")) continue;
      std::vector<float> values = read(p.value);
      for (float& v : values) v *= factor;
      write(p.value, values);
    }
  }

  ModelConfig config;
  engine::Rank rank;
  std::unique_ptr<TrainingSession> session;
};

// All settings that affect the gradient through the router.
struct RouterCase {
  const char* name;
  void (*set)(MoeConfig& moe);
};
constexpr RouterCase kRouterCases[] = {
    {"BalanceOverTheMicrobatch", [](MoeConfig& m) { m.training.balance_loss = 0.7; }},
    {"BalanceOverSequences",
     [](MoeConfig& m) {
       m.training.balance_loss = 0.7;
       m.training.balance_sequences = true;
     }},
    {"Z", [](MoeConfig& m) { m.training.z_loss = 0.3; }},
    {"Jitter", [](MoeConfig& m) { m.training.jitter = 0.2; }},
    {"DropsTheLightest", [](MoeConfig& m) { m.training.capacity_factor = 0.8; }},
    {"DropsTheLast",
     [](MoeConfig& m) {
       m.training.capacity_factor = 0.8;
       m.training.drop_lightest = false;
     }},
    {"SigmoidWithBias",
     [](MoeConfig& m) {
       m.router.scoring = turbo::RouterRule::Scoring::kSigmoid;
       m.choice_bias = true;
       m.training.balance_loss = 0.7;
     }},
    {"Capped",
     [](MoeConfig& m) {
       m.logit_cap = 2;
       m.training.balance_loss = 0.7;
       m.training.z_loss = 0.3;
     }},
    {"ForcedEven", [](MoeConfig& m) { m.training.forced = turbo::RouterRule::Forced::kEven; }},
    {"ForcedUniform", [](MoeConfig& m) { m.training.forced = turbo::RouterRule::Forced::kUniform; }},
    {"AllTogether", [](MoeConfig& m) {
       m.training = {.balance_loss = 0.7,
                     .balance_sequences = true,
                     .z_loss = 0.3,
                     .capacity_factor = 0.8,
                     .jitter = 0.2};
     }}};

class RouterTraining : public testing::TestWithParam<RouterCase> {};

struct Slopes {
  double near = 0, far = 0;  // slopes with a small step, and with a step twice as large
};
// Returns the slopes of the objective along its gradient, divided by the gradient's length: 1 if the gradient
// is correct. All weights move, so a slope covers the router, the experts, the permutation, and the
// gradients of all losses.
Slopes slopes_of(TrainingRun& run) {
  run.objective();
  std::vector<std::vector<float>> gradients, weights;
  double squares = 0;
  for (const engine::ParameterUnit& unit : run.session->store().units()) {
    if (!unit.trained) continue;
    gradients.push_back(run.read(unit.gradient));
    weights.push_back(run.read(unit.stored.master));
    for (const float g : gradients.back()) squares += static_cast<double>(g) * static_cast<double>(g);
  }
  const double norm = std::sqrt(squares), distance = 1e-4;
  const auto moved = [&](double by) {
    std::size_t u = 0;
    for (const engine::ParameterUnit& unit : run.session->store().units()) {
      if (!unit.trained) continue;
      std::vector<float> values = weights[u];
      for (std::size_t i = 0; i < values.size(); ++i)
        values[i] += static_cast<float>(by / norm * static_cast<double>(gradients[u][i]));
      run.write(unit.stored.master, values);
      ++u;
    }
    return run.objective();
  };
  const auto slope = [&](double d) { return (moved(d) - moved(-d)) / (2 * d) / norm; };
  return {slope(distance), slope(2 * distance)};
}

TEST_P(RouterTraining, GradientsEqualFiniteDifferencesOfReportedLosses) {
  SessionSettings settings = tiny_settings(DType::kF32, tiny_mixture());
  settings.model.moe.training = {};
  GetParam().set(settings.model.moe);
  // fp32 sums of some thousand terms round the objective by about 1e-6 of it. Dividing by the small step
  // amplifies this error to about 1e-3 of the slope.
  constexpr double kTolerance = 2e-3;
  // If a step changes a token's choice, the objective jumps, and the two slopes differ by a multiple of the
  // jump. Such weights cannot test the gradient, so another seed is tried. A wrong gradient gives two equal
  // wrong slopes.
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    TrainingRun run(settings, seed);
    run.scale_routers(12);
    const Slopes slopes = slopes_of(run);
    if (std::abs(slopes.near - slopes.far) > kTolerance) continue;
    EXPECT_NEAR(slopes.near, 1, kTolerance) << GetParam().name << " from seed " << seed;
    return;
  }
  FAIL() << GetParam().name << ": a choice changes with every seed";
}
INSTANTIATE_TEST_SUITE_P(Cases, RouterTraining, testing::ValuesIn(kRouterCases),
                         [](const auto& c) { return std::string(c.param.name); });

TEST(MixtureOfExperts, BalanceLossBalances) {
  // Returns the balance loss of the first layer (1: even) after training. Routers start with clear choices;
  // the tokens are random.
  const auto loss_after = [](int steps, double coefficient, bool sequences) {
    SessionSettings settings = tiny_settings(DType::kF32, tiny_mixture());
    settings.model.moe.training = {.balance_loss = coefficient, .balance_sequences = sequences};
    TrainingRun run(settings);
    run.scale_routers(12);
    double loss = 0;
    for (std::int64_t s = 1; s <= steps; ++s) {
      loss = run.forward_backward(s).routing[0].balance_loss;
      run.session->step().update(s, 2e-3, 0);
    }
    return loss;
  };
  for (const bool sequences : {false, true}) {
    const double first = loss_after(1, 1e-6, sequences), without = loss_after(30, 1e-6, sequences);
    const double with = loss_after(30, 1, sequences);
    EXPECT_LT(with - 1, 0.5 * (first - 1)) << first << " " << without << " " << with;
    EXPECT_LT(with - 1, 0.5 * (without - 1)) << first << " " << without << " " << with;
  }
}

TEST(MixtureOfExperts, ZLossKeepsLogitsSmall) {
  const auto z_after = [](double coefficient) {
    SessionSettings settings = tiny_settings(DType::kF32, tiny_mixture());
    settings.model.moe.training = {.z_loss = coefficient};
    TrainingRun run(settings);
    double z = 0;
    for (std::int64_t s = 1; s <= 20; ++s) {
      z = run.forward_backward(s).routing[1].z_loss;
      run.session->step().update(s, 1e-2, 0);
    }
    return z;
  };
  EXPECT_LT(z_after(1), 0.5 * z_after(0));
}

TEST(MixtureOfExperts, ChoicesAreDroppedByWeightOrPosition) {
  const auto run_with = [](bool lightest) {
    SessionSettings settings = tiny_settings(DType::kF32, tiny_mixture());
    settings.model.moe.training = {.capacity_factor = 0.8, .drop_lightest = lightest};
    return TrainingRun(settings).forward_backward();
  };
  const StepResult lightest = run_with(true), last = run_with(false);
  // The first layer has the same input and choices in both runs, so the same number of choices exceeds the
  // capacity.
  EXPECT_EQ(lightest.routing[0].load, last.routing[0].load);
  EXPECT_EQ(lightest.routing[0].dropped, last.routing[0].dropped);
  EXPECT_GT(last.routing[0].dropped, 0);
  EXPECT_NE(lightest.loss, last.loss);
}

// In each microbatch, an expert accepts ceil(factor * choices / experts) rows.
TEST(MixtureOfExperts, DropsTokensBeyondTheCapacity) {
  for (const double factor : {0.8, 1.0, 1.1}) {
    SessionSettings settings = tiny_settings(DType::kF32, tiny_mixture());
    settings.model.moe.training = {.capacity_factor = factor};
    settings.step.microbatches = 1;
    TrainingRun run(settings);
    run.scale_routers(12);
    const int slots = 2 * 16 * 2, capacity = static_cast<int>(std::ceil(factor * slots / 5));
    for (const LayerRouting& layer : run.forward_backward().routing) {
      int beyond = 0;
      for (std::size_t e = 0; e < 5; ++e) beyond += std::max(0, layer.load[e] - capacity);
      EXPECT_GT(beyond, 0);
      EXPECT_EQ(layer.dropped, static_cast<double>(beyond) / slots) << factor;
    }
  }
}

TEST(MixtureOfExperts, EveryLayerHasItsOwnRandomNumbers) {
  SessionSettings settings = tiny_settings(DType::kF32, tiny_mixture());
  settings.model.moe.training = {.forced = turbo::RouterRule::Forced::kUniform};
  const StepResult result = TrainingRun(settings).forward_backward();
  for (std::size_t layer = 1; layer < result.routing.size(); ++layer) {
    EXPECT_NE(result.routing[layer].load, result.routing[layer - 1].load);
  }
}

TEST(MixtureOfExperts, ReportsLoadsOnceHoweverOftenItRecomputes) {
  for (const std::int64_t full_layers : {0, 4}) {
    SessionSettings settings = tiny_settings(DType::kF32, tiny_mixture());
    settings.step.recompute.full_layers = full_layers;
    TrainingRun run(settings);
    const StepResult result = run.forward_backward();
    ASSERT_EQ(result.routing.size(), 4U);
    for (const LayerRouting& layer : result.routing) {
      EXPECT_EQ(std::accumulate(layer.load.begin(), layer.load.end(), 0), 3 * 2 * 16 * 2);  // tokens · top_k
      EXPECT_GE(layer.imbalance, 1);
      // The tokens of a microbatch make 64 choices. Each of the five experts accepts at most ceil(1.1 · 64 /
      // 5) = 15 of these choices, so an uneven routing drops some.
      EXPECT_GT(layer.dropped, 0);
      EXPECT_LT(layer.dropped, 0.5);
      EXPECT_GT(layer.balance_loss, 0.5);
      EXPECT_GT(layer.z_loss, 0);
    }
  }
}

TEST(MixtureOfExperts, EvenRoutingIsBalancedAndDropsNothing) {
  SessionSettings settings = tiny_settings(DType::kF32, tiny_mixture());
  settings.model.moe.experts = 4;
  settings.model.moe.training.forced = turbo::RouterRule::Forced::kEven;
  settings.model.moe.training.capacity_factor = 1;
  TrainingRun run(settings);
  for (const LayerRouting& layer : run.forward_backward().routing) {
    EXPECT_EQ(layer.imbalance, 1);
    EXPECT_EQ(layer.dropped, 0);
  }
}

TEST(MixtureOfExperts, JitterDependsOnlyOnTheStep) {
  SessionSettings settings = tiny_settings(DType::kF32, tiny_mixture());
  TrainingRun run(settings);
  const double first = run.forward_backward(1).loss;
  EXPECT_NE(run.forward_backward(2).loss, first);
  EXPECT_EQ(run.forward_backward(1).loss, first);
}

TEST(MixtureOfExperts, EveryMicrobatchHasItsOwnRandomNumbers) {
  SessionSettings settings = tiny_settings(DType::kF32, tiny_mixture());
  settings.model.moe.training = {.forced = turbo::RouterRule::Forced::kUniform};
  settings.step.microbatches = 1;
  const auto one = TrainingRun(settings).forward_backward().routing.front().load;
  settings.step.microbatches = 2;
  auto two = TrainingRun(settings).forward_backward().routing.front().load;
  for (std::size_t e = 0; e < two.size(); ++e) two[e] -= one[e];
  EXPECT_NE(two, one);
}

// The balance loss counts the experts with the largest of all scores, even if tokens may choose only from
// some groups. Without groups, a layer with equal input has an equal loss.
TEST(MixtureOfExperts, GroupsDoNotChangeTheBalanceLoss) {
  SessionSettings settings = tiny_settings(DType::kF32, tiny_deepseek());
  settings.model.mtp = {};
  settings.model.moe.choice_bias = false;
  settings.model.moe.training = {.balance_loss = 0.02};
  settings.model.moe.router.top_groups = 1;
  const auto layer_of = [&] {
    TrainingRun run(settings);
    run.scale_routers(20);
    return run.forward_backward().routing.front();
  };
  const LayerRouting grouped = layer_of();
  settings.model.moe.router.groups = 1;
  const LayerRouting free = layer_of();
  EXPECT_NE(grouped.load, free.load);
  EXPECT_EQ(grouped.balance_loss, free.balance_loss);
}

TEST(MixtureOfExperts, BiasesFollowOnlyTheLoad) {
  SessionSettings settings = tiny_settings(DType::kF32, tiny_mixture());
  settings.model.moe.choice_bias = true;
  settings.model.moe.router.scoring = turbo::RouterRule::Scoring::kSigmoid;
  settings.model.moe.training = {.bias_update_rate = 0x1p-7};
  settings.optimizer.decay_all_parameters = true;
  TrainingRun run(settings);
  std::vector<std::vector<float>> expected(4, std::vector<float>(5));
  double first_imbalance = 0, imbalance = 0;
  for (std::int64_t s = 1; s <= 6; ++s) {
    const StepResult result = run.forward_backward(s);
    imbalance = 0;
    for (const LayerRouting& layer : result.routing) {
      imbalance += layer.imbalance;
      for (std::size_t e = 0; e < 5; ++e) {
        const double excess = layer.load[e] - 192.0 / 5;
        expected[static_cast<std::size_t>(layer.layer)][e] += excess > 0 ? -0x1p-7F : 0x1p-7F;
      }
    }
    if (s == 1) first_imbalance = imbalance;
    run.session->step().update(s, 0, 0.1);
  }
  EXPECT_LT(imbalance, first_imbalance);
  std::size_t layer = 0;
  for (const engine::Parameter& p : run.session->store().parameters()) {
    if (!p.name.ends_with("choice_bias")) continue;
    EXPECT_EQ(run.read(p.value), expected[layer++]);
  }
  EXPECT_EQ(layer, 4U);
}

TEST(MixtureOfExperts, EvaluationDropsNothingAndTouchesNoCounter) {
  SessionSettings settings = tiny_settings(DType::kF32, tiny_mixture());
  TrainingRun run(settings);
  const StepResult before = run.forward_backward();
  TrainingStep& step = run.session->step();
  step.begin_evaluation();
  const TestBatch batch(32, run.config.vocab, 1);
  step.evaluate(batch);
  const double loss = step.evaluation_loss();
  EXPECT_EQ(step.result().routing[0].load, before.routing[0].load);
  step.begin_evaluation();
  step.evaluate(batch);
  EXPECT_EQ(step.evaluation_loss(), loss);
}

}  // namespace
}  // namespace primus::test
