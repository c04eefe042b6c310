#include "lm/optimizer/optimizer.h"

#include <cmath>

#include "turbo/adamw/adamw.h"

namespace primus {

AdamSettings AdamSettings::from(const config::TrainerConfig& c) {
  return {.beta1 = c.adam_beta1, .beta2 = c.adam_beta2, .epsilon = c.adam_eps, .clip_norm = c.clip_grad};
}

Optimizer::Optimizer(const AdamSettings& settings, engine::ParameterStore& store, engine::Rank& rank)
    : settings_(settings), store_(store), rank_(rank) {
  auto scalar = [&](DType dtype) {
    return Tensor(rank.persistent().allocate(size_of(dtype)).address, dtype, {1});
  };
  sum_of_squares_ = scalar(DType::kF64);
  norm_ = scalar(DType::kF32);
  scale_ = scalar(DType::kF32);
}

void Optimizer::measure_gradients() {
  bool first = true;
  for (const engine::ParameterUnit& unit : store_.units()) {
    turbo::launch(rank_.context(),
                  turbo::SumOfSquares{.x = unit.gradient, .out = sum_of_squares_, .accumulate = !first});
    first = false;
  }
  turbo::launch(rank_.context(), turbo::ClipCoefficient{.sum_of_squares = sum_of_squares_,
                                                        .norm = norm_,
                                                        .scale = scale_,
                                                        .max_norm = static_cast<float>(settings_.clip_norm)});
}

void Optimizer::set_scalars(std::int64_t step, double learning_rate, double weight_decay,
                            std::span<double, turbo::kStepScalars> scalars) const {
  using turbo::StepScalar;
  const auto t = static_cast<double>(step);
  scalars[index(StepScalar::kStep)] = t;
  scalars[index(StepScalar::kLearningRate)] = learning_rate;
  scalars[index(StepScalar::kWeightDecay)] = weight_decay;
  scalars[index(StepScalar::kBias1)] = 1 - std::pow(settings_.beta1, t);
  scalars[index(StepScalar::kBias2)] = 1 - std::pow(settings_.beta2, t);
}

void Optimizer::update(const Tensor& scalars) {
  for (const engine::ParameterUnit& unit : store_.units()) {
    auto run = [&](std::int64_t begin, std::int64_t end, float decay_factor) {
      if (begin == end) return;
      auto part = [&](const Tensor& flat) { return flat.absent() ? Tensor() : flat.slice(begin, end); };
      turbo::launch(rank_.context(), turbo::AdamW{.param = part(unit.master),
                                                  .grad = part(unit.gradient),
                                                  .exp_avg = part(unit.exp_avg),
                                                  .exp_avg_sq = part(unit.exp_avg_sq),
                                                  .grad_scale = scale_,
                                                  .working = part(unit.working),
                                                  .scalars = scalars,
                                                  .beta1 = static_cast<float>(settings_.beta1),
                                                  .beta2 = static_cast<float>(settings_.beta2),
                                                  .eps = static_cast<float>(settings_.epsilon),
                                                  .weight_decay_factor = decay_factor});
    };
    run(0, unit.decayed_elements, 1);
    run(unit.decayed_elements, unit.trained_elements, settings_.decay_all_parameters ? 1 : 0);
  }
}

}  // namespace primus
