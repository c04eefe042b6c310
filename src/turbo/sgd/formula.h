// Updates an element by SGD; shared by the kernels of all devices.
#pragma once

#include "turbo/formula.h"
#include "turbo/step_scalars.h"

namespace primus::turbo::PRIMUS_KERNELS {

struct SgdStep {
  float scale, rate, decay;

  PRIMUS_FORMULA SgdStep(float grad_scale, const double* scalars, float decay_factor)
      : scale(grad_scale),
        rate(static_cast<float>(scalars[index(StepScalar::kLearningRate)])),
        decay(static_cast<float>(scalars[index(StepScalar::kWeightDecay)]) * decay_factor) {}

  // Returns the gradient with weight decay.
  PRIMUS_FORMULA float direction(float weight, float grad) const { return grad * scale + decay * weight; }
  // Returns the new momentum buffer, which replaces the direction.
  PRIMUS_FORMULA static float with_momentum(float momentum, float buffer, float direction) {
    return momentum * buffer + direction;
  }
  PRIMUS_FORMULA float moved(float weight, float direction) const { return weight - rate * direction; }
};

}  // namespace primus::turbo::PRIMUS_KERNELS
