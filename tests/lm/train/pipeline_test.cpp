// Pipeline stages train as one device does, on every schedule. Ranks are threads. Gradients are summed in the
// order of one device. The norm is a sum over stages, computed in fp64 and rounded to fp32. So weights are
// equal bit by bit. The exception is an embedding that the first and the last stage share. Each of these two
// stages first sums its own part. The gradient then differs by the rounding of one addition, 6e-8 of the
// larger sum. If the two sums cancel, Adam would divide a rounding error by its own size, which gives a step
// of full size. An epsilon of 1e-4 prevents such steps. Gradient norms then differ by 9e-6 (with an epsilon
// of 1e-8, by 3.5e-5).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>

#include "config/trainer_config.h"
#include "lm/train/rank_training.h"

namespace primus::test {
namespace {

using engine::ScheduleKind;

constexpr int kSteps = 20, kMicrobatches = 8;

ModelConfig llama() { return tiny_llama(); }

ModelConfig tied_llama() { return with_tied_embeddings(tiny_llama()); }

ModelConfig mixture() { return tiny_mixture(); }

// Latent attention, experts balanced by biases, and multi-token prediction of depth two.
ModelConfig latent() {
  ModelConfig c = tiny_deepseek();
  c.layers = 4;
  return c;
}

// Latent attention that selects tokens, without multi-token prediction.
ModelConfig sparse() {
  ModelConfig c = tiny_sparse();
  c.layers = 4;
  c.mtp = {};
  return c;
}

// Capped logits, and multi-token prediction of depth one.
ModelConfig capped() {
  ModelConfig c = tiny_capped();
  c.layers = 4;
  return c;
}

ModelConfig qwen3_next() { return with_tied_embeddings(tiny_qwen3_next()); }

// A residual stream twice as wide as the hidden states.
ModelConfig wide() {
  ModelConfig c = tiny_llama();
  c.family = "two_streams";
  c.hyper.streams = 2;
  c.mtp = {.layers = 1, .enabled = true};
  c.mtp.training.loss_scale = 0.3;
  return c;
}

struct Model {
  const char* name;
  ModelConfig (*make)();
  bool same_sums;  // on every schedule, sums have the order of one device
};

PipelineSettings pipeline_of(const ModelConfig& model, ScheduleKind kind, int stages) {
  const int chunks = engine::traits_of(kind).v_shaped || kind == ScheduleKind::kInterleaved ? 2 : 1;
  // Four stages of two chunks have more parts than there are blocks. Some parts have no block. With
  // interleaving, a whole stage may have no block.
  return {.schedule = kind, .chunks = chunks, .blocks = even_parts(model.layers, stages * chunks).blocks};
}

SessionSettings settings_of(const ModelConfig& model, DType compute = DType::kF32) {
  SessionSettings settings = tiny_settings(compute, model);
  settings.step.packed_documents = !model.any_keeps(Keeps::kPooled);
  settings.step.recompute = {.full_layers = 1};
  settings.optimizer.rules = update_rules_of({.adam_eps = 1e-4});
  return settings;
}

// Compares losses with `tolerance`, and gradient norms with `of_norms`, because gradients of small models
// differ more than losses do.
void expect_near(const Outcome& many, const Outcome& one, double tolerance, double of_norms) {
  EXPECT_LE(distance(many, one), tolerance);
  ASSERT_EQ(many.norms.size(), one.norms.size());
  // Compares norms over the whole run, because bf16 rounding moves the norm of a single late step more than
  // the curve.
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < one.norms.size(); ++i) {
    difference += (many.norms[i] - one.norms[i]) * (many.norms[i] - one.norms[i]);
    size += one.norms[i] * one.norms[i];
  }
  EXPECT_LE(std::sqrt(difference), of_norms * std::sqrt(size));
  ASSERT_EQ(many.mtp_losses.size(), one.mtp_losses.size());
  for (std::size_t i = 0; i < one.mtp_losses.size(); ++i)
    EXPECT_NEAR(many.mtp_losses[i], one.mtp_losses[i], tolerance * one.mtp_losses[i]) << "step " << i;
  EXPECT_NEAR(many.evaluation_loss, one.evaluation_loss, tolerance * one.evaluation_loss);
}

// Returns a model with factors for embeddings, branches, scores and logits. The factor for embeddings also
// applies in multi-token prediction.
ModelConfig granite() {
  ModelConfig c = tiny_llama();
  c.family = "granite";
  c.embedding_scale = 3;
  c.residual_scale = 0.5;
  c.logit_divisor = 2;
  c.attention.score_scale = 0.2;
  c.mtp = {.layers = 1, .enabled = true, .training = {.loss_scale = 0.3}};
  return c;
}

class PipelineTraining : public testing::TestWithParam<Model> {};

TEST_P(PipelineTraining, EqualsOneDeviceOnEverySchedule) {
  SessionSettings settings = settings_of(GetParam().make());
  const Outcome one = train_on_ranks(settings, 1, {}, kSteps, kMicrobatches);
  if (has_something_to_learn(one.losses.front(), settings.model)) {
    EXPECT_LT(one.losses.back(), one.losses.front());
  }
  for (const int stages : {2, 4}) {
    for (const engine::ScheduleTraits& traits : engine::schedule_kinds()) {
      SCOPED_TRACE(std::string(traits.name) + " on " + std::to_string(stages) + " stages");
      settings.step.pipeline = pipeline_of(settings.model, traits.kind, stages);
      const Outcome many = train_on_ranks(settings, stages, {.pipeline = stages}, kSteps, kMicrobatches);
      expect_near(many, one, 1e-5, 2e-5);
      EXPECT_EQ(many.weights.size(), one.weights.size());
      // In a V schedule, one stage has the first and the last part, so its sums equal those of one device.
      if (GetParam().same_sums || traits.v_shaped) {
        EXPECT_EQ(many, one);
      }
      // Training uses exactly the measured memory.
      for (std::size_t r = 0; r < many.memory.size(); ++r) {
        EXPECT_EQ(many.memory[r].stash, many.used[r].stash) << "rank " << r;
        EXPECT_EQ(many.memory[r].persistent, many.used[r].persistent) << "rank " << r;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, PipelineTraining,
                         testing::Values(Model{"llama", llama, true}, Model{"lora", tiny_lora, true},
                                         Model{"lora_dropout", tiny_lora_dropout, true},
                                         Model{"lora_mixture", tiny_lora_mixture, true},
                                         Model{"tied_llama", tied_llama, false},
                                         Model{"mixture", mixture, true}, Model{"latent", latent, false},
                                         Model{"capped", capped, false}, Model{"lfm2", tiny_lfm2, false},
                                         Model{"qwen3_next", qwen3_next, false}, Model{"wide", wide, false},
                                         Model{"granite", granite, false}, Model{"sparse", sparse, true},
                                         Model{"kimi_k3", tiny_kimi_k3, false},
                                         Model{"deepseek_v4", tiny_deepseek_v4, false}),
                         [](const auto& model) { return std::string(model.param.name); });

// Stages of several data ranks train as one device does, on every level of sharding, with hybrid sharding,
// and in bf16.
TEST(PipelineOfDataRanks, EqualsOneDevice) {
  for (const auto& [compute, gradients] :
       {std::pair(DType::kF32, DType::kF32), {DType::kBF16, DType::kF32}, {DType::kBF16, DType::kBF16}}) {
    SessionSettings settings = settings_of(tied_llama(), compute);
    settings.gradients = gradients;
    // Sums over data ranks change gradient norms. Measured differences are 3e-5 in fp32 and 0.03 in bf16.
    const bool fp32 = compute == DType::kF32;
    const double tolerance = fp32 ? 1e-5 : 2e-3, of_norms = fp32 ? 5e-5 : 0.05;
    const Outcome one = train_on_ranks(settings, 1, {}, kSteps, kMicrobatches);
    for (const engine::Sharding sharding : {engine::Sharding::kNone, engine::Sharding::kStates,
                                            engine::Sharding::kGradients, engine::Sharding::kParameters}) {
      for (const ScheduleKind kind : {ScheduleKind::kOneForwardOneBackward, ScheduleKind::kZeroBubbleV}) {
        SCOPED_TRACE(testing::Message()
                     << "level " << static_cast<int>(sharding) << ", " << engine::traits_of(kind).name << ", "
                     << name_of(compute) << ", gradients in " << name_of(gradients));
        settings.sharding = sharding;
        settings.reduce_each_microbatch = sharding >= engine::Sharding::kGradients;
        settings.step.pipeline = pipeline_of(settings.model, kind, 2);
        expect_near(train_on_ranks(settings, 4, {.pipeline = 2}, kSteps, kMicrobatches), one, tolerance,
                    of_norms);
      }
    }
  }
}

// Stages whose ranks share layers, experts or sequences train as one device does.
TEST(PipelineBesideOtherAxes, EqualsOneDevice) {
  ModelConfig dense = tiny_llama();
  dense.kv_heads = 4;
  dense.tied_embeddings = true;
  ModelConfig mixture = tiny_mixture();
  mixture.moe.experts = 4;
  mixture.moe.training.balance_sequences = false;  // context ranks cannot balance each sequence
  using Shape = engine::MeshShape;
  for (const auto& [model, shapes] :
       {std::pair(dense, std::vector<Shape>{{.tensor = 2, .pipeline = 2}, {.context = 2, .pipeline = 2}}),
        std::pair(mixture, std::vector<Shape>{{.tensor = 2, .pipeline = 2, .expert_tensor = 2},
                                              {.context = 2, .pipeline = 2},
                                              {.pipeline = 2, .expert = 2}})}) {
    SessionSettings settings = settings_of(model);
    const Outcome one = train_on_ranks(settings, 1, {}, kSteps, kMicrobatches);
    for (const Shape& shape : shapes) {
      for (const ScheduleKind kind : {ScheduleKind::kOneForwardOneBackward, ScheduleKind::kZeroBubbleV}) {
        SCOPED_TRACE(testing::Message()
                     << model.family << ", tensor " << shape.tensor << ", context " << shape.context
                     << ", expert " << shape.expert << ", " << engine::traits_of(kind).name);
        settings.step.pipeline = pipeline_of(model, kind, 2);
        EXPECT_LE(distance(train_on_ranks(settings, 4, shape, kSteps, kMicrobatches), one), 1e-5);
      }
    }
  }
}

// A V schedule does not change the sums over other axes. So its bits equal those of a mesh with the other
// axes and without a pipeline. The model has a tied embedding, on the stage with the first and last part, and
// experts that overflow. Compared with one device, the loss of such a mixture may differ by 3e-4, with or
// without stages. The reason is the rounding of sums over the axes. If two tokens with nearly equal weights
// compete for an expert's last place, a different one of the two may be dropped. Without a capacity limit,
// results equal those of one device.
TEST(PipelineBesideOtherAxes, AVScheduleHasTheBitsOfTheOtherAxes) {
  using Shape = engine::MeshShape;
  for (const double capacity : {1.1, 0.0}) {
    ModelConfig model = tiny_mixture();
    model.tied_embeddings = true;
    model.moe.experts = 4;
    model.moe.training.balance_sequences = false;  // context ranks cannot balance each sequence
    model.moe.training.capacity_factor = capacity;
    SessionSettings settings = settings_of(model);
    const Outcome one = train_on_ranks(settings, 1, {}, kSteps, kMicrobatches);
    for (Shape shape : {Shape{.tensor = 2, .expert_tensor = 2}, Shape{.context = 2}, Shape{.expert = 2}}) {
      SCOPED_TRACE(testing::Message() << "tensor " << shape.tensor << ", context " << shape.context
                                      << ", expert " << shape.expert << ", capacity " << capacity);
      settings.step.pipeline = {};
      const Outcome flat = train_on_ranks(settings, 2, shape, kSteps, kMicrobatches);
      shape.pipeline = 2;
      settings.step.pipeline = pipeline_of(model, ScheduleKind::kZeroBubbleV, 2);
      EXPECT_EQ(train_on_ranks(settings, 4, shape, kSteps, kMicrobatches), flat);
      if (capacity == 0) {
        expect_near(flat, one, 1e-5, 1e-5);
      }
    }
  }
}

// The schedule determines how many microbatches of activations a stage holds, independently of their total
// number.
TEST(PipelineMemory, FollowsTheSchedule) {
  SessionSettings settings = tiny_settings(DType::kF32, llama());
  settings.evaluation = false;
  const auto stash = [&](ScheduleKind kind, std::int64_t microbatches) {
    settings.step.pipeline = pipeline_of(settings.model, kind, 2);
    return train_on_ranks(settings, 2, {.pipeline = 2}, 1, microbatches).memory.front().stash;
  };
  EXPECT_GT(stash(ScheduleKind::kGPipe, 16), 6 * stash(ScheduleKind::kOneForwardOneBackward, 16));
  EXPECT_EQ(stash(ScheduleKind::kOneForwardOneBackward, 16), stash(ScheduleKind::kOneForwardOneBackward, 8));
}

// Each stage has only its own parameters. An embedding shared by both ends counts once.
TEST(PipelineParameters, AreOnTheirStageAndCountOnce) {
  const ModelConfig model = latent();  // multi-token prediction needs the embedding on the last stage
  std::vector<std::int64_t> counted(2, 0), stored(2, 0);
  std::int64_t whole = 0;
  for (int stage = 0; stage < 2; ++stage) {
    engine::ParameterStore store;
    const LanguageModel part(model, builtin_families(), store, {.blocks = {3, 1}, .own = {stage}});
    Arena arena("persistent");
    store.allocate({.train = true}, arena);
    whole = store.elements();
    for (const engine::ParameterUnit& unit : store.units()) {
      for (const engine::Parameter* p : unit.parameters) {
        stored[stage] += p->shape.elements();
        if (!unit.slice.empty()) counted[stage] += p->shape.elements();
      }
      EXPECT_EQ(unit.at_both_ends, unit.name == "embedding");
    }
  }
  EXPECT_EQ(counted[0] + counted[1], whole);
  EXPECT_EQ(stored[1] - counted[1], model.vocab * model.hidden);
  EXPECT_EQ(stored[0], counted[0]);
}

}  // namespace
}  // namespace primus::test
