#include "lm/optimizer/optimizer.h"

#include "turbo/adamw/adamw.h"

namespace primus {

Optimizer::Optimizer(std::unique_ptr<UpdateRule> rule, double clip_norm, engine::ParameterStore& store,
                     engine::DataParallel& parallel, engine::Rank& rank)
    : rule_(std::move(rule)), clip_norm_(clip_norm), store_(store), parallel_(parallel), rank_(rank) {
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
    if (!unit.trained) continue;
    // Each element is counted by one rank.
    const Tensor counted =
        unit.reduced.slice(unit.slice.begin - unit.shard.begin, unit.slice.end - unit.shard.begin);
    turbo::launch(rank_.context(),
                  turbo::SumOfSquares{.x = counted, .out = sum_of_squares_, .accumulate = !first});
    first = false;
  }
  parallel_.sum(sum_of_squares_);
  turbo::launch(rank_.context(), turbo::ClipCoefficient{.sum_of_squares = sum_of_squares_,
                                                        .norm = norm_,
                                                        .scale = scale_,
                                                        .max_norm = static_cast<float>(clip_norm_)});
}

void Optimizer::set_scalars(std::int64_t step, double learning_rate, double weight_decay,
                            std::span<double, turbo::kStepScalars> scalars) const {
  using turbo::StepScalar;
  scalars[index(StepScalar::kStep)] = static_cast<double>(step);
  scalars[index(StepScalar::kLearningRate)] = learning_rate;
  scalars[index(StepScalar::kWeightDecay)] = weight_decay;
  rule_->set_scalars(step, scalars);
}

void Optimizer::update(const Tensor& scalars) {
  for (engine::ParameterUnit& unit : store_.units()) {
    if (unit.trained) rule_->update(rank_.context(), unit, scale_, scalars);
  }
  parallel_.distribute_values();
}

}  // namespace primus
