#include "engine/runtime/parameters.h"

#include <algorithm>
#include <array>
#include <stdexcept>
#include <utility>
#include <vector>

#include "base/random/random.h"
#include "engine/runtime/four_bit_storage.h"
#include "tensor/scratch_tensor.h"
#include "turbo/channel_gate/channel_gate.h"
#include "turbo/elementwise/elementwise.h"

namespace primus::engine {
namespace {

// Every parameter starts on a 256-byte boundary of fp32 buffers, and therefore on a 128-byte boundary of bf16
// buffers. States with scales need this alignment, because a parameter must start at the beginning of a
// block.
constexpr std::int64_t kAlignElements = Arena::kAlignment / 4;

std::int64_t aligned(std::int64_t elements, std::int64_t to) { return (elements + to - 1) / to * to; }

Tensor part_of(const Tensor& flat, std::int64_t offset, const Shape& shape) {
  return flat.absent() ? Tensor() : flat.slice(offset, offset + shape.elements()).reshaped(shape);
}

Tensor part_of(const Tensor& flat, const FlatRange& range, std::int64_t first) {
  return flat.slice(range.begin - first, range.end - first);
}

// Calls visit(first element in this rank's part, first element in the complete parameter, rows) for each run
// of rows.
template <class Visit>
void for_each_rows(const Parameter& p, Visit visit) {
  const std::int64_t columns = p.row_elements();
  const std::int64_t whole_columns = p.shape.rank() > 1 ? p.placement.whole[p.placement.whole.rank() - 1] : 1;
  std::int64_t row = 0;
  for (const Placement::Rows& run : p.placement.rows) {
    visit(row * columns, run.whole * whole_columns + p.placement.column, run.rows);
    row += run.rows;
  }
}

// Returns the number of elements that the parameter takes in its unit.
std::int64_t stored_elements(const Parameter& p) {
  return p.four_bit ? p.four_bit.bytes : p.shape.elements();
}

void check_placement(const Parameter& p) {
  if (p.placement.is_whole()) return;
  std::int64_t rows = 0, end = 0;
  for (const Placement::Rows& run : p.placement.rows) {
    if (run.whole < end || run.rows < 1) throw std::logic_error(p.name + ": rows out of order");
    rows += run.rows;
    end = run.whole + run.rows;
  }
  const Shape& whole = p.placement.whole;
  const std::int64_t columns = whole.rank() > 1 ? whole[whole.rank() - 1] : 1;
  if (whole.rank() != p.shape.rank() || rows * p.row_elements() != p.shape.elements() ||
      end * columns > whole.elements() || p.placement.column < 0 ||
      p.placement.column + p.row_elements() > columns) {
    throw std::logic_error(p.name + ": the rows are not part of the whole parameter");
  }
}

}  // namespace

GroupPlaces group_places(const Mesh& mesh) {
  GroupPlaces places;
  for (std::size_t i = 0; i < places.size(); ++i) {
    const ReduceGroup group = mesh.resolve(static_cast<ReduceGroup>(i));
    const Reduction& reduction = mesh.reduction(group);
    places[i] = {group, reduction.size(), reduction.rank(), reduction.shards()};
  }
  return places;
}

FlatRange elements_in_rows(const Parameter& p, std::int64_t row, std::int64_t rows) {
  const std::int64_t columns = p.row_elements();
  if (p.placement.is_whole()) return {row * columns, (row + rows) * columns};
  FlatRange elements;
  std::int64_t at = 0;
  for (const Placement::Rows& run : p.placement.rows) {
    const FlatRange both = FlatRange{run.whole, run.whole + run.rows}.intersect({row, row + rows});
    if (!both.empty()) {
      const std::int64_t first = (at + both.begin - run.whole) * columns;
      if (elements.empty()) elements = {first, first};
      elements.end = first + both.size() * columns;
    }
    at += run.rows;
  }
  return elements;
}

std::vector<StridedRun> whole_elements(const Parameter& p, const FlatRange& elements) {
  if (elements.empty()) return {};
  if (p.placement.is_whole()) return {{.begin = elements.begin, .length = elements.size()}};
  std::vector<StridedRun> runs;
  const std::int64_t columns = p.row_elements();
  const std::int64_t stride = p.shape.rank() > 1 ? p.placement.whole[p.placement.whole.rank() - 1] : 1;
  for_each_rows(p, [&](std::int64_t first, std::int64_t whole, std::int64_t rows) {
    const FlatRange in = elements.intersect({first, first + rows * columns});
    if (in.empty()) return;
    const auto place = [&](std::int64_t element) {
      return whole + (element - first) / columns * stride + (element - first) % columns;
    };
    if (columns == stride) {
      runs.push_back({.begin = place(in.begin), .length = in.size()});
      return;
    }
    // Visits the rest of the first row, then complete rows, then the beginning of the last row.
    std::int64_t at = in.begin;
    const auto add = [&](std::int64_t length, std::int64_t count) {
      if (length == 0 || count == 0) return;
      runs.push_back(
          {.begin = place(at), .length = length, .count = count, .stride = count == 1 ? 0 : stride});
      at += length * count;
    };
    add(std::min((columns - (at - first) % columns) % columns, in.end - at), 1);
    add(columns, (in.end - at) / columns);
    add(in.end - at, 1);
  });
  return runs;
}

void ParameterUnit::set_values(const Tensor& whole) {
  values = whole;
  for (Parameter* p : parameters) {
    if (p->four_bit) {
      p->four_bit.values = part_of(whole, p->offset, {p->four_bit.bytes});
    } else {
      p->value = part_of(whole, p->offset, p->shape);
    }
  }
}

void ParameterUnit::set_gradient(const Tensor& whole) {
  gradient = whole;
  for (Parameter* p : parameters) p->gradient = part_of(whole, p->offset, p->shape);
}

FlatRange stored_range(const Parameter& p) {
  const FlatRange whole{0, stored_elements(p)};
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
                               std::vector<CheckpointPart> parts, Placement placement) {
  Parameter& parameter = parameters_.emplace_back();
  parameter.name = std::move(name);
  parameter.shape = shape;
  parameter.placement = std::move(placement);
  check_placement(parameter);
  if (parts.empty()) {
    const Shape& whole = parameter.whole_shape();
    parts = {{parameter.name, 0, whole.rank() > 1 ? whole.elements() / whole[whole.rank() - 1] : whole[0]}};
  }
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
  for (const GroupPlace& place : layout.groups) {
    if (place.ranks < 1 || place.shards < 1 || place.ranks % place.shards != 0)
      throw std::logic_error("ParameterStore: shards do not divide ranks");
  }
  layout_ = layout;
  layout_.rule_of = {};  // the function may refer to objects that are destroyed after this call
  grain_ = kAlignElements;
  for (const std::vector<StateSpec>& states : layout.states) {
    if (std::ranges::any_of(states, &StateSpec::has_scales)) grain_ = std::max(grain_, turbo::kMomentBlock);
  }
  for (Parameter& p : parameters_) {
    p.rule = layout.rule_of ? layout.rule_of(p) : 0;
    if (p.vector_decay == VectorDecay::kOfHeadNorm && layout.decay_head_norms)
      p.vector_decay = VectorDecay::kAlways;
  }
  for (std::size_t number = 0; number < groups_.size(); ++number) {
    const Group& group = groups_[number];
    if (!group.here) continue;
    // Parameters of one kind have the same reduce group, are all trained or all frozen, and are read in the
    // same type (the compute type or fp32). Parameters that are not sharded (see add_unit) form a separate
    // kind, and parameters in 4 bits, too.
    constexpr std::size_t kKinds = 6;
    std::array<std::vector<Parameter*>, kKinds * kReduceGroups> kinds;
    for (Parameter* p : group.parameters) {
      const bool wide = layout.compute == DType::kF32 || p->full_precision || p->reads_full_precision;
      if (p->four_bit) lay_out_four_bit(*p, layout.compute);
      const std::size_t kind = p->four_bit ? 5
                               : !p->trainable && p->full_precision
                                   ? 4
                                   : (p->trainable ? 0 : 2) + (wide && layout.compute != DType::kF32 ? 1 : 0);
      kinds[index(layout.groups[index(p->group)].group) * kKinds + kind].push_back(p);
    }
    for (const std::vector<Parameter*>& kind : kinds) {
      if (!kind.empty()) add_unit(number, kind);
    }
  }
  for (ParameterUnit& unit : units_) allocate(unit, arena);
}

void ParameterStore::add_unit(std::size_t number, const std::vector<Parameter*>& parameters) {
  const Group& group = groups_[number];
  ParameterUnit& unit = units_.emplace_back();
  unit.name = group.name;
  unit.declared = static_cast<int>(number);
  unit.number = static_cast<int>(units_.size()) - 1;
  unit.parameters = parameters;
  std::stable_sort(unit.parameters.begin(), unit.parameters.end(),
                   [](const Parameter* a, const Parameter* b) {
                     return std::pair(a->rule, !a->decayed()) < std::pair(b->rule, !b->decayed());
                   });
  const Parameter& first = *parameters.front();
  const GroupPlace& place = layout_.groups[index(first.group)];
  unit.at_both_ends = group.at_both_ends;
  unit.group = place.group;
  unit.ranks = place.ranks;
  unit.trained = first.trainable && layout_.train;
  unit.dtype = first.four_bit                                       ? DType::kU8
               : first.full_precision || first.reads_full_precision ? DType::kF32
                                                                    : layout_.compute;
  if (unit.dtype != DType::kF32) unit.gradient_dtype = layout_.gradients;
  // With one shard, each rank has the entire unit. The routers' balance biases change in the same way on
  // every rank without an optimizer, so they are not sharded.
  unit.sharding = place.shards == 1                           ? Sharding::kNone
                  : !first.trainable && first.full_precision  ? Sharding::kNone
                  : unit.trained                              ? layout_.sharding
                  : layout_.sharding == Sharding::kParameters ? Sharding::kParameters
                                                              : Sharding::kNone;
  for (Parameter* p : unit.parameters) {
    p->unit = &unit;
    p->offset = unit.elements;
    unit.elements += aligned(stored_elements(*p), grain_);
    if (unit.runs.empty() || unit.runs.back().rule != p->rule || unit.runs.back().decayed != p->decayed())
      unit.runs.push_back({{p->offset, p->offset}, p->rule, p->decayed()});
    unit.runs.back().elements.end = unit.elements;
  }
  unit.elements = aligned(unit.elements, grain_ * place.ranks);
  unit.runs.back().elements.end = unit.elements;
  const std::int64_t slice = unit.elements / place.ranks;
  unit.shard = {0, unit.elements};
  std::int64_t part = place.rank;  // index of this rank's slice within the shard
  if (unit.sharding != Sharding::kNone) {
    const std::int64_t length = unit.elements / place.shards;
    unit.shard.begin = length * (place.rank % place.shards);
    unit.shard.end = unit.shard.begin + length;
    part = place.rank / place.shards;
  }
  unit.slice = {unit.shard.begin + slice * part, unit.shard.begin + slice * (part + 1)};
  if (!group.counts) unit.slice.end = unit.slice.begin;
}

void ParameterStore::allocate(ParameterUnit& unit, Arena& arena) {
  const auto take = [&](std::int64_t elements, DType dtype) {
    return Tensor(arena.allocate(elements * size_of(dtype)).address, dtype, {elements});
  };
  if (unit.sharding < Sharding::kParameters) {
    unit.set_values(take(unit.elements, unit.dtype));
    unit.stored.values = part_of(unit.values, unit.shard, 0);
  } else {
    unit.stored.values = take(unit.shard.size(), unit.dtype);
  }
  if (!unit.trained) return;
  if (unit.dtype == DType::kF32) {
    unit.stored.master = unit.stored.values;
  } else if (layout_.split_masters) {
    unit.stored.remainder = take(unit.shard.size(), DType::kI16);
  } else {
    unit.stored.master = take(unit.shard.size(), DType::kF32);
  }
  if (unit.ranks == 1 || layout_.keeps_gradients()) {
    unit.set_gradient(take(unit.elements, unit.gradient_dtype));
    unit.reduced = part_of(unit.gradient, unit.shard, 0);
  } else {
    unit.reduced = take(unit.shard.size(), unit.gradient_dtype);
  }
  for (std::size_t rule = 0; rule < layout_.states.size(); ++rule) {
    FlatRange elements;
    for (const ParameterRun& run : unit.runs) {
      if (run.rule != static_cast<int>(rule)) continue;
      elements = {elements.empty() ? run.elements.begin : elements.begin, run.elements.end};
    }
    if (elements.empty()) continue;
    elements = elements.intersect(unit.shard);
    for (const StateSpec& spec : layout_.states[rule]) {
      // Every rank lists every state, even if the rank stores no element of the state.
      const auto take_or_name = [&](std::int64_t count, DType dtype) {
        return count == 0 ? Tensor(nullptr, dtype, {0}) : take(count, dtype);
      };
      UnitState& state = unit.states.emplace_back();
      state = {
          .spec = spec, .rule = static_cast<int>(rule), .elements = elements, .values = {}, .scales = {}};
      state.values = take_or_name(elements.size(), spec.dtype);
      if (spec.has_scales()) state.scales = take_or_name(elements.size() / turbo::kMomentBlock, DType::kBF16);
    }
  }
}

namespace {

// Draws distinct integers for each row, one at a time, and draws again after a repetition. Runs on the host,
// because it runs only once.
void fill_distinct(turbo::Context& context, const Parameter& p, const FlatRange& range, std::uint64_t seed,
                   const Tensor& out) {
  const auto bound = static_cast<std::uint32_t>(p.initializer.value);
  const std::int64_t cols = p.row_elements();
  if (!p.placement.is_whole() || cols > static_cast<std::int64_t>(bound))
    throw std::logic_error(
        "ParameterStore: a lookup of distinct rows needs whole rows and a length within its bound");
  if (context.measuring()) return;
  const std::uint64_t stream = random_stream_id(p.name);
  std::vector<float> values(static_cast<std::size_t>(range.size())), row(static_cast<std::size_t>(cols));
  for (std::int64_t r = range.begin / cols; r * cols < range.end; ++r) {
    const RandomStream draws(seed, RandomPurpose::kInit, static_cast<std::uint32_t>(r),
                             static_cast<std::uint32_t>(stream >> 32), static_cast<std::uint32_t>(stream));
    std::uint64_t draw = 0;
    for (std::size_t i = 0; i < row.size(); ++i) {
      do {
        row[i] = static_cast<float>(draws.below(draw++, bound));
      } while (std::find(row.begin(), row.begin() + static_cast<std::ptrdiff_t>(i), row[i]) !=
               row.begin() + static_cast<std::ptrdiff_t>(i));
      const std::int64_t at = r * cols + static_cast<std::int64_t>(i) - range.begin;
      if (at >= 0 && at < range.size()) values[static_cast<std::size_t>(at)] = row[i];
    }
  }
  context.stream.copy_to_device(out.data, values.data(), out.bytes());
  context.stream.synchronize();
}

// Enqueues the initial values of the parameter's elements in `range`, [range] fp32.
void fill(turbo::Context& context, const Parameter& p, const FlatRange& range, std::uint64_t seed,
          const Tensor& out) {
  if (p.initializer.kind == Initializer::Kind::kDistinct) return fill_distinct(context, p, range, seed, out);
  if (p.initializer.kind == Initializer::Kind::kConstant) {
    turbo::launch(context, turbo::Fill{.out = out, .value = p.initializer.value});
    return;
  }
  const bool normal = p.initializer.kind == Initializer::Kind::kNormal;
  std::int64_t at = 0;
  for (const StridedRun& run : whole_elements(p, range)) {
    turbo::launch(context, turbo::RandomNormal{.out = out.slice(at, at + run.size()),
                                               .seed = seed,
                                               .stream = random_stream_id(p.name),
                                               .offset = run.begin,
                                               .mean = 0,
                                               .std = normal ? p.initializer.value : 1,
                                               .length = run.length,
                                               .stride = run.stride});
    at += run.size();
  }
  const float low = p.initializer.value, high = p.initializer.maximum;
  if (p.initializer.kind == Initializer::Kind::kLogUniform)
    turbo::launch(context, turbo::LogUniform{.x = out, .low = low, .high = high});
  if (p.initializer.kind == Initializer::Kind::kGateBias)
    turbo::launch(context, turbo::ChannelGateBias{.x = out, .low = low, .high = high});
}

constexpr std::int64_t kFilledAtOnce = 1 << 18;

// Quantises initial values on the host, because this is done only once.
void initialize_four_bit(Parameter& p, turbo::Context& context, std::uint64_t seed) {
  const ScratchTensor memory(context.scratch, DType::kF32, {std::min(p.shape.elements(), kFilledAtOnce)});
  if (context.measuring()) return;
  for (const FourBitStorage::Run& run : p.four_bit.runs) {
    std::int64_t first = run.first;
    for (const int part : run.parts) {
      std::vector<float> values(static_cast<std::size_t>(run.elements));
      for (std::int64_t done = 0; done < run.elements; done += kFilledAtOnce) {
        const std::int64_t count = std::min(kFilledAtOnce, run.elements - done);
        const Tensor piece = memory.get().slice(0, count);
        fill(context, p, {first + done, first + done + count}, seed, piece);
        context.stream.copy_to_host(values.data() + done, piece.data, piece.bytes());
        context.stream.synchronize();
      }
      write_four_bit(p, part, turbo::quantise_four_bit(values, p.four_bit.format), context.stream);
      first += run.elements;
    }
  }
}

}  // namespace

void ParameterStore::initialize(Parameter& p, turbo::Context& context, std::uint64_t seed) {
  const ParameterUnit& unit = *p.unit;
  if (p.four_bit) return initialize_four_bit(p, context, seed);
  const FlatRange range = stored_range(p);
  if (range.empty()) return;
  const Tensor values = stored_part(unit.stored.values, p);
  if (!unit.stored.master.absent()) {
    fill(context, p, range, seed, stored_part(unit.stored.master, p));
    return;
  }
  if (unit.dtype == DType::kF32) {
    fill(context, p, range, seed, values);
    return;
  }
  // Units without a permanent fp32 buffer are filled in small pieces.
  const Tensor remainders = unit.split() ? stored_part(unit.stored.remainder, p) : Tensor();
  const std::int64_t maximum = std::min(range.size(), kFilledAtOnce);
  const Arena::Block block = context.scratch.allocate(maximum * size_of(DType::kF32));
  // Measure mode skips the loop, which would take a second for 10^12 parameters.
  for (std::int64_t begin = 0; begin < range.size() && !context.measuring(); begin += maximum) {
    const std::int64_t end = std::min(begin + maximum, range.size());
    const Tensor wide(block.address, DType::kF32, {end - begin}), narrow = values.slice(begin, end);
    fill(context, p, {range.begin + begin, range.begin + end}, seed, wide);
    if (unit.split()) {
      turbo::launch(
          context,
          turbo::RoundMasters{.masters = wide, .working = narrow, .remainder = remainders.slice(begin, end)});
    } else {
      turbo::launch(context, turbo::Cast{.x = wide, .out = narrow});
    }
  }
  context.scratch.release(block);
}

void ParameterStore::initialize(turbo::Context& context, std::uint64_t seed) {
  for (Parameter& p : parameters_) {
    if (p.unit) initialize(p, context, seed);
  }
  refresh_values(context);
}

void ParameterStore::initialize_new(turbo::Context& context, std::uint64_t seed) {
  for (Parameter& p : parameters_) {
    if (p.unit && (p.is_low_rank || p.initializer.if_missing)) initialize(p, context, seed);
  }
  refresh_values(context);
}

void ParameterStore::refresh_values(turbo::Context& context) {
  for (ParameterUnit& unit : units_) {
    if (unit.dtype != DType::kF32 && !unit.stored.master.absent())
      turbo::launch(context,
                    turbo::RoundMasters{.masters = unit.stored.master, .working = unit.stored.values});
  }
}

std::int64_t ParameterStore::elements() const {
  std::int64_t sum = 0;
  for (const Parameter& p : parameters_) sum += p.whole_shape().elements();
  return sum;
}

std::int64_t ParameterStore::trained_elements() const {
  std::int64_t sum = 0;
  for (const Parameter& p : parameters_) sum += p.trainable ? p.whole_shape().elements() : 0;
  return sum;
}

std::int64_t ParameterStore::counted_elements() const {
  std::int64_t sum = 0;
  for (const Parameter& p : parameters_) {
    if (!p.unit) continue;
    const FlatRange whole{0, stored_elements(p)};
    const std::int64_t stored =
        whole.intersect({p.unit->slice.begin - p.offset, p.unit->slice.end - p.offset}).size();
    // A byte of a parameter in 4 bits counts as a fraction of its elements.
    sum += p.four_bit ? stored * p.shape.elements() / whole.size() : stored;
  }
  return sum;
}

std::int64_t ParameterStore::state_bytes() const {
  std::int64_t sum = 0;
  for (const Parameter& p : parameters_) {
    if (!p.trainable || !layout_.train || layout_.states.empty()) continue;
    for (const StateSpec& spec : layout_.states[static_cast<std::size_t>(p.rule)])
      sum += p.whole_shape().elements() * size_of(spec.saved_dtype());
  }
  return sum;
}

}  // namespace primus::engine
