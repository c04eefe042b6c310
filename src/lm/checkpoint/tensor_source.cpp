#include "lm/checkpoint/tensor_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/checked.h"
#include "base/error.h"
#include "lm/checkpoint/reading_threads.h"

namespace primus {
namespace {

// Calls move(offset in the file, offset in memory) for every element of complete slabs. `bytes` is the size
// of all slabs, and offsets are in bytes.
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

// Copies the elements of one range to the beginning of `out`.
void copy_run(const AxisOrder& order, std::size_t element_bytes, std::span<const std::byte> file,
              ElementRun run, std::span<std::byte> out) {
  if (order.same()) {
    std::memcpy(out.data(), file.data() + static_cast<std::size_t>(run.begin) * element_bytes,
                static_cast<std::size_t>(run.size()) * element_bytes);
    return;
  }
  const std::int64_t slab = order.slab_elements();
  for (std::int64_t first = run.begin / slab * slab; first < run.end; first += slab) {
    const std::byte* from = file.data() + static_cast<std::size_t>(first) * element_bytes;
    const std::int64_t shift = first - run.begin;  // index in `out` minus index in the slab
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

}  // namespace

HeldRuns one_run(std::int64_t begin, std::int64_t end) {
  if (begin >= end) return {};
  return {{.begin = begin, .length = end - begin}};
}

std::int64_t elements(std::span<const StridedRun> runs) {
  std::int64_t sum = 0;
  for (const StridedRun& run : runs) sum += run.size();
  return sum;
}

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

void copy_runs(const AxisOrder& order, std::size_t element_bytes, std::span<const std::byte> file,
               std::span<const StridedRun> runs, std::span<std::byte> out, ThreadPool* pool) {
  const auto copy = [&](ElementRun run, std::int64_t before) {
    copy_run(order, element_bytes, file, run, out.subspan(static_cast<std::size_t>(before) * element_bytes));
  };
  if (!pool || pool->size() == 1 || out.size() <= kReadingGrain) return for_each_run(runs, copy);
  // Parts of at most a grain, which begin with a slab if the run does.
  const std::int64_t slab = order.same() ? 1 : order.slab_elements();
  const std::int64_t most =
      std::max<std::int64_t>(kReadingGrain / static_cast<std::int64_t>(element_bytes) / slab, 1) * slab;
  std::vector<std::pair<ElementRun, std::int64_t>> parts;
  for_each_run(runs, [&](ElementRun run, std::int64_t before) {
    for (std::int64_t at = 0; at < run.size(); at += most) {
      parts.push_back({{run.begin + at, std::min(run.begin + at + most, run.end)}, before + at});
    }
  });
  pool->parallel_for(static_cast<std::int64_t>(parts.size()), 1, [&](std::int64_t first, std::int64_t, int) {
    const auto& [run, before] = parts[static_cast<std::size_t>(first)];
    copy(run, before);
  });
}

std::uint64_t TensorSource::bytes() const {
  auto total = static_cast<std::uint64_t>(size_of(dtype));
  for (const std::int64_t extent : shape) {
    total = checked_mul(total, checked_cast<std::uint64_t>(extent, "extent of '" + name + "'"),
                        "size of '" + name + "'");
  }
  return total;
}

HeldRuns TensorSource::held() const {
  const auto all = static_cast<std::int64_t>(bytes() / static_cast<std::uint64_t>(size_of(dtype)));
  if (!runs) return one_run(0, all);
  std::int64_t end = 0;
  for (const StridedRun& run : *runs) {
    const bool apart = run.count == 1 || (run.count > 1 && run.stride >= run.length);
    if (run.begin < end || run.length < 1 || !apart || run.end() > all) {
      const std::string repeated =
          run.count == 1 ? "" : fmt::format(", and that {} times in steps of {}", run.count, run.stride);
      throw invalid(fmt::format("tensor '{}' has {} elements, but a rank holds [{}, {}) of them{}", name, all,
                                run.begin, run.begin + run.length, repeated));
    }
    end = run.end();
  }
  return *runs;
}

std::uint64_t TensorSource::held_bytes() const {
  return static_cast<std::uint64_t>(elements(held())) * static_cast<std::uint64_t>(size_of(dtype));
}

std::span<const std::byte> TensorSource::read(std::uint64_t offset, std::uint64_t size,
                                              std::vector<std::byte>& buffer) const {
  if (data != nullptr) return {static_cast<const std::byte*>(data) + offset, size};
  if (buffer.size() < size) buffer.resize(size);
  fill(offset, std::span(buffer).first(size));
  return std::span(buffer).first(size);
}

}  // namespace primus
