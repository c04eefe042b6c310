// Update rules: how an optimizer changes a unit's master weights, and what it keeps about each of them. A
// rule names its states, and memory, checkpoints and sharding follow from that.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "config/trainer_config.h"
#include "engine/parameters.h"
#include "turbo/context.h"
#include "turbo/step_scalars.h"

namespace primus {

class UpdateRule {
 public:
  virtual ~UpdateRule() = default;

  // What ParameterUnit::states is to hold, in this order.
  virtual std::vector<engine::StateSpec> states() const = 0;
  // Fills in what update() reads besides the step, the learning rate and the weight decay. `step` counts from
  // 1.
  virtual void set_scalars(std::int64_t /*step*/, std::span<double, turbo::kStepScalars> /*scalars*/) const {}
  // Enqueues the update of the unit's shard from its reduced gradient: master weights, states, and stored
  // values. The gradient is multiplied by `gradient_scale` ([1] fp32) first; below 0 nothing changes.
  // `scalars`: of the step, on the device.
  virtual void update(turbo::Context& context, engine::ParameterUnit& unit, const Tensor& gradient_scale,
                      const Tensor& scalars) const = 0;
};

struct AdamSettings {
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;
  double clip_norm = 1.0;             // of the whole gradient; 0: no clipping
  bool decay_all_parameters = false;  // false, as Megatron: norms and biases are not decayed

  static AdamSettings from(const config::TrainerConfig& config);
};

// AdamW: decoupled weight decay (Loshchilov and Hutter, 2019). States: exp_avg, exp_avg_sq.
std::unique_ptr<UpdateRule> adamw_rule(const AdamSettings& settings);

}  // namespace primus
