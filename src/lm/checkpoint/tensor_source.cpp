#include "lm/checkpoint/tensor_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/checked.h"
#include "base/error.h"

namespace primus {
namespace {

// Calls move(byte in the file, byte in memory) for every element of `bytes` bytes of whole slabs.
template <class Move>
void for_each_element(const AxisOrder& order, std::size_t element_bytes, std::size_t bytes, Move move) {
  const std::size_t slab = static_cast<std::size_t>(order.slab_elements()) * element_bytes;
  for (std::size_t begin = 0; begin < bytes; begin += slab) {
    walk_slab(order, [&](std::int64_t in_file, std::int64_t in_memory) {
      move(begin + static_cast<std::size_t>(in_file) * element_bytes,
           begin + static_cast<std::size_t>(in_memory) * element_bytes);
    });
  }
}

}  // namespace

std::int64_t AxisOrder::slab_elements() const {
  std::int64_t elements = 1;
  for (std::size_t i = 1; i < dims.size(); ++i) elements *= dims[i];
  return elements;
}

void to_file_order(const AxisOrder& order, std::size_t element_bytes, std::span<const std::byte> memory,
                   std::span<std::byte> file) {
  for_each_element(order, element_bytes, memory.size(), [&](std::size_t to, std::size_t from) {
    std::memcpy(file.data() + to, memory.data() + from, element_bytes);
  });
}

void to_memory_order(const AxisOrder& order, std::size_t element_bytes, std::span<const std::byte> file,
                     std::span<std::byte> memory) {
  for_each_element(order, element_bytes, file.size(), [&](std::size_t from, std::size_t to) {
    std::memcpy(memory.data() + to, file.data() + from, element_bytes);
  });
}

void copy_run(const AxisOrder& order, std::size_t element_bytes, std::span<const std::byte> file,
              ElementRun run, std::span<std::byte> out) {
  if (run.size() == 0) return;
  if (order.same()) {
    std::memcpy(out.data(), file.data() + static_cast<std::size_t>(run.begin) * element_bytes, out.size());
    return;
  }
  const std::int64_t slab = order.slab_elements();
  for (std::int64_t first = run.begin / slab * slab; first < run.end; first += slab) {
    const std::byte* from = file.data() + static_cast<std::size_t>(first) * element_bytes;
    const std::int64_t shift = first - run.begin;  // from a place in the slab to one in `out`
    if (shift >= 0 && first + slab <= run.end) {
      const std::size_t bytes = static_cast<std::size_t>(slab) * element_bytes;
      to_memory_order(order, element_bytes, {from, bytes},
                      out.subspan(static_cast<std::size_t>(shift) * element_bytes, bytes));
      continue;
    }
    walk_slab(order, [&](std::int64_t in_file, std::int64_t in_memory) {
      const std::int64_t at = in_memory + shift;
      if (at < 0 || at >= run.size()) return;
      std::memcpy(out.data() + static_cast<std::size_t>(at) * element_bytes,
                  from + static_cast<std::size_t>(in_file) * element_bytes, element_bytes);
    });
  }
}

std::uint64_t TensorSource::bytes() const {
  auto total = static_cast<std::uint64_t>(size_of(dtype));
  for (const std::int64_t extent : shape) {
    total = checked_mul(total, checked_cast<std::uint64_t>(extent, "extent of '" + name + "'"),
                        "size of '" + name + "'");
  }
  return total;
}

ElementRun TensorSource::held() const {
  const auto elements = static_cast<std::int64_t>(bytes() / static_cast<std::uint64_t>(size_of(dtype)));
  if (!run) return {0, elements};
  if (run->begin < 0 || run->begin > run->end || run->end > elements) {
    throw invalid(fmt::format("tensor '{}' has {} elements, and a rank holds [{}, {}) of them", name,
                              elements, run->begin, run->end));
  }
  return *run;
}

std::uint64_t TensorSource::held_bytes() const {
  return static_cast<std::uint64_t>(held().size()) * static_cast<std::uint64_t>(size_of(dtype));
}

std::span<const std::byte> TensorSource::read(std::uint64_t offset, std::uint64_t size,
                                              std::vector<std::byte>& buffer) const {
  if (data != nullptr) return {static_cast<const std::byte*>(data) + offset, size};
  if (buffer.size() < size) buffer.resize(size);
  fill(offset, std::span(buffer).first(size));
  return std::span(buffer).first(size);
}

}  // namespace primus
