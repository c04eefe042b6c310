// AdamW's update of an element and the clipping of gradients, shared by the kernels of all devices.
#pragma once

#include "turbo/formula.h"
#include "turbo/step_scalars.h"

namespace primus::turbo::PRIMUS_KERNELS {

struct AdamFactors {
  // learning_rate and weight_decay multiply the values of the step scalars.
  float beta1, beta2, eps, learning_rate, weight_decay;
};

// Updates one element.
struct AdamStep {
  float scale, decay, beta1, beta2;
  float root_step, root_eps;  // step size and epsilon, multiplied by sqrt(bias2)

  PRIMUS_FORMULA AdamStep(float grad_scale, const double* scalars, const AdamFactors& of)
      : scale(grad_scale), beta1(of.beta1), beta2(of.beta2) {
    const float rate = step_scalar(scalars, StepScalar::kLearningRate) * of.learning_rate;
    const float root_bias2 = ::sqrtf(step_scalar(scalars, StepScalar::kBias2));
    decay = 1.0F - rate * (step_scalar(scalars, StepScalar::kWeightDecay) * of.weight_decay);
    root_step = rate / step_scalar(scalars, StepScalar::kBias1) * root_bias2;
    root_eps = of.eps * root_bias2;
  }

  // Returns the new weight; m and v become the new moments.
  PRIMUS_FORMULA float operator()(float weight, float grad, float& m, float& v) const {
    const float g = grad * scale;
    m = beta1 * m + (1.0F - beta1) * g;
    v = beta2 * v + (1.0F - beta2) * (g * g);
    // One division and one root per element: sqrt(v)/root + eps = (sqrt(v) + eps*root) / root.
    return weight * decay - fast_quotient(root_step * m, fast_root(v) + root_eps);
  }

 private:
  PRIMUS_FORMULA static float step_scalar(const double* scalars, StepScalar which) {
    return static_cast<float>(scalars[index(which)]);
  }
};

// Returns the factor that limits a gradient of this norm to max_norm (0: no limit). If the norm is not
// finite, returns -1, which skips the step.
PRIMUS_FORMULA float clip_factor(double norm, float max_norm) {
  const double wanted = max_norm == 0.0F ? 1.0 : static_cast<double>(max_norm) / (norm + 1e-6);
  const bool finite = norm - norm == 0;  // false for NaN and infinities
  return !finite ? -1.0F : static_cast<float>(wanted > 1.0 ? 1.0 : wanted);
}

}  // namespace primus::turbo::PRIMUS_KERNELS
