// Tests expert biases from quantiles (turbo/quantile_balance), with ranks that share the tokens of a step.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "lm/train/rank_training.h"

namespace primus::test {
namespace {

std::map<std::string, std::vector<float>> biases_after_a_step(int ranks, const engine::MeshShape& shape) {
  ModelConfig model = tiny_kimi_k3();
  model.moe.training = {.quantile_bins = 64};
  SessionSettings settings = tiny_settings(DType::kF32, model);
  if (shape.pipeline > 1) settings.step.pipeline.blocks = even_parts(model.layers, shape.pipeline).blocks;
  std::map<std::string, std::vector<float>> biases;
  for (const auto& [name, weights] : train_on_ranks(settings, ranks, shape, 1, 4).weights) {
    if (name.ends_with(".choice_bias")) biases[name] = weights;
  }
  return biases;
}

// The first step routes equally on every mesh, so the histograms of scores are equal. The biases follow from
// the histograms.
TEST(QuantileBiases, AreEqualOnEveryMesh) {
  const auto one = biases_after_a_step(1, {});
  EXPECT_EQ(one.size(), 5U);  // four layers, and a module of multi-token prediction
  for (const auto& [name, bias] : one) {
    SCOPED_TRACE(name);
    const double sum = std::accumulate(bias.begin(), bias.end(), 0.0);
    EXPECT_LE(std::abs(sum), 1e-6);
    EXPECT_GT(*std::max_element(bias.begin(), bias.end()), 0);
  }
  EXPECT_EQ(biases_after_a_step(2, {}), one);
  EXPECT_EQ(biases_after_a_step(4, {}), one);
  EXPECT_EQ(biases_after_a_step(2, {.pipeline = 2}), one);
  EXPECT_EQ(biases_after_a_step(4, {.pipeline = 2}), one);
}

}  // namespace
}  // namespace primus::test
