// Models with every kind of attention: their gradients are finite differences, and what must not change a bit
// (invariants_test.cpp) does not.
#include <gtest/gtest.h>

#include <cmath>

#include "lm/model/outside_families.h"
#include "lm/train/tiny_model.h"

namespace primus::test {
namespace {

ModelConfig small_llama() {
  ModelConfig c = tiny_llama();
  c.layers = 2;
  c.init_std = 0.2;  // attention that attends to something
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

// Along its own gradient, each parameter changes the loss by the gradient's length.
TEST_P(AttentionKinds, GradientsAreFiniteDifferences) {
  SessionSettings s = settings(DType::kF32);
  s.step.microbatches = 1;
  engine::Rank rank(turbo::make_cpu_device(2));
  const FamilyRegistry families = all_families();
  const auto session = open_session(rank, s, families);
  session->store().initialize(rank.context(), 3);
  const TestBatch batch(s.step.micro_batch * s.step.sequence, s.model.vocab, 5);
  const auto loss = [&] {
    session->step().begin();
    session->step().microbatch(0, batch.host());
    session->step().finish_gradients();
    return session->step().result().loss;
  };
  const auto values_of = [&](const Tensor& tensor) {
    std::vector<float> values(static_cast<std::size_t>(tensor.elements()));
    rank.compute().copy_to_host(values.data(), tensor.data, tensor.bytes());
    rank.compute().synchronize();
    return values;
  };
  loss();
  std::vector<std::vector<float>> gradients;
  for (const engine::Parameter& p : session->store().parameters()) gradients.push_back(values_of(p.gradient));
  std::size_t index = 0;
  for (engine::Parameter& p : session->store().parameters()) {
    const std::vector<float>& gradient = gradients[index++];
    const std::vector<float> weights = values_of(p.master);
    double length = 0;
    for (const float g : gradient) length += static_cast<double>(g) * static_cast<double>(g);
    length = std::sqrt(length);
    ASSERT_GT(length, 1e-4) << p.name;
    const double step = 0.03 / std::max(length, 1.0);
    const auto loss_at = [&](double distance) {
      std::vector<float> moved = weights;
      for (std::size_t i = 0; i < moved.size(); ++i)
        moved[i] += static_cast<float>(distance / length * static_cast<double>(gradient[i]));
      rank.compute().copy_to_device(p.master.data, moved.data(), p.master.bytes());
      return loss();
    };
    // Two steps cancel the error of third order; what is left is rounding: 1e-6 of a loss of 5 in all.
    const double near = (loss_at(step) - loss_at(-step)) / (2 * step);
    const double far = (loss_at(2 * step) - loss_at(-2 * step)) / (4 * step);
    EXPECT_NEAR((4 * near - far) / 3, length, 5e-3 * length + 1e-4) << p.name;
    loss_at(0);
  }
}

TEST_P(AttentionKinds, NothingChangesABit) {
  for (const DType compute : {DType::kF32, DType::kBF16}) {
    SessionSettings s = settings(compute);
    const TrainedState reference = run(turbo::make_cpu_device(2), s);
    EXPECT_TRUE(std::isfinite(reference.steps.back().first));
    EXPECT_EQ(run(turbo::make_cpu_device(3), s), reference);
    EXPECT_EQ(run(guard_device(), s), reference);
    s.step.recompute = {.classes = ~0U};
    EXPECT_EQ(run(turbo::make_cpu_device(2), s), reference);
    s.step.weight_gradients = engine::WeightGradientQueue::Policy::kDeferred;
    s.step.recompute = {.full_layers = 2};
    EXPECT_EQ(run(turbo::make_cpu_device(2), s), reference);
    s.step.recompute = {};
    EXPECT_EQ(run(turbo::make_cpu_device(2), s), reference);
  }
}

// The heads that are made from latents are not kept: many heads cost no memory per layer but their outputs.
TEST(LatentAttention, SavesLatentsOnly) {
  const auto stash_of = [](std::int64_t layers, std::int64_t heads) {
    SessionSettings s = tiny_settings();
    s.model = attention_configs(small_llama()).back().config;
    s.model.layers = layers;
    s.model.heads = s.model.kv_heads = heads;
    engine::Rank rank(turbo::make_cpu_device(1));
    return measure_session(rank, s, all_families()).memory.stash;
  };
  const auto per_layer = [&](std::int64_t heads) { return (stash_of(10, heads) - stash_of(6, heads)) / 4; };
  // A head's output of 10 columns and its log-sum-exp, 32 tokens, fp32; its q, k and v would be 50 more.
  EXPECT_EQ(per_layer(20) - per_layer(4), 16 * (10 + 1) * 32 * 4);
}

}  // namespace
}  // namespace primus::test
