// Tests fp8 with scales from earlier steps (fp8_recipe: delayed): execution options of a step, the mesh, and
// work between steps do not change the result. tests/cli/fp8_test.cpp checks that a model learns as in bf16,
// and that it resumes from checkpoints.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <mutex>

#include "base/temporary_folder.h"
#include "lm/checkpoint/checkpoint.h"
#include "lm/model/weights.h"
#include "lm/train/rank_training.h"
#include "lm/train/step/fp8_state.h"
#include "lm/train/tiny_model.h"

namespace primus::test {
namespace {

using engine::MeshShape;
using engine::PrecisionRecipe;
using turbo::KernelId;

PrecisionRecipe delayed(std::int64_t steps = 4, bool most_recent = false) {
  return {.fp8 = true, .gradients = DType::kF8E5M2, .delayed = {.steps = steps, .most_recent = most_recent}};
}

// Returns a model whose sizes two tensor ranks can split into multiples of 16.
ModelConfig divisible_llama() {
  ModelConfig model = tiny_llama();
  model.hidden = 64, model.head_dim = 16, model.ffn = 96, model.vocab = 96;
  return model;
}

SessionSettings settings_with(const PrecisionRecipe& recipe, const ModelConfig& model = divisible_llama()) {
  SessionSettings settings = tiny_settings(DType::kBF16, model);
  settings.step.precision = recipe;
  settings.evaluation = false;
  return settings;
}

constexpr MeshShape kAlone{};

Outcome train_alone(const SessionSettings& settings, int steps = 5) {
  return train_on_ranks(settings, 1, kAlone, steps, 2);
}

// Returns the scales, which must be equal on all ranks.
const std::vector<float>& scales_of(const Outcome& outcome) {
  for (const auto& scales : outcome.scales) EXPECT_EQ(scales, outcome.scales[0]);
  return outcome.scales[0];
}

// Returns the largest ratio between magnitudes or scales, in powers of two.
double scale_distance(const Outcome& x, const Outcome& y) {
  const auto &a = scales_of(x), &b = scales_of(y);
  if (a.size() != b.size() || a.empty()) return INFINITY;
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i] != b[i]) worst = std::max(worst, std::abs(std::log2(static_cast<double>(a[i] / b[i]))));
  }
  return worst;
}

TEST(DelayedScales, EachProductQuantisesInOnePassAndAStepEndsWithOneUpdate) {
  const auto kernels_of = [](const SessionSettings& settings) {
    engine::Rank rank(turbo::make_cpu_device(1));
    return measure_session(rank, settings, builtin_families()).kernels;
  };
  turbo::Meter meter = kernels_of(settings_with(delayed()));
  EXPECT_EQ(meter[KernelId::kFp8Gemm].calls, 4 * 4 * 3 * 3);
  EXPECT_EQ(meter[KernelId::kQuantizeFp8].calls, 2 * meter[KernelId::kFp8Gemm].calls);
  EXPECT_EQ(meter[KernelId::kUpdateFp8Scales].calls, 1);
  const PrecisionRecipe own{.fp8 = true};
  meter = kernels_of(settings_with(own));
  EXPECT_EQ(meter[KernelId::kUpdateFp8Scales].calls, 0);
  // If a recipe applies to no block, no scales are stored.
  PrecisionRecipe none = delayed();
  none.last = 0, none.layers = 4;
  meter = kernels_of(settings_with(none));
  EXPECT_EQ(meter[KernelId::kUpdateFp8Scales].calls, 0);
}

// The memory plan and checkpoints count the scales of three tensors for each of four matrices in four blocks.
TEST(DelayedScales, MemoryPlansAndCheckpointsCountThem) {
  const auto measured = [](std::int64_t steps) {
    engine::Rank rank(turbo::make_cpu_device(1));
    PrecisionRecipe recipe = delayed(steps);
    if (steps == 0) recipe.delayed = {};
    return measure_session(rank, settings_with(recipe), builtin_families());
  };
  const StepMeasurement without = measured(0), with = measured(1024);
  constexpr std::int64_t kTensors = 4 * 4 * 3;
  EXPECT_EQ(with.state_bytes - without.state_bytes, kTensors * (1024 + 4) * 4);
  EXPECT_GE(with.memory.persistent - without.memory.persistent, kTensors * (1024 + 4 + 1) * 4);
}

