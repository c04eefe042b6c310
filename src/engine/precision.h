// In which types the products of linear layers are multiplied: a recipe by what a product is for and by the
// tag of its weight (Parameter::linear_of), never by names. Operands come in the compute type, whatever the
// recipe says, and results leave in it.
#pragma once

#include <cstdint>
#include <limits>

#include "engine/parameter.h"
#include "tensor/dtype.h"
#include "turbo/linear/linear.h"

namespace primus::engine {

class DelayedScales;

// Scales from the steps before (engine/delayed_scales.h).
struct DelayedScaling {
  std::int64_t steps = 0;    // of the history; 0: scales are each tensor's own
  bool most_recent = false;  // the last step's magnitude decides; false: the largest in the history
  int margin = 0;            // magnitudes shall stay 2^margin below the format's largest number

  bool operator==(const DelayedScaling&) const = default;
};

struct PrecisionRecipe {
  static constexpr std::int64_t kAll = std::numeric_limits<std::int64_t>::max();

  bool fp8 = false;  // products by turbo::Fp8Linear
  // Of the gradients of outputs; weights and activations are e4m3.
  DType gradients = DType::kF8E4M3;
  bool weight_gradients = true;  // false: those products are not in fp8
  // Blocks [0, first) and [last, layers) are not in fp8. What comes behind the model's blocks (multi-token
  // prediction) is.
  std::int64_t first = 0, last = kAll, layers = kAll;
  DelayedScaling delayed = {};
  // Where scales are delayed: what holds them. TrainingStep sets it.
  const DelayedScales* scales = nullptr;

  bool is_fp8(turbo::GemmRole role, const Parameter& weight) const {
    const std::int64_t block = weight.linear_of;
    return fp8 && block >= first && (block < last || block >= layers) &&
           (weight_gradients || role != turbo::GemmRole::kWeightGradient);
  }
};

}  // namespace primus::engine
