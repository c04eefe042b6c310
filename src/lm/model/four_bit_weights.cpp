#include "lm/model/four_bit_weights.h"

#include <optional>

#include "base/check.h"
#include "lm/model/published_layout.h"
#include "turbo/four_bit/four_bit_format.h"

namespace primus {
namespace {

using engine::CheckpointPart;
using engine::FlatRange;
using engine::Parameter;

int index_of(const Parameter& p, const CheckpointPart& part) {
  return static_cast<int>(&part - p.parts.data());
}

}  // namespace

std::vector<float> expanded(const StoredFourBit& stored) {
  const std::vector<float> factors = stored.factors();
  std::vector<float> values;
  const auto block = static_cast<std::size_t>(stored.format.block);
  std::int64_t elements = 1;
  for (const std::int64_t extent : stored.shape) elements *= extent;
  values.reserve(static_cast<std::size_t>(elements));
  for (std::size_t i = 0; i < static_cast<std::size_t>(elements); ++i) {
    const auto pair = static_cast<unsigned>(stored.packed.data[i / 2]);
    values.push_back(stored.map[i % 2 == 0 ? pair >> 4U : pair & 0xFU] * factors[i / block]);
  }
  return values;
}

void load_four_bit(Parameter& p, const CheckpointPart& part, const std::optional<StoredFourBit>& stored,
                   const std::function<void(std::vector<float>& values)>& read, engine::Rank& rank) {
  const int index = index_of(p, part);
  if (!p.unit || p.four_bit.elements_of(index) == 0) return;
  if (stored) {
    engine::write_four_bit(p, index, stored->tensor(p.four_bit.format), rank.compute());
    return;
  }
  std::vector<float> values(static_cast<std::size_t>(p.four_bit.elements_of(index)));
  read(values);
  engine::write_four_bit(p, index, turbo::quantise_four_bit(values, p.four_bit.format), rank.compute());
}

void add_four_bit_sources(const Parameter& p, const CheckpointPart& part, DType compute, DeviceReader& reader,
                          std::vector<TensorSource>& sources) {
  const int index = index_of(p, part);
  FourBitArrays arrays{
      .name = part.name,
      .shape = published_shape(p, part),
      .dtype = compute,
      .format = p.four_bit.format,
      .offset = p.four_bit.offsets.empty() ? 0.0F : p.four_bit.offsets[static_cast<std::size_t>(index)],
      .nested_map = p.four_bit.nested_map};
  const auto places = p.unit ? p.four_bit.places_of(index) : std::nullopt;
  if (places) {
    const turbo::FourBitSizes sizes(p.four_bit.elements_of(index), p.four_bit.format);
    const FlatRange written{p.unit->slice.begin - p.offset, p.unit->slice.end - p.offset};
    // Returns the elements of an array that this rank writes.
    const auto array = [&](std::int64_t place, std::int64_t count, DType dtype) {
      const std::int64_t size = size_of(dtype);
      const FlatRange range = FlatRange{place, place + count * size}.intersect(written);
      if (range.empty())
        return FourBitArrays::Array{.held = {}, .fill = [](std::uint64_t, std::span<std::byte>) {}};
      const std::int64_t first = p.offset - p.unit->shard.begin;
      const Tensor bytes = p.unit->stored.values.slice(first + range.begin, first + range.end);
      return FourBitArrays::Array{.held = one_run((range.begin - place) / size, (range.end - place) / size),
                                  .fill = [bytes, &reader](std::uint64_t offset, std::span<std::byte> out) {
                                    reader.read(bytes, offset, out);
                                  }};
    };
    const bool nested = p.four_bit.format.nested;
    arrays.packed = array(places->packed, sizes.packed, DType::kU8);
    arrays.factors = array(places->factors, nested ? sizes.nested : sizes.blocks, DType::kF32);
    arrays.codes = array(places->codes, nested ? sizes.blocks : 0, DType::kU8);
    arrays.holds_rest = written.begin <= places->packed && places->packed < written.end;
  }
  for (FourBitArrays::Array* const a : {&arrays.packed, &arrays.factors, &arrays.codes}) {
    if (!a->fill) a->fill = [](std::uint64_t, std::span<std::byte>) {};
  }
  PRIMUS_CHECK("add_four_bit_sources", part.copies.empty());
  add_four_bit_sources(arrays, sources);
}

}  // namespace primus