TEST(DelayedScales, AStepUsesTheMeasuredMemory) {
  for (const bool evaluation : {false, true}) {
    SessionSettings settings = settings_with(delayed());
    settings.evaluation = evaluation;
    expect_measured(train_alone(settings));
  }
}

// The first step has scales of 1. The last step has scales from magnitudes. The magnitudes of gradients are
// small.
TEST(DelayedScales, FollowTheMagnitudesOfSteps) {
  const Outcome outcome = train_alone(settings_with(delayed(3)), 5);
  const std::vector<float>& all = scales_of(outcome);
  ASSERT_EQ(all.size(), 4U * 4 * 3 * (3 + 4));
  for (std::size_t layer = 0; layer < 16; ++layer) {
    for (std::size_t t = 0; t < 3; ++t) {
      const float* const history = all.data() + layer * 21 + t * 3;
      const float* const scales = all.data() + layer * 21 + 9 + t * 4;
      const float largest = std::max({history[0], history[1], history[2]});
      EXPECT_GT(history[0], 0) << layer << " " << t;
      EXPECT_EQ(scales[1], (t == 2 ? 57344 : 448) / largest) << layer << " " << t;
      EXPECT_EQ(scales[0], 1 / scales[1]);
      if (t == 2) {
        EXPECT_LT(largest, 0.1);
      }
    }
  }
}

TEST(DelayedScales, RulesDecideTheNumbers) {
  const Outcome plain = train_alone(settings_with({})), max = train_alone(settings_with(delayed())),
                recent = train_alone(settings_with(delayed(4, true))),
                one = train_alone(settings_with(delayed(1))),
                recent_of_one = train_alone(settings_with(delayed(1, true)));
  PrecisionRecipe with_margin = delayed();
  with_margin.delayed.margin = 2;
  EXPECT_FALSE(max == plain);
  EXPECT_FALSE(max == recent);
  EXPECT_FALSE(max == train_alone(settings_with(with_margin)));
  EXPECT_TRUE(one == recent && recent_of_one == recent);
  EXPECT_LE(distance(max, plain), 0.02);
  EXPECT_LE(distance(recent, plain), 0.02);
}

TEST(DelayedScales, RecomputationAndDeferredWeightGradientsChangeNoBit) {
  const Outcome expected = train_alone(settings_with(delayed()));
  SessionSettings recomputed = settings_with(delayed());
  recomputed.step.recompute.full_layers = 4;
  SessionSettings deferred = settings_with(delayed());
  deferred.step.weight_gradients = engine::WeightGradientQueue::Policy::kDeferred;
  for (const SessionSettings& settings : {recomputed, deferred}) {
    const Outcome outcome = train_alone(settings);
    EXPECT_TRUE(outcome == expected);
    EXPECT_EQ(scales_of(outcome), scales_of(expected));
  }
}

// Magnitudes of an evaluation do not enter the histories of training.
TEST(DelayedScales, EvaluationsBetweenStepsChangeNothing) {
  SessionSettings settings = settings_with(delayed());
  settings.evaluation = true;
  std::vector<double> losses;
  using Before = std::function<void(TrainingSession & session, const data::BatchView& batch)>;
  const Before evaluate = [&](TrainingSession& session, const data::BatchView& batch) {
    session.step().begin_evaluation();
    session.step().evaluate(batch);
    losses.push_back(session.step().evaluation_loss());
  };
  const auto state = [&](bool evaluated) {
    return train(turbo::make_cpu_device(2), settings, 4, builtin_families(), evaluated ? evaluate : Before());
  };
  EXPECT_EQ(state(true), state(false));
  EXPECT_EQ(losses.size(), 4U);
}

TEST(DelayedScales, TheGuardDeviceGivesTheSameBits) {
  const SessionSettings settings = settings_with(delayed());
  EXPECT_EQ(train(guard_device(), settings, 3, builtin_families()),
            train(turbo::make_cpu_device(1), settings, 3, builtin_families()));
}

