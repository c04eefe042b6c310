#include "lm/optimizer/optimizer.h"

#include "turbo/adamw/adamw.h"

namespace primus {

Optimizer::Optimizer(const OptimizerSettings& settings, engine::ParameterStore& store,
                     engine::DataParallel& parallel, engine::Rank& rank)
    : settings_(settings), store_(store), parallel_(parallel), rank_(rank) {
  auto scalar = [&](DType dtype) { return rank.persistent(dtype, {1}); };
  sum_of_squares_ = scalar(DType::kF64);
  norm_ = scalar(DType::kF32);
  scale_ = scalar(DType::kF32);
}

void Optimizer::measure_gradients() {
  bool first = true;
  for (const engine::ParameterUnit& unit : store_.units()) {
    if (!unit.trained) continue;
    // Each element is counted by one rank.
    const Tensor counted =
        unit.reduced.slice(unit.slice.begin - unit.shard.begin, unit.slice.end - unit.shard.begin);
    turbo::launch(rank_.context(),
                  turbo::SumOfSquares{.x = counted, .out = sum_of_squares_, .accumulate = !first});
    first = false;
  }
  // A stage of a pipeline may have nothing to train.
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

void Optimizer::update(const Tensor& scalars) {
  for (engine::ParameterUnit& unit : store_.units()) {
    if (!unit.trained) continue;
    for (std::size_t rule = 0; rule < rules().size(); ++rule) {
      rules()[rule]->update({.rank = rank_,
                             .parallel = parallel_,
                             .unit = unit,
                             .rule = static_cast<int>(rule),
                             .gradient_scale = scale_,
                             .scalars = scalars,
                             .decay_all = settings_.decay_all_parameters});
    }
  }
  parallel_.distribute_values();
}

}  // namespace primus
