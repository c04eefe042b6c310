#include "lm/optimizer/optimizer.h"

#include <numeric>
#include <vector>

#include "turbo/adamw/adamw.h"

namespace primus {

Optimizer::Optimizer(const OptimizerSettings& settings, engine::ParameterStore& store,
                     engine::DataParallel& parallel, engine::Rank& rank)
    : settings_(settings), store_(store), parallel_(parallel), rank_(rank) {
  auto scalar = [&](DType dtype) { return rank.persistent(dtype, {1}); };
  sum_of_squares_ = scalar(DType::kF64);
  norm_ = scalar(DType::kF32);
  scale_ = scalar(DType::kF32);
  if (settings_.oscillation)
    snapped_ = rank.persistent(DType::kI32, {static_cast<std::int64_t>(store.units().size())});
}

void Optimizer::join(Optimizer& other) {
  joined_ = &other.store_;
  other.norm_ = norm_;
  other.scale_ = scale_;
}

void Optimizer::measure_gradients() {
  bool first = true;
  for (const engine::ParameterStore* const store :
       {static_cast<const engine::ParameterStore*>(&store_), joined_}) {
    if (!store) continue;
    for (const engine::ParameterUnit& unit : store->units()) {
      if (!unit.trained) continue;
      // Each element is counted by exactly one rank.
      const Tensor counted =
          unit.reduced.slice(unit.slice.begin - unit.shard.begin, unit.slice.end - unit.shard.begin);
      turbo::launch(rank_.context(),
                    turbo::SumOfSquares{.x = counted, .out = sum_of_squares_, .accumulate = !first});
      first = false;
    }
  }
  // The sum is 0 on a pipeline stage that has nothing to train.
  if (first && !rank_.measuring()) rank_.compute().fill_zero(sum_of_squares_.data, sum_of_squares_.bytes());
  parallel_.sum(sum_of_squares_);
  turbo::launch(rank_.context(), turbo::ClipCoefficient{.sum_of_squares = sum_of_squares_,
                                                        .norm = norm_,
                                                        .scale = scale_,
                                                        .max_norm = static_cast<float>(settings_.clip_norm)});
}

void Optimizer::set_scalars(std::int64_t step, double learning_rate, double weight_decay,
                            std::span<double, turbo::kStepScalars> scalars) const {
  using turbo::StepScalar;
  scalars[index(StepScalar::kStep)] = static_cast<double>(step);
  scalars[index(StepScalar::kLearningRate)] = learning_rate;
  scalars[index(StepScalar::kWeightDecay)] = weight_decay;
  for (const auto& rule : settings_.rules) rule->set_scalars(step, scalars);
}

void Optimizer::update(const Tensor& scalars, std::int64_t step) {
  if (!snapped_.absent() && !rank_.measuring()) rank_.compute().fill_zero(snapped_.data, snapped_.bytes());
  for (engine::ParameterUnit& unit : store_.units()) {
    if (!unit.trained) continue;
    for (std::size_t rule = 0; rule < rules().size(); ++rule) {
      rules()[rule]->update(
          {.rank = rank_,
           .parallel = parallel_,
           .unit = unit,
           .rule = static_cast<int>(rule),
           .gradient_scale = scale_,
           .scalars = scalars,
           .step = step,
           .snapped = snapped_.absent() ? Tensor() : snapped_.slice(unit.number, unit.number + 1),
           .decay_all = settings_.decay_all_parameters});
    }
  }
  parallel_.distribute_values();
}

Optimizer::Snapped Optimizer::snapped() {
  std::vector<std::int32_t> of_units(static_cast<std::size_t>(snapped_.elements()));
  rank_.compute().copy_to_host(of_units.data(), snapped_.data, snapped_.bytes());
  rank_.compute().synchronize();
  double all = std::accumulate(of_units.begin(), of_units.end(), 0.0);
  // Overwrites the sum of squares, which is no longer needed.
  rank_.compute().copy_to_device(sum_of_squares_.data, &all, sum_of_squares_.bytes());
  parallel_.sum(sum_of_squares_);
  rank_.compute().copy_to_host(&all, sum_of_squares_.data, sum_of_squares_.bytes());
  rank_.compute().synchronize();
  double watched = 0;
  for (const engine::Parameter& p : store_.parameters()) {
    if (p.trainable && rules()[static_cast<std::size_t>(p.rule)]->varies())
      watched += static_cast<double>(p.whole_shape().elements());
  }
  return {all, watched};
}

}  // namespace primus
