#include "engine/runtime/four_bit_storage.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "engine/runtime/parameters.h"
#include "turbo/four_bit/four_bit.h"

namespace primus::engine {
namespace {

using turbo::FourBitSizes;

std::int64_t table_elements(const turbo::FourBitFormat& format) {
  return format.nested ? turbo::kFourBitCodes + turbo::kNestedCodes : turbo::kFourBitCodes;
}

// Returns `count` tensors with `elements` elements each.
Tensor view(const FourBitStorage& s, std::int64_t place, DType dtype, std::int64_t count,
            std::int64_t elements) {
  const std::int64_t bytes = count * elements * size_of(dtype);
  Tensor tensor = s.values.slice(place, place + bytes);
  tensor.dtype = dtype;
  tensor.shape = {count, elements};
  return tensor;
}

Tensor factors_of(const FourBitStorage& s, const FourBitStorage::Run& run) {
  const FourBitSizes sizes(run.elements, s.format);
  return view(s, run.places.factors, DType::kF32, std::ssize(run.parts),
              s.format.nested ? sizes.nested : sizes.blocks);
}

// Throws if this rank has only some of the part's elements, or has them in another order.
void check_part(const Parameter& p, const CheckpointPart& part, const FlatRange& here) {
  const Shape& whole = p.whole_shape();
  const std::int64_t columns = whole[whole.rank() - 1];
  if (!part.layout.dims.empty()) {
    throw unsupported(
        fmt::format("4-bit base weights do not support '{}', whose numbers the model stores in another order",
                    part.name),
        "omit lora.base_weights: the base weights then have 16 bits");
  }
  if (p.row_elements() == columns && here.size() == part.rows * columns) return;
  throw unsupported(
      fmt::format(
          "4-bit base weights cannot be divided within a matrix, but this rank has only a part of '{}'",
          part.name),
      "set tensor_model_parallel_size and expert_tensor_parallel_size to 1, or omit lora.base_weights");
}

}  // namespace

std::optional<FourBitStorage::Places> FourBitStorage::places_of(int part) const {
  for (const Run& run : runs) {
    const auto found = std::ranges::find(run.parts, part);
    if (found == run.parts.end()) continue;
    const std::int64_t i = found - run.parts.begin();
    const FourBitSizes sizes(run.elements, format);
    return Places{.packed = run.places.packed + i * sizes.packed,
                  .factors = run.places.factors +
                             i * (format.nested ? sizes.nested : sizes.blocks) * size_of(DType::kF32),
                  .codes = run.places.codes + i * sizes.blocks,
                  .offset = run.places.offset + i * size_of(DType::kF32)};
  }
  return std::nullopt;
}

std::int64_t FourBitStorage::elements_of(int part) const {
  for (const Run& run : runs) {
    if (std::ranges::find(run.parts, part) != run.parts.end()) return run.elements;
  }
  return 0;
}

void lay_out_four_bit(Parameter& p, DType dtype) {
  FourBitStorage& s = p.four_bit;
  s.dtype = dtype;
  s.runs.clear();
  s.offsets.assign(p.parts.size(), 0);
  std::vector<int> order(p.parts.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, {}, [&](int i) { return p.parts[static_cast<std::size_t>(i)].row; });
  std::int64_t at = 0;
  for (const int i : order) {
    const CheckpointPart& part = p.parts[static_cast<std::size_t>(i)];
    const FlatRange here = elements_in_rows(p, part.row, part.rows);
    if (here.empty()) continue;  // of an expert that another rank has
    check_part(p, part, here);
    PRIMUS_CHECK("lay_out_four_bit", here.begin == at);
    if (s.runs.empty() || s.runs.back().elements != here.size())
      s.runs.push_back({.parts = {}, .first = at, .elements = here.size(), .places = {}});
    s.runs.back().parts.push_back(i);
    at = here.end;
  }
  PRIMUS_CHECK("lay_out_four_bit", at == p.shape.elements());
  s.bytes = 0;
  const auto take = [&](std::int64_t bytes) {
    constexpr std::int64_t kAlign = 64;
    return std::exchange(s.bytes, s.bytes + (bytes + kAlign - 1) / kAlign * kAlign);
  };
  const std::int64_t number = size_of(DType::kF32);
  s.table = take(table_elements(s.format) * number);
  for (FourBitStorage::Run& run : s.runs) {
    const FourBitSizes sizes(run.elements, s.format);
    const std::int64_t count = std::ssize(run.parts);
    run.places.packed = take(count * sizes.packed);
    run.places.factors = take(count * (s.format.nested ? sizes.nested : sizes.blocks) * number);
    if (!s.format.nested) continue;
    run.places.codes = take(count * sizes.blocks);
    run.places.offset = take(count * number);
  }
}

void write_four_bit(Parameter& p, int part, const turbo::FourBitTensor& tensor, Stream& stream) {
  FourBitStorage& s = p.four_bit;
  s.offsets[static_cast<std::size_t>(part)] = tensor.offset;
  const std::optional<FourBitStorage::Places> places = s.places_of(part);
  if (!places) return;
  const bool is_first = std::ranges::all_of(
      s.runs, [&](const FourBitStorage::Run& run) { return std::ranges::min(run.parts) >= part; });
  if (is_first) s.nested_map = tensor.nested_map;
  if (s.nested_map != tensor.nested_map) {
    throw unsupported(fmt::format("the 4-bit tensors of '{}' have different nested_quant_map", p.name),
                      "'primus model import' writes the model without quantisation");
  }
  const FlatRange stored = stored_range(p);
  const auto put = [&](std::int64_t place, const void* data, std::size_t bytes) {
    const FlatRange range = stored.intersect({place, place + static_cast<std::int64_t>(bytes)});
    if (range.empty()) return;
    const std::int64_t first = p.offset - p.unit->shard.begin;
    const Tensor to = p.unit->stored.values.slice(first + range.begin, first + range.end);
    stream.copy_to_device(to.data, static_cast<const std::byte*>(data) + (range.begin - place), to.bytes());
  };
  put(places->packed, tensor.packed.data(), tensor.packed.size());
  put(places->factors, tensor.factors.data(), tensor.factors.size() * sizeof(float));
  std::vector<float> table(turbo::code_values(s.format.type).begin(),
                           turbo::code_values(s.format.type).end());
  if (s.format.nested) {
    put(places->codes, tensor.factor_codes.data(), tensor.factor_codes.size());
    put(places->offset, &tensor.offset, sizeof(float));
    const auto& map = turbo::nested_values();
    s.nested_map.empty() ? table.insert(table.end(), map.begin(), map.end())
                         : table.insert(table.end(), s.nested_map.begin(), s.nested_map.end());
  }
  put(s.table, table.data(), table.size() * sizeof(float));
  stream.synchronize();
}

std::vector<Tensor> factors_of(const Parameter& p) {
  std::vector<Tensor> all;
  for (const FourBitStorage::Run& run : p.four_bit.runs) all.push_back(factors_of(p.four_bit, run));
  return all;
}

FourBitTotals four_bit_totals(const std::deque<Parameter>& parameters) {
  constexpr std::int64_t kState = 256;  // length of the tensor's state as JSON
  FourBitTotals totals;
  for (const Parameter& p : parameters) {
    if (!p.four_bit) continue;
    const Shape& whole = p.whole_shape();
    for (const CheckpointPart& part : p.parts) {
      const std::int64_t elements = part.rows * whole[whole.rank() - 1];
      const FourBitSizes sizes(elements, p.four_bit.format);
      const std::int64_t numbers = p.four_bit.format.nested ? sizes.nested : sizes.blocks;
      totals.elements += elements;
      totals.saved_bytes += sizes.packed + (p.four_bit.format.nested ? sizes.blocks : 0) + kState +
                            (numbers + table_elements(p.four_bit.format)) * size_of(DType::kF32);
    }
  }
  return totals;
}

ExpandedWeight::ExpandedWeight(turbo::Context& context, Parameter* parameter) {
  if (!parameter || !parameter->four_bit) return;
  const FourBitStorage& s = parameter->four_bit;
  memory_.emplace(context.scratch, s.dtype, parameter->shape);
  parameter_ = parameter;
  const Tensor flat = memory_->get().reshaped({parameter->shape.elements()});
  for (const FourBitStorage::Run& run : s.runs) {
    const std::int64_t count = std::ssize(run.parts);
    const FourBitSizes sizes(run.elements, s.format);
    turbo::ExpandFourBit call{
        .packed = view(s, run.places.packed, DType::kU8, count, sizes.packed),
        .factors = factors_of(s, run),
        .table =
            view(s, s.table, DType::kF32, 1, table_elements(s.format)).reshaped({table_elements(s.format)}),
        .out = flat.slice(run.first, run.first + count * run.elements).reshaped({count, run.elements}),
        .block = s.format.block};
    if (s.format.nested) {
      call.codes = view(s, run.places.codes, DType::kU8, count, sizes.blocks);
      call.offset = view(s, run.places.offset, DType::kF32, count, 1).reshaped({count});
    }
    turbo::launch(context, call);
  }
  parameter->value = memory_->get();
}

ExpandedWeight::~ExpandedWeight() {
  if (parameter_) parameter_->value = {};
}

}  // namespace primus::engine
