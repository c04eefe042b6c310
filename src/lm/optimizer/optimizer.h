// The end of a step: the norm of all gradients, clipping, and the update by rules (update_rule.h), all
// enqueued without the host looking at a number. Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "engine/data_parallel.h"
#include "engine/parameters.h"
#include "engine/rank.h"
#include "lm/optimizer/optimizer_settings.h"

namespace primus {

class Optimizer {
 public:
  // Takes three scalars from the rank's persistent arena. The store must be allocated with the rules' states,
  // and their choice of parameters.
  Optimizer(const OptimizerSettings& settings, engine::ParameterStore& store, engine::DataParallel& parallel,
            engine::Rank& rank);

  // Enqueues the norm of the reduced gradients, over all ranks, and the clip coefficient.
  void measure_gradients();
  // Enqueues the update, clipped by the coefficient, or nothing at all where the norm is no finite number,
  // and brings the new values to all ranks. `scalars`: the step's, on the device.
  void update(const Tensor& scalars, std::int64_t step);
  // Weights of all ranks that the last update left at a number of fp4 because they oscillated, of how many
  // that are watched. Waits for the device, and every rank calls it.
  struct Snapped {
    double weights, of;
  };
  Snapped snapped();
  // Fills in what the update reads of `step`, counted from 1.
  void set_scalars(std::int64_t step, double learning_rate, double weight_decay,
                   std::span<double, turbo::kStepScalars> scalars) const;

  const OptimizerSettings& settings() const { return settings_; }
  const UpdateRules& rules() const { return settings_.rules; }
  // [1] fp32 on the device: the gradient norm before clipping, once measure_gradients() has run.
  const Tensor& gradient_norm() const { return norm_; }

 private:
  OptimizerSettings settings_;
  engine::ParameterStore& store_;
  engine::DataParallel& parallel_;
  engine::Rank& rank_;
  Tensor sum_of_squares_, norm_, scale_;
  Tensor snapped_;  // [units] int32, where oscillation is watched
};

}  // namespace primus
