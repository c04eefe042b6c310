// Adapters on base weights in 4 bits (QLoRA): a session equals a session on the expanded weights, on one
// device and on several ranks, and uses the measured memory.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "engine/runtime/four_bit_storage.h"
#include "lm/train/rank_training.h"
#include "lm/train/step/token_scorer.h"

namespace primus::test {
namespace {

using engine::Parameter;
using engine::Sharding;
using turbo::FourBitFormat;
using turbo::FourBitType;

constexpr FourBitFormat kNf4{.type = FourBitType::kNf4};
constexpr FourBitFormat kPlainFp4{.type = FourBitType::kFp4, .block = 128, .nested = false};

ModelConfig with_base(ModelConfig model, const FourBitFormat& format) {
  model.lora.training.base = format;
  return model;
}

// Sizes that no block divides: 7 * 33-like matrices, so that blocks contain several rows.
ModelConfig odd_lora() {
  ModelConfig c = tiny_lora();
  c.hidden = 36;
  c.head_dim = 9;
  c.rotary_fraction = 4.0 / 9;
  c.ffn = 35;
  c.family = "primus_gpt";
  return c;
}

// Quantised weights as a step computes with them, by name.
std::map<std::string, std::vector<std::byte>> expanded_weights(engine::Rank& rank, TrainingSession& session) {
  std::map<std::string, std::vector<std::byte>> all;
  for (Parameter& p : session.store().parameters()) {
    if (!p.four_bit) continue;
    const engine::ExpandedWeight expanded(rank.context(), &p);
    all[p.name] = bits_of(rank, p.value);
  }
  return all;
}

struct Trained {
  std::vector<double> losses, norms;
  std::map<std::string, std::vector<std::byte>> adapters, base;
};

using Weights = std::map<std::string, std::vector<std::byte>>;

// Trains three steps. If `base` has weights, they replace the initial values of the frozen matrices.
Trained trained(const SessionSettings& settings, const Weights& base = {},
                std::unique_ptr<Device> device = turbo::make_cpu_device(2)) {
  engine::Rank rank(std::move(device));
  const engine::MemoryPlan plan = measure_session(rank, settings, all_families()).memory;
  rank.reserve(plan);
  TrainingSession session(rank, settings, all_families());
  session.store().initialize(rank.context(), 7);
  for (Parameter& p : session.store().parameters()) {
    const auto found = base.find(p.name);
    if (found == base.end()) continue;
    EXPECT_EQ(static_cast<std::int64_t>(found->second.size()), p.value.bytes());
    rank.compute().copy_to_device(p.value.data, found->second.data(), p.value.bytes());
    rank.compute().synchronize();
  }
  Trained result;
  TrainingStep& step = session.step();
  for (int s = 0; s < 3; ++s) {
    step.begin(s + 1);
    for (std::int64_t i = 0; i < settings.step.microbatches; ++i)
      step.microbatch(i, TestBatch(settings.step.micro_batch * settings.step.sequence, settings.model.vocab,
                                   static_cast<std::uint64_t>(s * 100 + i)));
    step.finish_gradients();
    const StepResult done = step.result();
    result.losses.push_back(done.loss);
    result.norms.push_back(done.gradient_norm);
    step.update(s + 1, 1e-2, 0.1);
  }
  EXPECT_EQ(step.find_damaged_weight(session.store()), "");
  if (!settings.evaluation) {
    const engine::MemoryPlan used = rank.high_water();
    EXPECT_EQ(used.persistent, plan.persistent);
    EXPECT_EQ(used.stash, plan.stash);
    EXPECT_EQ(used.scratch, plan.scratch);
  }
  result.base = expanded_weights(rank, session);
  for (const Parameter& p : session.store().parameters())
    if (p.trainable) result.adapters[p.name] = weight_bits(rank, p);
  return result;
}

TEST(FourBitTraining, EqualsTrainingOnTheExpandedWeights) {
  for (ModelConfig (*model)() : {tiny_lora, odd_lora, tiny_lora_dropout, tiny_lora_mixture}) {
    for (const FourBitFormat& format : {kNf4, kPlainFp4}) {
      for (const DType compute : {DType::kF32, DType::kBF16}) {
        SessionSettings settings = tiny_settings(compute, with_base(model(), format));
        settings.evaluation = false;
        settings.step.recompute.full_layers = 1;
        SCOPED_TRACE(settings.model.family + " " + std::string(name_of(format.type)) + " " +
                     std::string(name_of(compute)));
        const Trained four_bit = trained(settings);
        // Every linear layer is in 4 bits: q, k, v together, the output, gate and up together, and down.
        EXPECT_EQ(four_bit.base.size(), 4U * static_cast<std::size_t>(settings.model.layers));
        settings.model.lora.training.base = {};
        const Trained wide = trained(settings, four_bit.base);
        EXPECT_EQ(four_bit.losses, wide.losses);
        EXPECT_EQ(four_bit.norms, wide.norms);
        EXPECT_TRUE(four_bit.adapters == wide.adapters);
        EXPECT_NE(four_bit.losses, trained(settings).losses);  // the quantisation changes the model
      }
    }
  }
}

// On the guard device, only kernels and copies can access the weights.
TEST(FourBitTraining, TheHostReadsNoWeights) {
  SessionSettings settings = tiny_settings(DType::kF32, with_base(tiny_lora(), kNf4));
  settings.evaluation = false;
  const Trained guarded = trained(settings, {}, guard_device());
  EXPECT_EQ(guarded.losses, trained(settings).losses);
}

// Most matrices have no adapter here. Generation stays within the measured memory.
TEST(FourBitTraining, GeneratesTextsInBf16) {
  ModelConfig mixture = with_base(tiny_lora_mixture(), kNf4), dense = with_base(tiny_lora(), kNf4);
  for (ModelConfig* const model : {&dense, &mixture}) {
    model->hidden = 64;
    model->head_dim = 16;
    model->ffn = 128;
    model->moe.ffn = 64;
    model->lora.modules = {"linear_proj"};
    SessionSettings settings = tiny_settings(DType::kBF16, *model);
    settings.sample_capacity = 24;
    const Outcome outcome = train_on_ranks(settings, 1, {}, 1, 3);
    EXPECT_EQ(outcome.texts.front().back().size(), 12U);
    EXPECT_LE(outcome.used[0].scratch, outcome.memory[0].scratch);
  }
}

TEST(FourBitTraining, ModulesToSaveKeepTheComputeType) {
  ModelConfig model = tiny_llama();
  model.lora = {.dim = 4, .alpha = 4};
  model.lora.by_matrix = {
      .matrices = {{.name = "model.layers.0.self_attn.q_proj", .dim = 4, .scale = 1, .out = 48, .in = 48}},
      .saved = {"model.layers.1.mlp.down_proj"}};
  SessionSettings settings = tiny_settings(DType::kF32, with_base(model, kNf4));
  const Trained result = trained(settings);
  EXPECT_EQ(result.base.count("layers.1.feed_forward.down") + result.base.count("layers.1.ffn.down"), 0U);
  EXPECT_EQ(result.base.size(), 4U * 4 - 1);
}

// 4 bits, a byte per 64 weights, a number per 256 bytes, and the table of codes of each matrix.
TEST(FourBitTraining, WeightsNeedHalfAByteEach) {
  ModelConfig model = with_base(tiny_lora(), kNf4);
  model.hidden = 256;
  model.ffn = 704;
  model.heads = model.kv_heads = 8;
  model.head_dim = 32;
  const auto persistent = [&](const ModelConfig& config) {
    engine::Rank rank(turbo::make_cpu_device(1));
    return measure_session(rank, tiny_settings(DType::kBF16, config), builtin_families());
  };
  const StepMeasurement four_bit = persistent(model);
  ModelConfig plain = model;
  plain.lora.training.base = {};
  const auto elements = static_cast<double>(four_bit.four_bit.elements);
  EXPECT_EQ(four_bit.four_bit.elements, 4 * (4 * 256 * 256 + 3 * 256 * 704));
  const auto saved = static_cast<double>(persistent(plain).memory.persistent - four_bit.memory.persistent);
  EXPECT_NEAR(2 - saved / elements, 0.5 + 1.0 / 64 + 4.0 / (64 * 256), 0.01);
  EXPECT_NEAR(static_cast<double>(four_bit.four_bit.saved_bytes) / elements, 0.516, 0.02);
}

Outcome on_ranks(SessionSettings settings, int ranks, Sharding sharding,
                 const engine::MeshShape& shape = {}) {
  settings.sharding = sharding;
  return train_on_ranks(settings, ranks, shape, 3, 4);
}

TEST(FourBitTraining, EqualsOneDeviceOnSeveralRanks) {
  ModelConfig mixture = tiny_lora_mixture();
  mixture.moe.experts = 6;
  mixture.moe.training = {};
  for (const ModelConfig& model : {tiny_lora(), mixture}) {
    SessionSettings settings = tiny_settings(DType::kF32, with_base(model, kNf4));
    settings.sample_capacity = 24;
    const Outcome one = on_ranks(settings, 1, Sharding::kNone);
    const Outcome replicated = on_ranks(settings, 2, Sharding::kNone);
    EXPECT_LE(distance(replicated, one), 1e-5);
    const Outcome sharded = on_ranks(settings, 2, Sharding::kParameters);
    EXPECT_EQ(sharded, replicated);
    EXPECT_EQ(sharded.texts, replicated.texts);
    EXPECT_LT(sharded.memory[0].persistent, replicated.memory[0].persistent);
    EXPECT_LE(distance(on_ranks(settings, 2, Sharding::kNone, {.pipeline = 2}), one), 1e-5) << "pipeline";
    settings.sample_capacity = 0;
    EXPECT_LE(distance(on_ranks(settings, 2, Sharding::kNone, {.context = 2}), one), 1e-5) << "context";
    if (model.moe.experts == 0) continue;
    EXPECT_LE(distance(on_ranks(settings, 2, Sharding::kNone, {.expert = 2}), one), 1e-5) << "experts";
  }
}

// The reference model of preferences is a pass without adapters. It reads the same weights.
TEST(FourBitTraining, APassWithoutAdaptersReadsTheSameWeights) {
  SessionSettings settings = tiny_settings(DType::kF32, with_base(tiny_lora(), kNf4));
  settings.evaluation = false;
  std::map<std::string, std::vector<std::byte>> base;
  const auto losses = [&](const ModelConfig& model, bool adapters) {
    engine::Rank rank(turbo::make_cpu_device(1));
    std::vector<float> values(static_cast<std::size_t>(settings.step.micro_batch * settings.step.sequence));
    const auto pass = [&] {
      ModelInstance instance(rank,
                             {.model = model,
                              .layout = {.states = {{}}, .groups = engine::group_places(rank.mesh())},
                              .positions = settings.step.sequence},
                             builtin_families());
      instance.store().initialize(rank.context(), 7);
      TokenScorer scorer(rank, instance, settings.step, {.adapters = adapters});
      const Tensor out = rank.persistent(DType::kF32, {scorer.tokens()});
      if (!rank.measuring()) {
        for (Parameter& p : instance.store().parameters()) {
          if (p.four_bit) {
            const engine::ExpandedWeight expanded(rank.context(), &p);
            base[p.name] = bits_of(rank, p.value);
          } else if (base.count(p.name) > 0) {
            std::memcpy(p.value.data, base[p.name].data(), base[p.name].size());
          } else if (p.name.ends_with("lora_B")) {
            for (std::int64_t i = 0; i < p.shape.elements(); ++i)
              static_cast<float*>(p.value.data)[i] = 0.05F * static_cast<float>(i % 7 - 3);
          }
        }
      }
      scorer.score(TestBatch(std::ssize(values), model.vocab, 5), out);
      if (rank.measuring()) return;
      rank.compute().copy_to_host(values.data(), out.data, out.bytes());
      rank.compute().synchronize();
    };
    pass();
    rank.reserve(rank.high_water());
    pass();
    return values;
  };
  const std::vector<float> reference = losses(settings.model, false), adapted = losses(settings.model, true);
  ModelConfig plain = tiny_lora();
  plain.lora = {};
  EXPECT_EQ(losses(plain, true), reference);
  EXPECT_NE(adapted, reference);
}

TEST(FourBitTraining, DividedMatricesAreRefused) {
  const SessionSettings settings = tiny_settings(DType::kF32, with_base(tiny_lora(), kNf4));
  test::on_ranks(2, {.tensor = 2}, [&](engine::Rank& rank) {
    try {
      measure_session(rank, settings, builtin_families());
      ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
      EXPECT_NE(std::string(error.hint()).find("tensor_model_parallel_size"), std::string::npos);
    }
  });
}

// Families that publish all experts of a layer in one transposed tensor.
TEST(FourBitTraining, RearrangedTensorsAreRefused) {
  ModelConfig model = with_base(tiny_lora_mixture(), kNf4);
  model.family = "gpt_oss";
  model.moe.biases = true;
  model.moe.swiglu_limit = 7;
  model.moe.training = {};
  engine::Rank rank(turbo::make_cpu_device(1));
  try {
    measure_session(rank, tiny_settings(DType::kF32, model), builtin_families());
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("experts"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.hint()).find("lora.base_weights"), std::string::npos);
  }
}

}  // namespace
}  // namespace primus::test
