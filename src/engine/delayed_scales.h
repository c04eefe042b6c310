// Scales of fp8 that the largest magnitudes of steps before decide: Transformer Engine's DelayedScaling,
// which is Megatron-LM's default (fp8_recipe: delayed). Each linear layer has three, of x, W and d_y.
//
//   a step:  every quantisation takes the scale that the steps before left, and notes the largest magnitude
//   its end: the magnitudes of all ranks and microbatches enter the history, and new scales come from that
//
// Quantising a tensor once more with the same scale gives the same codes and notes the same magnitude, so
// recomputation and the order of products change nothing, and each product quantises for itself. Evaluation
// notes nothing. A step whose gradients are no finite numbers changes neither history nor scales, as it
// changes no weight. (Transformer Engine counts it; where a magnitude is not finite, it leaves the scale.)
//
// A magnitude is the largest on all ranks of all stages: a tensor rank's part of a matrix has the whole one's
// scale, and any mesh has the scales of one device. So every rank holds the scales of all layers, those of
// other stages too, and any of them could save them. Transformer Engine rolls its history with each
// microbatch; here it is once for a step, so that it does not matter how a batch is cut.
//
// Nothing here is a number of the host: histories and scales live on the device. Not thread-safe.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/data_parallel.h"
#include "engine/parameters.h"
#include "engine/precision.h"
#include "engine/rank.h"
#include "turbo/fp8_linear/fp8_product.h"

namespace primus::engine {

class DelayedScales {
 public:
  // An operand of a layer's products, in the order of UpdateFp8Scales.
  enum class Operand : std::uint8_t { kInput, kWeight, kOutputGradient };

  // For the parameters that `recipe` multiplies in fp8; takes memory from the rank's persistent arena, and
  // enqueues the beginning: empty histories and scales of 1.
  DelayedScales(Rank& rank, const ParameterStore& store, const PrecisionRecipe& recipe);

  // Of a product with this parameter, which is one of the layers. `note`: its magnitude counts.
  turbo::Fp8Scaling of(const Parameter& parameter, Operand operand, bool note) const;

  // No magnitude has been noted.
  void begin_step();
  // Between the step's last product and update(): the largest magnitudes of all ranks.
  void reduce(DataParallel& parallel);
  // Ends the step: the scales of the next one. `norm`: [1] fp32, of the gradients.
  void update(turbo::Context& context, const Tensor& norm);

  // In the order of the store, on all ranks the same; part of a checkpoint.
  struct Layer {
    const Parameter* parameter = nullptr;
    Tensor history;  // [3, steps]
    Tensor scales;   // [3, 4], of turbo::UpdateFp8Scales
  };
  std::vector<Layer> layers() const;
  std::int64_t state_bytes() const { return history_.bytes() + scales_.bytes(); }
  // What update() decides by.
  const PrecisionRecipe& recipe() const { return recipe_; }

 private:
  static constexpr std::int64_t kTensors = turbo::UpdateFp8Scales::kTensors,
                                kPlace = turbo::UpdateFp8Scales::kPlace;

  Rank& rank_;
  PrecisionRecipe recipe_;
  std::vector<const Parameter*> parameters_;
  std::vector<std::int64_t> layer_of_;  // by Parameter::index; -1: it is none
  Tensor largest_, history_, scales_;   // of UpdateFp8Scales
};

}  // namespace primus::engine
