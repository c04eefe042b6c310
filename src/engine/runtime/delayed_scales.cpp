#include "engine/runtime/delayed_scales.h"

#include "base/check.h"
#include "turbo/elementwise/elementwise.h"

namespace primus::engine {

DelayedScales::DelayedScales(Rank& rank, const ParameterStore& store, const PrecisionRecipe& recipe)
    : rank_(rank), recipe_(recipe) {
  for (const Parameter& parameter : store.parameters()) {
    const bool layer = recipe.is_fp8(turbo::GemmRole::kForward, parameter);
    layer_of_.push_back(layer ? static_cast<std::int64_t>(parameters_.size()) : -1);
    if (layer) parameters_.push_back(&parameter);
  }
  const auto layers = static_cast<std::int64_t>(parameters_.size());
  if (layers == 0) return;
  largest_ = rank.persistent(DType::kI32, {layers, kTensors});
  history_ = rank.persistent(DType::kF32, {layers, kTensors, recipe.delayed.steps});
  scales_ = rank.persistent(DType::kF32, {layers, kTensors, kPlace});
  turbo::launch(rank.context(), turbo::Fill{.out = history_, .value = 0});
  turbo::launch(rank.context(), turbo::Fill{.out = scales_, .value = 1});
}

turbo::Fp8Scaling DelayedScales::of(const Parameter& parameter, Operand operand, bool note) const {
  const std::int64_t layer = layer_of_[static_cast<std::size_t>(parameter.index)];
  PRIMUS_CHECK("DelayedScales::of", layer >= 0);
  const std::int64_t i = layer * kTensors + static_cast<std::int64_t>(operand), all = largest_.elements();
  return {.scales = Tensor(scales_.from(i * kPlace).data, DType::kF32, {2}),
          .largest = note ? largest_.reshaped({all}).slice(i, i + 1) : Tensor()};
}

void DelayedScales::begin_step() {
  if (rank_.measuring() || parameters_.empty()) return;
  rank_.compute().fill_zero(largest_.data, largest_.bytes());
}

void DelayedScales::reduce(DataParallel& parallel) {
  if (!parameters_.empty()) parallel.largest(largest_);
}

void DelayedScales::update(turbo::Context& context, const Tensor& norm) {
  if (parameters_.empty()) return;
  turbo::launch(context, turbo::UpdateFp8Scales{.largest = largest_,
                                                .history = history_,
                                                .scales = scales_,
                                                .norm = norm,
                                                .gradients = recipe_.gradients,
                                                .most_recent = recipe_.delayed.most_recent,
                                                .margin = recipe_.delayed.margin});
}

std::vector<DelayedScales::Layer> DelayedScales::layers() const {
  std::vector<Layer> layers;
  for (const Parameter* parameter : parameters_) {
    const auto i = static_cast<std::int64_t>(layers.size());
    layers.push_back({.parameter = parameter,
                      .history = history_.slice(i, i + 1).reshaped({kTensors, recipe_.delayed.steps}),
                      .scales = scales_.slice(i, i + 1).reshaped({kTensors, kPlace})});
  }
  return layers;
}

}  // namespace primus::engine
