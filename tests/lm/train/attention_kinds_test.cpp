// Tests models with every kind of attention: gradients equal finite differences, and the options of
// invariants_test.cpp change no bit.
#include <gtest/gtest.h>

#include <cmath>

#include "lm/model/outside_families.h"
#include "lm/train/finite_differences.h"
#include "lm/train/tiny_model.h"

namespace primus::test {
namespace {

ModelConfig small_llama() {
  ModelConfig c = tiny_llama();
  c.layers = 2;
  c.init_std = 0.2;  // large enough for attention to be uneven
  return c;
}

class AttentionKinds : public testing::TestWithParam<NamedConfig> {
 protected:
  SessionSettings settings(DType compute) const {
    SessionSettings s = tiny_settings(compute);
    s.model = GetParam().config;
    s.step.microbatches = 2;
    return s;
  }
  TrainedState run(std::unique_ptr<Device> device, const SessionSettings& s) const {
    return train(std::move(device), s, 2, all_families());
  }
};

INSTANTIATE_TEST_SUITE_P(Configs, AttentionKinds, testing::ValuesIn(attention_configs(small_llama())),
                         [](const auto& named) { return named.param.name; });

TEST_P(AttentionKinds, GradientsAreFiniteDifferences) {
  SessionSettings s = settings(DType::kF32);
  s.step.microbatches = 1;
  // Selects all keys, because a small step could change a selection.
  if (s.model.attention.indexer.heads > 0) s.model.attention.indexer.top_k = s.step.sequence;
  engine::Rank rank(turbo::make_cpu_device(1));
  const FamilyRegistry families = all_families();
  const auto session = open_session(rank, s, families);
  session->store().initialize(rank.context(), 3);
  const TestBatch batch(s.step.micro_batch * s.step.sequence, s.model.vocab, 5);
  const auto loss = [&] {
    session->step().begin();
    session->step().microbatch(0, batch);
    session->step().finish_gradients();
    return session->step().result().loss;
  };
  expect_finite_differences(*session, loss);
}

TEST_P(AttentionKinds, NothingChangesABit) {
  for (const auto& [compute, gradients] :
       {std::pair(DType::kF32, DType::kF32), {DType::kBF16, DType::kF32}, {DType::kBF16, DType::kBF16}}) {
    SessionSettings s = settings(compute);
    s.gradients = gradients;
    const TrainedState reference = run(turbo::make_cpu_device(2), s);
    EXPECT_TRUE(std::isfinite(reference.steps.back().first));
    EXPECT_EQ(run(turbo::make_cpu_device(3), s), reference);
    EXPECT_EQ(run(guard_device(), s), reference);
    s.step.recompute = {.classes = ~0U};
    EXPECT_EQ(run(turbo::make_cpu_device(1), s), reference);
    s.step.weight_gradients = engine::WeightGradientQueue::Policy::kDeferred;
    s.step.recompute = {.full_layers = 2};
    EXPECT_EQ(run(turbo::make_cpu_device(1), s), reference);
    s.step.recompute = {};
    EXPECT_EQ(run(turbo::make_cpu_device(1), s), reference);
  }
}

// Heads are computed from latents and not kept. More heads need more memory per layer only for the outputs of
// these heads.
TEST(LatentAttention, SavesOnlyLatents) {
  const auto stash_of = [](std::int64_t layers, std::int64_t heads) {
    SessionSettings s = tiny_settings();
    s.model = attention_configs(small_llama()).back().config;
    s.model.layers = layers;
    s.model.heads = s.model.kv_heads = heads;
    engine::Rank rank(turbo::make_cpu_device(1));
    return measure_session(rank, s, all_families()).memory.stash;
  };
  const auto per_layer = [&](std::int64_t heads) { return (stash_of(10, heads) - stash_of(6, heads)) / 4; };
  // Per head: 10 output columns and a log-sum-exp, for 32 tokens in fp32. Keeping q, k and v would add 50
  // columns.
  EXPECT_EQ(per_layer(20) - per_layer(4), 16 * (10 + 1) * 32 * 4);
}

}  // namespace
}  // namespace primus::test
