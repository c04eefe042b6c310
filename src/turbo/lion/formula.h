// Updates an element by the sign of a mean of moment and gradient (Chen et al., 2023); shared by the kernels
// of all devices.
#pragma once

#include "turbo/formula.h"
#include "turbo/step_scalars.h"

namespace primus::turbo::PRIMUS_KERNELS {

struct SignStep {
  float scale, beta1, beta2, rate, keep;

  PRIMUS_FORMULA SignStep(float grad_scale, const double* scalars, float of_beta1, float of_beta2,
                          float decay_factor)
      : scale(grad_scale),
        beta1(of_beta1),
        beta2(of_beta2),
        rate(static_cast<float>(scalars[index(StepScalar::kLearningRate)])) {
    const auto weight_decay = static_cast<float>(scalars[index(StepScalar::kWeightDecay)]);
    keep = 1.0F - rate * (weight_decay * decay_factor);
  }

  // Returns the new weight; m becomes the new moment.
  PRIMUS_FORMULA float operator()(float weight, float grad, float& m) const {
    const float g = grad * scale;
    const float mixed = beta1 * m + (1.0F - beta1) * g;
    const float sign = static_cast<float>(mixed > 0) - static_cast<float>(mixed < 0);
    m = beta2 * m + (1.0F - beta2) * g;
    return weight * keep - rate * sign;
  }
};

}  // namespace primus::turbo::PRIMUS_KERNELS
