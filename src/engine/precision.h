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

  bool fp8 = false;  // products by turbo::Fp8Linear; not those of routed experts
  bool fp4 = false;  // products by turbo::Mxfp4Linear and turbo::Mxfp4Grouped; not with fp8
  // Of the gradients of outputs; weights and activations are e4m3.
  DType gradients = DType::kF8E4M3;
  bool weight_gradients = true;  // false: those products are not in fp8
  // With fp4: gradients of outputs are rounded at random, by the tape's DropoutSource. Not with routed
  // experts, whose rows bring no numbers of tokens.
  bool at_random = false;
  // Blocks [0, first) and [last, layers) are in neither. What comes behind the model's blocks (multi-token
  // prediction) is.
  std::int64_t first = 0, last = kAll, layers = kAll;
  DelayedScaling delayed = {};
  // Where scales are delayed: what holds them. TrainingStep sets it.
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
