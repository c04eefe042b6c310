// Learning rate and weight decay over the run, as in Megatron-LM's OptimizerParamScheduler: pure functions of
// the number of completed steps. With a warm-up from 0, the first step therefore has learning rate 0, which
// hardly matters when training from scratch. A run that starts from trained weights may have only a few
// steps, and each step should change the weights. So if lr_warmup_init is not set, step k = 0, 1, ... of such
// a run's warm-up over w steps uses (k + 1) / (w + 1) of the peak rate. Thread-safe.
#pragma once

#include <cstdint>

namespace primus::config {
struct TrainerConfig;
}

namespace primus {

class Schedule {
 public:
  // Reads the settings lr*, min_lr, *weight_decay* and train_iters. `from_weights`: whether the run starts
  // from trained weights.
  explicit Schedule(const config::TrainerConfig& config, bool from_weights = false);

  // Return the values for the next step after `steps` completed steps.
  double learning_rate(std::int64_t steps) const { return learning_rate_at(static_cast<double>(steps)); }
  double weight_decay(std::int64_t steps) const { return weight_decay_at(static_cast<double>(steps)); }
  // Return the same for fractional `steps`. Such values occur in runs whose schedule follows time.
  double learning_rate_at(double steps) const;
  double weight_decay_at(double steps) const;

 private:
  double decay_coefficient(double steps) const;

  enum class Style : std::uint8_t { kConstant, kLinear, kCosine, kInverseSquareRoot, kWsd } style_;
  enum class Anneal : std::uint8_t { kLinear, kCosine, kExponential, kMinusSqrt } anneal_;
  double max_, min_, warmup_, initial_, decay_, wsd_decay_;
  double start_weight_decay_, end_weight_decay_, train_iters_;
  enum class Increase : std::uint8_t { kConstant, kLinear, kCosine } increase_;
};

}  // namespace primus
