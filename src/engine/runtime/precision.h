// The precision of the products of linear layers. A recipe selects the precision by the product's role and by
// the block of the product's weight (Parameter::linear_of), not by parameter names. Operands and results have
// the compute type under any recipe.
#pragma once

#include <cstdint>
#include <limits>

#include "engine/runtime/parameter.h"
#include "tensor/dtype.h"
#include "turbo/linear/linear.h"

namespace primus::engine {

class DelayedScales;

// Scales from previous steps (engine/runtime/delayed_scales.h).
struct DelayedScaling {
  std::int64_t steps = 0;    // length of the history; 0: each tensor has its own scale
  bool most_recent = false;  // uses only the last step's magnitude; false: the maximum of the history
  int margin = 0;            // keeps magnitudes 2^margin below the format's maximum

  bool operator==(const DelayedScaling&) const = default;
};

struct PrecisionRecipe {
  static constexpr std::int64_t kAll = std::numeric_limits<std::int64_t>::max();

  bool fp8 = false;  // products use turbo::Fp8Linear, except products of routed experts
  bool fp4 = false;  // products use turbo::Mxfp4Linear and turbo::Mxfp4Grouped; not with fp8
  // With fp8: type of output gradients. Weights and activations are e4m3.
  DType gradients = DType::kF8E4M3;
  bool weight_gradients = true;  // false: weight gradients are not computed in fp8
  // With fp4: rounds output gradients stochastically, using the tape's DropoutSource. Does not apply to
  // routed experts, because their rows have no token numbers.
  bool at_random = false;
  // Blocks [0, first) and [last, layers) use the compute type instead of fp8 or fp4. Layers after the model's
  // blocks (multi-token prediction) use fp8 or fp4.
  std::int64_t first = 0, last = kAll, layers = kAll;
  DelayedScaling delayed = {};
  // The scales of delayed scaling, set by TrainingStep. Null: no delayed scaling.
  const DelayedScales* scales = nullptr;

  bool is_fp8(turbo::GemmRole role, const Parameter& weight) const {
    return fp8 && !weight.per_expert && in_blocks(weight) &&
           (weight_gradients || role != turbo::GemmRole::kWeightGradient);
  }
  bool is_fp4(const Parameter& weight) const { return fp4 && in_blocks(weight); }

 private:
  bool in_blocks(const Parameter& weight) const {
    const std::int64_t block = weight.linear_of;
    return block >= first && (block < last || block >= layers);
  }
};

}  // namespace primus::engine
