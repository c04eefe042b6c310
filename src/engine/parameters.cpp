#include "engine/parameters.h"

#include <array>
#include <stdexcept>

#include "base/random.h"
#include "turbo/elementwise/elementwise.h"

namespace primus::engine {
namespace {

// Every parameter starts on a 256-byte boundary of the fp32 buffers, and so on at least 128 bytes of bf16
// ones.
constexpr std::int64_t kAlignElements = Arena::kAlignment / 4;

std::int64_t aligned(std::int64_t elements, std::int64_t to) { return (elements + to - 1) / to * to; }

Tensor part_of(const Tensor& flat, std::int64_t offset, const Shape& shape) {
  return flat.absent() ? Tensor() : flat.slice(offset, offset + shape.elements()).reshaped(shape);
}

Tensor part_of(const Tensor& flat, const FlatRange& range, std::int64_t first) {
  return flat.slice(range.begin - first, range.end - first);
}

}  // namespace

void ParameterUnit::set_values(const Tensor& whole) {
  values = whole;
  for (Parameter* p : parameters) p->value = part_of(whole, p->offset, p->shape);
}

void ParameterUnit::set_gradient(const Tensor& whole) {
  gradient = whole;
  for (Parameter* p : parameters) p->gradient = part_of(whole, p->offset, p->shape);
}

FlatRange stored_range(const Parameter& p) {
  const FlatRange whole{0, p.shape.elements()};
  return whole.intersect({p.unit->shard.begin - p.offset, p.unit->shard.end - p.offset});
}

Tensor stored_part(const Tensor& of_shard, const Parameter& p) {
  const FlatRange range = stored_range(p);
  if (range.empty()) return {};
  return part_of(of_shard, {range.begin + p.offset, range.end + p.offset}, p.unit->shard.begin);
}

ParameterStore::Group& ParameterStore::begin_group(std::string name) {
  groups_.push_back({});
  groups_.back().name = std::move(name);
  return groups_.back();
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
  groups_.back().parameters.push_back(&parameter);
  return parameter;
}

bool ParameterStore::left_out(std::string_view published_name) const {
  return std::any_of(left_out_.begin(), left_out_.end(),
                     [&](const std::string& prefix) { return published_name.starts_with(prefix); });
}

void ParameterStore::allocate(const Layout& layout, Arena& arena) {
  if (layout.ranks < 1 || layout.shards < 1 || layout.ranks % layout.shards != 0)
    throw std::logic_error("ParameterStore: shards do not divide ranks");
  layout_ = layout;
  if (layout.ranks == 1) {
    layout_.sharding = Sharding::kNone;
    layout_.reduce_each_microbatch = false;
  }
  for (const Group& group : groups_) {
    // Trained or not, and read in the compute type or in fp32.
    std::array<std::vector<Parameter*>, 4> kinds;
    for (Parameter* p : group.parameters) {
      const bool wide = layout.compute == DType::kF32 || p->full_precision || p->reads_full_precision;
      kinds[(p->trainable ? 0 : 2) + (wide && layout.compute != DType::kF32 ? 1 : 0)].push_back(p);
    }
    for (const std::vector<Parameter*>& kind : kinds) {
      if (!kind.empty()) add_unit(group.name, kind);
    }
  }
  for (ParameterUnit& unit : units_) allocate(unit, arena);
}

void ParameterStore::add_unit(const std::string& name, const std::vector<Parameter*>& parameters) {
  ParameterUnit& unit = units_.emplace_back();
  unit.name = name;
  unit.number = static_cast<int>(units_.size()) - 1;
  unit.parameters = parameters;
  std::stable_partition(unit.parameters.begin(), unit.parameters.end(),
                        [](const Parameter* p) { return p->decayed(); });
  const Parameter& first = *parameters.front();
  unit.trained = first.trainable && layout_.train;
  unit.dtype = first.full_precision || first.reads_full_precision ? DType::kF32 : layout_.compute;
  // What is neither trained nor a weight (the biases by which routers balance) changes on every rank alike.
  unit.sharding = !first.trainable && first.full_precision    ? Sharding::kNone
                  : unit.trained                              ? layout_.sharding
                  : layout_.sharding == Sharding::kParameters ? Sharding::kParameters
                                                              : Sharding::kNone;
  for (Parameter* p : unit.parameters) {
    p->unit = &unit;
    p->offset = unit.elements;
    unit.elements += aligned(p->shape.elements(), kAlignElements);
    if (p->decayed()) unit.decayed_elements = unit.elements;
  }
  unit.elements = aligned(unit.elements, kAlignElements * layout_.ranks);
  const std::int64_t slice = unit.elements / layout_.ranks;
  unit.shard = {0, unit.elements};
  std::int64_t index = layout_.rank;  // of this rank's slice within the shard
  if (unit.sharding != Sharding::kNone) {
    const std::int64_t length = unit.elements / layout_.shards;
    unit.shard.begin = length * (layout_.rank % layout_.shards);
    unit.shard.end = unit.shard.begin + length;
    index = layout_.rank / layout_.shards;
  }
  unit.slice = {unit.shard.begin + slice * index, unit.shard.begin + slice * (index + 1)};
}

void ParameterStore::allocate(ParameterUnit& unit, Arena& arena) {
  const auto take = [&](std::int64_t elements, DType dtype) {
    return Tensor(arena.allocate(elements * size_of(dtype)).address, dtype, {elements});
  };
  if (unit.sharding < Sharding::kParameters) {
    unit.set_values(take(unit.elements, unit.dtype));
    unit.stored_values = part_of(unit.values, unit.shard, 0);
  } else {
    unit.stored_values = take(unit.shard.size(), unit.dtype);
  }
  if (!unit.trained) return;
  unit.master = unit.dtype == DType::kF32 ? unit.stored_values : take(unit.shard.size(), DType::kF32);
  if (layout_.keeps_gradients()) {
    unit.set_gradient(take(unit.elements, DType::kF32));
    unit.reduced = part_of(unit.gradient, unit.shard, 0);
  } else {
    unit.reduced = take(unit.shard.size(), DType::kF32);
  }
  for (const StateSpec& state : layout_.states) unit.states.push_back(take(unit.shard.size(), state.dtype));
}

void ParameterStore::initialize(turbo::Context& context, std::uint64_t seed) {
  const auto fill = [&](const Parameter& p, const FlatRange& range, const Tensor& out) {
    if (p.initializer.kind == Initializer::Kind::kNormal) {
      turbo::launch(context, turbo::RandomNormal{.out = out,
                                                 .seed = seed,
                                                 .stream = random_stream_id(p.name),
                                                 .offset = range.begin,
                                                 .mean = 0,
                                                 .std = p.initializer.value});
    } else {
      turbo::launch(context, turbo::Fill{.out = out, .value = p.initializer.value});
    }
  };
  for (const Parameter& p : parameters_) {
    const FlatRange range = stored_range(p);
    if (range.empty()) continue;
    const Tensor values = stored_part(p.unit->stored_values, p);
    if (p.unit->trained || p.unit->dtype == DType::kF32) {
      fill(p, range, p.unit->trained ? stored_part(p.unit->master, p) : values);
    } else {
      const Arena::Block block = context.scratch.allocate(range.size() * size_of(DType::kF32));
      const Tensor wide(block.address, DType::kF32, {range.size()});
      fill(p, range, wide);
      turbo::launch(context, turbo::Cast{.x = wide, .out = values});
      context.scratch.release(block);
    }
  }
  refresh_values(context);
}

void ParameterStore::refresh_values(turbo::Context& context) {
  for (ParameterUnit& unit : units_) {
    if (unit.trained && unit.dtype != DType::kF32)
      turbo::launch(context, turbo::Cast{.x = unit.master, .out = unit.stored_values});
  }
}

std::int64_t ParameterStore::elements() const {
  std::int64_t sum = 0;
  for (const Parameter& p : parameters_) sum += p.shape.elements();
  return sum;
}

}  // namespace primus::engine