// Magnitudes are maxima over the microbatches of all ranks, so scales do not depend on the number of ranks.
// Sums of gradients differ in their last bits, so one code in a thousand rounds the other way.
TEST(DelayedScales, TwoRanksEqualOneRankAndShardingLevelsHaveTheSameBits) {
  SessionSettings settings = settings_with(delayed());
  const Outcome one = train_on_ranks(settings, 1, kAlone, 5, 4);
  const Outcome replicated = train_on_ranks(settings, 2, kAlone, 5, 4);
  EXPECT_LE(distance(replicated, one), 1e-3);
  EXPECT_LE(scale_distance(replicated, one), 0.05);
  expect_measured(replicated);
  for (const engine::Sharding level :
       {engine::Sharding::kStates, engine::Sharding::kGradients, engine::Sharding::kParameters}) {
    settings.sharding = level;
    const Outcome sharded = train_on_ranks(settings, 2, kAlone, 5, 4);
    EXPECT_TRUE(sharded == replicated) << static_cast<int>(level);
    EXPECT_EQ(scales_of(sharded), scales_of(replicated)) << static_cast<int>(level);
  }
}

// Returns settings with fp32 activations. Sums then differ by 1e-7, so only a few codes differ.
SessionSettings in_fp32() {
  SessionSettings settings = settings_with(delayed());
  settings.compute = DType::kF32;
  return settings;
}

struct Way {
  const char* name;
  int ranks;
  MeshShape shape;
};

const std::vector<Way>& ways() {
  static const std::vector<Way> all = {{"dp2", 2, {}},
                                       {"tp2", 2, {.tensor = 2}},
                                       {"cp2", 2, {.context = 2}},
                                       {"pp2", 2, {.pipeline = 2}},
                                       {"tp2 pp2", 4, {.tensor = 2, .pipeline = 2}},
                                       {"tp2 dp2", 4, {.tensor = 2}}};
  return all;
}

// A part of a matrix uses the scale of the whole matrix. All scales of the second step come from magnitudes
// of the first. (With a scale per part, losses of tensor and context ranks would differ by 3e-3.)
TEST(DelayedScales, AnyMeshTrainsAsOneRank) {
  const Outcome one = train_on_ranks(in_fp32(), 1, kAlone, 2, 4);
  for (const Way& way : ways()) {
    SCOPED_TRACE(way.name);
    const Outcome outcome = train_on_ranks(in_fp32(), way.ranks, way.shape, 2, 4);
    EXPECT_LE(distance(outcome, one), 1e-4);
    EXPECT_LE(scale_distance(outcome, one), 0.02);
    expect_measured(outcome);
  }
}

// In bf16, each sum is rounded with a relative error of up to 2^-9, which changes some fp8 codes (3 mantissa
// bits).
TEST(DelayedScales, TrainEquallyInBf16UpToRoundingOfSums) {
  const Outcome one = train_on_ranks(settings_with(delayed()), 1, kAlone, 5, 4);
  for (const Way& way : ways()) {
    SCOPED_TRACE(way.name);
    const Outcome outcome = train_on_ranks(settings_with(delayed()), way.ranks, way.shape, 5, 4);
    EXPECT_LE(distance(outcome, one), 0.01);
    EXPECT_LE(scale_distance(outcome, one), 1);
    expect_measured(outcome);
  }
}

// Pipeline ranks compute what one rank computes, in the same order.
TEST(DelayedScales, PipelinesHaveTheBitsOfOneRank) {
  const Outcome one = train_on_ranks(settings_with(delayed()), 1, kAlone, 4, 4);
  const Outcome two = train_on_ranks(settings_with(delayed()), 2, {.pipeline = 2}, 4, 4);
  EXPECT_EQ(two.losses, one.losses);
  EXPECT_EQ(two.weights, one.weights);
  EXPECT_EQ(scales_of(two), scales_of(one));
}

// Covers shared experts, latent projections, and multi-token prediction. The last stage computes multi-token
// prediction after the blocks.
TEST(DelayedScales, TrainDeepSeekOnTwoPipelineStages) {
  ModelConfig model = tiny_deepseek();
  model.hidden = 64, model.ffn = 96, model.moe.ffn = 32, model.moe.shared_ffn = 32, model.head_dim = 16;
  model.attention.latent = {.q_rank = 32, .kv_rank = 16, .nope_dim = 16, .rope_dim = 16, .value_dim = 16};
  model.kv_heads = model.heads = 4;
  model.layers = 4;
  const SessionSettings settings = settings_with(delayed(), model);
  const Outcome one = train_on_ranks(settings, 1, kAlone, 4, 4);
  const Outcome two = train_on_ranks(settings, 2, {.pipeline = 2}, 4, 4);
  EXPECT_LE(distance(two, one), 1e-3);
  EXPECT_EQ(scales_of(two).size(), scales_of(one).size());
  expect_measured(two);
}

