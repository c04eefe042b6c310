// Delayed scaling for fp8: scales come from the largest magnitudes of previous steps. This is Transformer
// Engine's DelayedScaling, Megatron-LM's default (fp8_recipe: delayed). Each linear layer has three scales,
// for x, W and d_y.
//
//   during a step: every quantisation uses the scale from previous steps, and records the largest magnitude
//   after a step:  the maximum over all ranks and microbatches enters the history, which gives new scales
//
// Quantising a tensor again with the same scale gives the same codes and records the same magnitude. So
// results depend neither on recomputation nor on the order of products, and each product can quantise its
// operands itself. Evaluation does not record magnitudes. A step with non-finite gradients changes neither
// the history nor the scales nor any weight. (Transformer Engine adds such a step to its history. It keeps
// the old scale only if the magnitude is not finite.)
//
// A magnitude is the maximum over all ranks of all stages. So a tensor rank's part of a matrix has the scale
// of the complete matrix, and any mesh has the scales of one device. Every rank holds the scales of all
// layers, including layers of other stages, and any rank can save the scales. Transformer Engine adds an
// entry to its history once per microbatch. Primus adds an entry once per step, so the result does not depend
// on the microbatch size.
//
// Histories and scales are stored on the device; the host holds no copy. Not thread-safe.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/parallel/data_parallel.h"
#include "engine/runtime/parameters.h"
#include "engine/runtime/precision.h"
#include "engine/runtime/rank.h"
#include "turbo/fp8_linear/fp8_product.h"

namespace primus::engine {

class DelayedScales {
 public:
  // An operand of a layer's products, numbered as in UpdateFp8Scales.
  enum class Operand : std::uint8_t { kInput, kWeight, kOutputGradient };

  // Covers the parameters that `recipe` multiplies in fp8. Allocates from the rank's persistent arena, and
  // enqueues the initial state: empty histories and scales of 1.
  DelayedScales(Rank& rank, const ParameterStore& store, const PrecisionRecipe& recipe);

  // Returns the scaling of an operand of a product with `parameter`, which must be the weight of a covered
  // layer. If `note` is true, the product records the operand's magnitude.
  turbo::Fp8Scaling of(const Parameter& parameter, Operand operand, bool note) const;

  // Clears the recorded magnitudes.
  void begin_step();
  // Replaces each magnitude by its maximum over all ranks. Call between the step's last product and update().
  void reduce(DataParallel& parallel);
  // Ends the step: computes the scales of the next step. `norm`: [1] fp32, the gradient norm.
  void update(turbo::Context& context, const Tensor& norm);

  // One layer's state, which checkpoints contain. Layers are in the order of the store, equal on all ranks.
  struct Layer {
    const Parameter* parameter = nullptr;
    Tensor history;  // [3, steps]
    Tensor scales;   // [3, 4], as in turbo::UpdateFp8Scales
  };
  std::vector<Layer> layers() const;
  std::int64_t state_bytes() const { return history_.bytes() + scales_.bytes(); }
  // Returns the recipe with which update() computes scales.
  const PrecisionRecipe& recipe() const { return recipe_; }

 private:
  static constexpr std::int64_t kTensors = turbo::UpdateFp8Scales::kTensors,
                                kPlace = turbo::UpdateFp8Scales::kPlace;

  Rank& rank_;
  PrecisionRecipe recipe_;
  std::vector<const Parameter*> parameters_;
  std::vector<std::int64_t> layer_of_;  // the layer at each Parameter::index; -1: none
  Tensor largest_, history_, scales_;   // tensors that turbo::UpdateFp8Scales reads and writes
};

}  // namespace primus::engine
