// Compares gradients of a whole training step with finite differences.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "lm/train/step/session.h"

namespace primus::test {

inline std::vector<float> values_of(engine::Rank& rank, const Tensor& tensor) {
  std::vector<float> values(static_cast<std::size_t>(tensor.elements()));
  rank.compute().copy_to_host(values.data(), tensor.data, tensor.bytes());
  rank.compute().synchronize();
  return values;
}

// Checks that the loss changes at a rate equal to the gradient's length if a parameter moves along its
// gradient. `loss` runs the forward and backward pass of a step. It returns the fp32 value whose gradients
// the step computes.
inline void expect_finite_differences(TrainingSession& session, const std::function<double()>& loss) {
  engine::Rank& rank = session.rank();
  loss();
  std::vector<std::vector<float>> gradients;
  for (const engine::Parameter& p : session.store().parameters())
    gradients.push_back(p.trainable ? values_of(rank, p.gradient) : std::vector<float>{});
  std::size_t index = 0;
  for (engine::Parameter& p : session.store().parameters()) {
    const std::vector<float>& gradient = gradients[index++];
    if (!p.trainable) continue;
    const std::vector<float> weights = values_of(rank, p.value);
    double length = 0;
    for (const float g : gradient) length += static_cast<double>(g) * static_cast<double>(g);
    length = std::sqrt(length);
    ASSERT_GT(length, 1e-4) << p.name;
    const double step = 0.03 / std::max(length, 1.0);
    const auto loss_at = [&](double distance) {
      std::vector<float> moved = weights;
      for (std::size_t i = 0; i < moved.size(); ++i)
        moved[i] += static_cast<float>(distance / length * static_cast<double>(gradient[i]));
      rank.compute().copy_to_device(p.value.data, moved.data(), p.value.bytes());
      return loss();
    };
    // Two step sizes cancel the third-order error. Rounding remains: 1e-6 of a loss of about 5.
    const double near = (loss_at(step) - loss_at(-step)) / (2 * step);
    const double far = (loss_at(2 * step) - loss_at(-2 * step)) / (4 * step);
    EXPECT_NEAR((4 * near - far) / 3, length, 5e-3 * length + 1e-4) << p.name;
    loss_at(0);
  }
}

}  // namespace primus::test
