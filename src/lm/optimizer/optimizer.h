// The end of a training step: the norm of all gradients, clipping, and the update by rules (update_rule.h).
// All work is enqueued without synchronizing with the host. Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "engine/parallel/data_parallel.h"
#include "engine/runtime/parameters.h"
#include "engine/runtime/rank.h"
#include "lm/optimizer/optimizer_settings.h"

namespace primus {

class Optimizer {
 public:
  // Allocates three scalars in the rank's persistent arena. `store` must already be allocated, with the
  // states of the rules and the rule of each parameter.
  Optimizer(const OptimizerSettings& settings, engine::ParameterStore& store, engine::DataParallel& parallel,
            engine::Rank& rank);

  // Makes this optimizer measure and clip the gradients of both optimizers by one common norm. Call it before
  // the first step. `other` must outlive this object; its measure_gradients() must not be called.
  void join(Optimizer& other);
  // Enqueues the norm of the reduced gradients over all ranks, and the clip coefficient.
  void measure_gradients();
  // Enqueues the clipped update and the distribution of the new values to all ranks. Nothing is changed if
  // the gradient norm is not finite. `scalars`: the scalars of this step, on the device.
  void update(const Tensor& scalars, std::int64_t step);
  // Counts over all ranks: `weights`, the oscillating weights that the last update set to an fp4 value, and
  // `of`, the weights that are checked for oscillation. Synchronizes with the device; every rank must call
  // it.
  struct Snapped {
    double weights, of;
  };
  Snapped snapped();
  // Sets the scalars that the update reads. The first step has `step` 1.
  void set_scalars(std::int64_t step, double learning_rate, double weight_decay,
                   std::span<double, turbo::kStepScalars> scalars) const;

  const OptimizerSettings& settings() const { return settings_; }
  const UpdateRules& rules() const { return settings_.rules; }
  // Returns the gradient norm before clipping, [1] fp32 on the device; valid after measure_gradients().
  const Tensor& gradient_norm() const { return norm_; }

 private:
  OptimizerSettings settings_;
  engine::ParameterStore& store_;
  engine::DataParallel& parallel_;
  engine::Rank& rank_;
  const engine::ParameterStore* joined_ = nullptr;  // the parameters of the optimizer of join()
  Tensor sum_of_squares_, norm_, scale_;
  Tensor snapped_;  // [units] int32: number of weights set to an fp4 value; allocated if weights are checked
                    // for oscillation
};

}  // namespace primus