// A bad step changes neither scales nor weights.
TEST(DelayedScales, ABadStepDoesNotChangeThem) {
  engine::Rank rank(turbo::make_cpu_device(1));
  const SessionSettings settings = settings_with(delayed());
  const auto session = open_session(rank, settings, builtin_families());
  session->store().initialize(rank.context(), 7);
  const auto step = [&](int number, float weight) {
    session->step().begin(number);
    for (std::int64_t i = 0; i < settings.step.microbatches; ++i) {
      TestBatch batch(settings.step.micro_batch * settings.step.sequence, settings.model.vocab,
                      static_cast<std::uint64_t>(10 * number + i));
      if (i == 1) batch.loss_mask[3] = weight;
      session->step().microbatch(i, batch);
    }
    session->step().finish_gradients();
    const double norm = session->step().result().gradient_norm;
    session->step().update(number, 3e-3, 0.1);
    return norm;
  };
  EXPECT_TRUE(std::isfinite(step(1, 1)));
  EXPECT_TRUE(std::isfinite(step(2, 1)));
  const std::vector<float> before = scale_state(rank, *session);
  EXPECT_FALSE(std::isfinite(step(3, INFINITY)));
  EXPECT_EQ(scale_state(rank, *session), before);
  EXPECT_TRUE(std::isfinite(step(4, 1)));
  EXPECT_NE(scale_state(rank, *session), before);
}

// A run that resumes with a shorter history keeps the newest magnitudes of each tensor.
TEST(DelayedScales, AShortenedHistoryKeepsTheNewestSteps) {
  const TemporaryFolder folder;
  ModelConfig model = divisible_llama();
  model.layers = 1;
  const auto floats = [](engine::Rank& rank, const Tensor& tensor) {
    const std::vector<std::byte> bits = bits_of(rank, tensor);
    std::vector<float> values(bits.size() / sizeof(float));
    std::memcpy(values.data(), bits.data(), bits.size());
    return values;
  };
  std::vector<std::vector<float>> saved;  // [3, 5] per layer
  {
    engine::Rank rank(turbo::make_cpu_device(1));
    SessionSettings settings = settings_with(delayed(5), model);
    settings.step.microbatches = 1;
    const auto session = open_session(rank, settings, builtin_families());
    session->store().initialize(rank.context(), 7);
    for (std::uint64_t i = 1; i <= 3; ++i) {
      TrainingStep& step = session->step();
      step.begin(static_cast<std::int64_t>(i));
      step.microbatch(0, TestBatch(settings.step.micro_batch * settings.step.sequence, model.vocab, i));
      step.finish_gradients();
      step.result();
      step.update(static_cast<std::int64_t>(i), 1e-2, 0.1);
    }
    rank.synchronize();
    DeviceReader reader(rank);
    Snapshot snapshot;
    snapshot.iteration = 1;
    snapshot.model = model_sources(session->store(), reader);
    snapshot.optimizer = scale_sources(*session->scales(), rank, reader);
    CheckpointRoot(folder.path() / "root").save(snapshot);
    for (const auto& layer : session->scales()->layers()) saved.push_back(floats(rank, layer.history));
  }
  engine::Rank rank(turbo::make_cpu_device(1));
  const auto session = open_session(rank, settings_with(delayed(2), model), builtin_families());
  const ResumePoint point = find_resume_point(folder.path() / "root", Validation::kFull);
  ASSERT_TRUE(point.reader);
  EXPECT_EQ(load_scales(*point.reader, *session->scales(), rank).missing, 0);
  const auto layers = session->scales()->layers();
  ASSERT_EQ(layers.size(), saved.size());
  for (std::size_t l = 0; l < layers.size(); ++l) {
    const std::vector<float> history = floats(rank, layers[l].history);
    for (std::size_t t = 0; t < 3; ++t) {
      EXPECT_GT(saved[l][5 * t], 0);
      for (std::size_t step = 0; step < 2; ++step)
        EXPECT_EQ(history[2 * t + step], saved[l][5 * t + step]) << l << t;
    }
  }
}

}  // namespace
}  // namespace primus::test
