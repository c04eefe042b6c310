// AdamW over a ParameterStore: gradient norm, clipping, update, all enqueued on the compute stream without
// the host looking at a number. Not thread-safe.
#pragma once

#include <cstdint>
#include <span>

#include "config/trainer_config.h"
#include "engine/parameters.h"
#include "engine/rank.h"
#include "turbo/step_scalars.h"

namespace primus {

struct AdamSettings {
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;
  double clip_norm = 1.0;             // 0: no clipping
  bool decay_all_parameters = false;  // false, as Megatron: norms and biases are not decayed

  static AdamSettings from(const config::TrainerConfig& config);
};

class Optimizer {
 public:
  // Takes three scalars from the rank's persistent arena. The store must be allocated with optimizer states.
  Optimizer(const AdamSettings& settings, engine::ParameterStore& store, engine::Rank& rank);

  // Enqueues the norm of all gradients and the clip coefficient.
  void measure_gradients();
  // Enqueues the update, clipped by the coefficient, or nothing at all where the norm is no finite number.
  // `scalars`: the step's, on the device.
  void update(const Tensor& scalars);
  // Fills in what the update reads of `step`, counted from 1.
  void set_scalars(std::int64_t step, double learning_rate, double weight_decay,
                   std::span<double, turbo::kStepScalars> scalars) const;

  // [1] fp32 on the device: the gradient norm before clipping, once measure_gradients() has run.
  const Tensor& gradient_norm() const { return norm_; }

 private:
  AdamSettings settings_;
  engine::ParameterStore& store_;
  engine::Rank& rank_;
  Tensor sum_of_squares_, norm_, scale_;
};

}  // namespace primus
