#include "engine/parameters.h"

#include <algorithm>

#include "base/random.h"
#include "turbo/elementwise/elementwise.h"

namespace primus::engine {
namespace {

// Every parameter starts on a 256-byte boundary of the fp32 buffer, and so on at least 128 bytes of the bf16
// one.
constexpr std::int64_t kAlignElements = Arena::kAlignment / 4;

std::int64_t aligned(std::int64_t elements) {
  return (elements + kAlignElements - 1) / kAlignElements * kAlignElements;
}

Tensor part_of(const Tensor& flat, std::int64_t offset, const Shape& shape) {
  return flat.absent() ? Tensor() : flat.slice(offset, offset + shape.elements()).reshaped(shape);
}

}  // namespace

ParameterUnit& ParameterStore::begin_unit(std::string name) {
  units_.push_back({});
  units_.back().name = std::move(name);
  return units_.back();
}

Parameter& ParameterStore::add(std::string name, Shape shape, Initializer initializer,
                               std::vector<CheckpointPart> parts) {
  Parameter& parameter = parameters_.emplace_back();
  if (parts.empty())
    parts = {{name, 0, shape.rank() > 1 ? shape.elements() / shape[shape.rank() - 1] : shape[0]}};
  parameter.name = std::move(name);
  parameter.shape = shape;
  parameter.initializer = initializer;
  parameter.parts = std::move(parts);
  parameter.index = static_cast<int>(parameters_.size()) - 1;
  units_.back().parameters.push_back(&parameter);
  return parameter;
}

bool ParameterStore::left_out(std::string_view published_name) const {
  return std::any_of(left_out_.begin(), left_out_.end(),
                     [&](const std::string& prefix) { return published_name.starts_with(prefix); });
}

void ParameterStore::allocate(const Layout& layout, Arena& arena) {
  layout_ = layout;
  for (ParameterUnit& unit : units_) {
    std::vector<Parameter*> order = unit.parameters;
    const auto run_of = [](const Parameter* p) { return !p->trainable ? 2 : p->decayed() ? 0 : 1; };
    std::stable_sort(order.begin(), order.end(),
                     [&](const Parameter* x, const Parameter* y) { return run_of(x) < run_of(y); });
    unit.elements = unit.decayed_elements = unit.trained_elements = 0;
    for (Parameter* p : order) {
      p->offset = unit.elements;
      unit.elements += aligned(p->shape.elements());
      if (run_of(p) == 0) unit.decayed_elements = unit.elements;
      if (run_of(p) <= 1) unit.trained_elements = unit.elements;
    }
    auto take = [&](DType dtype) {
      const Shape shape{unit.elements};
      return Tensor(arena.allocate(unit.elements * size_of(dtype)).address, dtype, shape);
    };
    unit.master = take(DType::kF32);
    if (layout.compute == DType::kBF16) unit.working = take(DType::kBF16);
    if (layout.gradients) unit.gradient = take(DType::kF32);
    if (layout.optimizer_states) {
      unit.exp_avg = take(DType::kF32);
      unit.exp_avg_sq = take(DType::kF32);
    }
    for (Parameter* p : unit.parameters) {
      p->master = part_of(unit.master, p->offset, p->shape);
      const bool narrow = !unit.working.absent() && !p->full_precision;
      p->value = narrow ? part_of(unit.working, p->offset, p->shape) : p->master;
      p->gradient = part_of(unit.gradient, p->offset, p->shape);
    }
  }
}

void ParameterStore::initialize(turbo::Context& context, std::uint64_t seed) {
  for (Parameter& p : parameters_) {
    if (p.initializer.kind == Initializer::Kind::kNormal) {
      turbo::launch(context, turbo::RandomNormal{.out = p.master,
                                                 .seed = seed,
                                                 .stream = random_stream_id(p.name),
                                                 .offset = 0,
                                                 .mean = 0,
                                                 .std = p.initializer.value});
    } else {
      turbo::launch(context, turbo::Fill{.out = p.master, .value = p.initializer.value});
    }
  }
  refresh_working_copies(context);
}

void ParameterStore::refresh_working_copies(turbo::Context& context) {
  for (ParameterUnit& unit : units_) {
    if (!unit.working.absent()) turbo::launch(context, turbo::Cast{.x = unit.master, .out = unit.working});
  }
}

void ParameterStore::begin_step() {
  for (Parameter& p : parameters_) {
    p.turn = 0;
    p.has_gradient = false;
  }
}

void ParameterStore::finish_gradients(turbo::Context& context) {
  for (Parameter& p : parameters_) {
    if (p.trainable && !p.has_gradient) turbo::launch(context, turbo::Fill{.out = p.gradient, .value = 0});
  }
}

std::int64_t ParameterStore::elements() const {
  std::int64_t sum = 0;
  for (const Parameter& p : parameters_) sum += p.shape.elements();
  return sum;
}

}  // namespace primus::engine
