// A tensor as one rank provides it to a checkpoint: the complete tensor, or the runs of elements that this
// rank holds.
//
// Elements are counted in memory order. In a file, the elements may have a different order (AxisOrder), so
// that a range in memory is scattered over the tensor in the file. The file is the same as if a single rank
// had written the tensor.
//
// Errors: kInvalid. Thread-safety: plain values and pure functions.
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tensor/dtype.h"
#include "tensor/strided_run.h"

namespace primus {

class ThreadPool;

// The elements [begin, end) of a tensor.
struct ElementRun {
  std::int64_t begin = 0, end = 0;
  std::int64_t size() const { return end - begin; }
  bool operator==(const ElementRun&) const = default;
};

// Ranges of elements that a rank holds, ascending and without duplicate elements.
using HeldRuns = std::vector<StridedRun>;
// Returns the single range [begin, end), or no range if begin == end.
HeldRuns one_run(std::int64_t begin, std::int64_t end);
std::int64_t elements(std::span<const StridedRun> runs);
// Calls visit(run, number of elements in earlier runs) for every range of consecutive elements.
template <class Visit>
void for_each_run(std::span<const StridedRun> runs, Visit visit) {
  std::int64_t before = 0;
  for (const StridedRun& run : runs) {
    for (std::int64_t i = 0; i < run.count; ++i) {
      const std::int64_t begin = run.begin + i * run.stride;
      visit(ElementRun{begin, begin + run.length}, before);
      before += run.length;
    }
  }
}

// A range of elements that a rank holds, and the number of elements that the rank holds before it.
struct HeldRun {
  ElementRun run;
  std::int64_t before = 0;
};

// The difference between the order of a tensor's elements in a file and in memory, given as a permutation of
// axes.
struct AxisOrder {
  std::vector<std::int64_t> dims;  // row-major dimensions of the tensor in memory, at most 4; empty if file
                                   // and memory have the same order
  std::vector<int> axes;           // axis i of the file is axis axes[i] in memory; axes[0] must be 0

  bool same() const { return dims.empty(); }
  // Returns the number of elements of a slab: the elements with the same index on the first axis. A slab is
  // contiguous in the file and in memory.
  std::int64_t slab_elements() const;
};

// Calls visit(index in the file, index in memory) for every element of a slab, in the file's order.
template <class Visit>
void walk_slab(const AxisOrder& order, Visit visit) {
  constexpr std::size_t kMaxInner = 3;
  const std::size_t inner = order.dims.size() - 1;
  assert(inner <= kMaxInner && order.axes.size() == order.dims.size() && order.axes[0] == 0);
  std::int64_t extent[kMaxInner] = {1, 1, 1}, stride[kMaxInner] = {};
  for (std::size_t i = 0; i < inner; ++i) {
    const auto axis = static_cast<std::size_t>(order.axes[i + 1]);
    const std::size_t at = kMaxInner - inner + i;
    extent[at] = order.dims[axis];
    stride[at] = 1;
    for (std::size_t later = axis + 1; later < order.dims.size(); ++later) stride[at] *= order.dims[later];
  }
  std::int64_t in_file = 0;
  for (std::int64_t i = 0; i < extent[0]; ++i) {
    for (std::int64_t j = 0; j < extent[1]; ++j) {
      const std::int64_t base = i * stride[0] + j * stride[1];
      for (std::int64_t k = 0; k < extent[2]; ++k) visit(in_file++, base + k * stride[2]);
    }
  }
}

// Copy complete slabs from memory order to file order, or back. Elements have `element_bytes` bytes.
void to_file_order(const AxisOrder& order, std::size_t element_bytes, std::span<const std::byte> memory,
                   std::span<std::byte> file);
void to_memory_order(const AxisOrder& order, std::size_t element_bytes, std::span<const std::byte> file,
                     std::span<std::byte> memory);

// Copies the elements of `runs` to `out`, without gaps and in order. `file` is the complete tensor in file
// order. The threads of `pool`, if given, each copy a part.
void copy_runs(const AxisOrder& order, std::size_t element_bytes, std::span<const std::byte> file,
               std::span<const StridedRun> runs, std::span<std::byte> out, ThreadPool* pool = nullptr);

// A tensor to be written. The tensor's bytes are in host memory at `data`, or `fill` produces the bytes piece
// by piece. fill(offset, out) writes bytes [offset, offset + out.size()) of the held data to `out`. `fill`
// may be called from another thread.
struct TensorSource {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;  // shape of the complete tensor in the file
  const void* data = nullptr;
  std::function<void(std::uint64_t offset, std::span<std::byte> out)> fill;
  // The elements that `data` or `fill` provide: these ranges, concatenated. nullopt: the complete tensor. A
  // rank without any range of a tensor must also list the tensor, because all ranks plan the same files.
  std::optional<HeldRuns> runs;
  AxisOrder order;

  std::uint64_t bytes() const;  // Returns the size of the complete tensor; throws kInvalid on overflow or a
                                // negative extent.
  HeldRuns held() const;        // Returns `runs`, or one range for the complete tensor; throws kInvalid if a
                                // range is outside the tensor.
  std::uint64_t held_bytes() const;  // Returns the number of bytes of held().
  // Returns the bytes [offset, offset + size) of held(). The result points to the data itself, or to a copy
  // in `buffer`.
  std::span<const std::byte> read(std::uint64_t offset, std::uint64_t size,
                                  std::vector<std::byte>& buffer) const;
};

}  // namespace primus
