// The arithmetic of Muon, except for its matrix products; shared by the kernels of all devices.
#pragma once

#include "turbo/formula.h"
#include "turbo/step_scalars.h"

namespace primus::turbo::PRIMUS_KERNELS {

struct MuonMoment {
  float scale, beta;
  bool nesterov;

  // Returns the direction; m becomes the new momentum.
  PRIMUS_FORMULA float operator()(float grad, float& m) const {
    const float g = grad * scale;
    m = beta * m + (1.0F - beta) * g;
    return nesterov ? beta * m + (1.0F - beta) * g : m;
  }
};

// Returns 1 / norm of a matrix, from the sum of its squares. A norm below 1e-7 counts as 1e-7, and NaN stays
// NaN.
PRIMUS_FORMULA float inverse_norm(double sum_of_squares) {
  constexpr double kSmallestNorm = 1e-7;
  const double norm = ::sqrt(sum_of_squares);
  return static_cast<float>(1.0 / (norm < kSmallestNorm ? kSmallestNorm : norm));
}

// Returns an element of b * gram + c * gram²; the caller adds `a` to diagonal elements.
PRIMUS_FORMULA float polynomial(float b, float gram, float c, float square) { return b * gram + c * square; }

struct MuonStep {
  float keep, step;

  PRIMUS_FORMULA MuonStep(const double* scalars, float scale, float decay_factor) {
    const auto rate = static_cast<float>(scalars[index(StepScalar::kLearningRate)]);
    const auto weight_decay = static_cast<float>(scalars[index(StepScalar::kWeightDecay)]);
    keep = 1.0F - rate * (weight_decay * decay_factor);
    step = rate * scale;
  }

  // Returns the new weight.
  PRIMUS_FORMULA float operator()(float weight, float direction) const {
    return weight * keep - step * direction;
  }
};

}  // namespace primus::turbo::PRIMUS_KERNELS
