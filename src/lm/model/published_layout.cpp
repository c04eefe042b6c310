#include "lm/model/published_layout.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstring>
#include <memory>
#include <mutex>

namespace primus {
namespace {

using engine::CheckpointPart;
using engine::Parameter;
using engine::PublishedLayout;

std::int64_t slab_elements(const PublishedLayout& layout) {
  std::int64_t elements = 1;
  for (std::size_t i = 1; i < layout.dims.size(); ++i) elements *= layout.dims[i];
  return elements;
}

// Walks one slab in published order: visit(place in published order, place in memory).
template <class Visit>
void walk_slab(const PublishedLayout& layout, Visit visit) {
  constexpr std::size_t kMaxInner = 3;
  const std::size_t inner = layout.dims.size() - 1;
  assert(inner <= kMaxInner && layout.axes.size() == layout.dims.size() && layout.axes[0] == 0);
  std::array<std::int64_t, kMaxInner> extent{1, 1, 1}, stride{};
  for (std::size_t i = 0; i < inner; ++i) {
    const auto axis = static_cast<std::size_t>(layout.axes[i + 1]);
    const std::size_t at = kMaxInner - inner + i;
    extent[at] = layout.dims[axis];
    stride[at] = 1;
    for (std::size_t later = axis + 1; later < layout.dims.size(); ++later) stride[at] *= layout.dims[later];
  }
  std::int64_t published = 0;
  for (std::int64_t i = 0; i < extent[0]; ++i) {
    for (std::int64_t j = 0; j < extent[1]; ++j) {
      const std::int64_t base = i * stride[0] + j * stride[1];
      for (std::int64_t k = 0; k < extent[2]; ++k) visit(published++, base + k * stride[2]);
    }
  }
}

template <class Move>
void for_each_element(const PublishedLayout& layout, std::size_t element_bytes, std::size_t bytes,
                      Move move) {
  const std::size_t slab = static_cast<std::size_t>(slab_elements(layout)) * element_bytes;
  for (std::size_t begin = 0; begin < bytes; begin += slab) {
    walk_slab(layout, [&](std::int64_t published, std::int64_t memory) {
      move(begin + static_cast<std::size_t>(published) * element_bytes,
           begin + static_cast<std::size_t>(memory) * element_bytes);
    });
  }
}

}  // namespace

std::vector<std::int64_t> published_shape(const Parameter& p, const CheckpointPart& part) {
  if (!part.layout.shape.empty()) return part.layout.shape;
  std::vector<std::int64_t> shape{part.rows};
  if (p.shape.rank() > 1) shape.push_back(p.row_elements());
  return shape;
}

Tensor part_of(const Tensor& whole, const Parameter& p, const CheckpointPart& part) {
  const std::int64_t row = p.row_elements();
  return whole.reshaped({whole.elements()}).slice(part.row * row, (part.row + part.rows) * row);
}

void to_memory_order(const PublishedLayout& layout, std::size_t element_bytes,
                     std::span<const std::byte> published, std::span<std::byte> memory) {
  for_each_element(layout, element_bytes, published.size(), [&](std::size_t from, std::size_t to) {
    std::memcpy(memory.data() + to, published.data() + from, element_bytes);
  });
}

void to_published_order(const PublishedLayout& layout, std::size_t element_bytes,
                        std::span<const std::byte> memory, std::span<std::byte> published) {
  for_each_element(layout, element_bytes, memory.size(), [&](std::size_t to, std::size_t from) {
    std::memcpy(published.data() + to, memory.data() + from, element_bytes);
  });
}

FillFunction published_order(const PublishedLayout& layout, std::size_t element_bytes,
                             FillFunction memory_order) {
  // The slab that is being written: a checkpoint asks for one chunk of it after the other.
  struct Slab {
    std::mutex mutex;
    std::uint64_t index = 0;
    std::vector<std::byte> published;  // empty: none
  };
  const auto slab = std::make_shared<Slab>();
  const std::uint64_t bytes = static_cast<std::uint64_t>(slab_elements(layout)) * element_bytes;
  return [layout, element_bytes, memory_order = std::move(memory_order), slab, bytes](
             std::uint64_t offset, std::span<std::byte> out) {
    const std::scoped_lock lock(slab->mutex);
    while (!out.empty()) {
      const std::uint64_t index = offset / bytes, at = offset % bytes;
      if (slab->published.empty() || slab->index != index) {
        std::vector<std::byte> memory(bytes);
        memory_order(index * bytes, memory);
        slab->published.resize(bytes);
        slab->index = index;
        to_published_order(layout, element_bytes, memory, slab->published);
      }
      const std::size_t count = std::min<std::size_t>(out.size(), bytes - at);
      std::memcpy(out.data(), slab->published.data() + at, count);
      if (at + count == bytes) slab->published = {};
      out = out.subspan(count);
      offset += count;
    }
  };
}

}  // namespace primus
