// A tensor as one rank gives it to a checkpoint: all of it, or the runs of its elements that this rank holds.
//
// Elements are counted in the order in which they lie in memory. A file may have them in another order
// (AxisOrder), in which a run of memory is scattered over the tensor; the ranks that share the tensor write
// their elements to the same places as a single rank would.
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

// Elements [begin, end) of a tensor.
struct ElementRun {
  std::int64_t begin = 0, end = 0;
  std::int64_t size() const { return end - begin; }
  bool operator==(const ElementRun&) const = default;
};

// Ascending, and without an element twice.
using HeldRuns = std::vector<StridedRun>;
// The run [begin, end), or none where that is empty.
HeldRuns one_run(std::int64_t begin, std::int64_t end);
std::int64_t elements(std::span<const StridedRun> runs);
// Calls visit(run, how many elements come before it) for every consecutive run of elements.
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

// A run of what a rank holds, with `before` elements of it before.
struct HeldRun {
  ElementRun run;
  std::int64_t before = 0;
};

// How the order of a tensor's elements in a file differs from that in memory: its axes are permuted.
struct AxisOrder {
  std::vector<std::int64_t>
      dims;               // the tensor in memory, row-major, up to 4; empty: both orders are the same
  std::vector<int> axes;  // axis i of the file is dims[axes[i]]; the first stays the first

  bool same() const { return dims.empty(); }
  // Elements of one index of the first axis. They are together in both orders.
  std::int64_t slab_elements() const;
};

// Calls visit(place in the file, place in memory) for every element of a slab, in the order of the file.
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

// Copies elements of `element_bytes` each between the order of memory and that of a file. Both spans hold the
// same whole slabs.
void to_file_order(const AxisOrder& order, std::size_t element_bytes, std::span<const std::byte> memory,
                   std::span<std::byte> file);
void to_memory_order(const AxisOrder& order, std::size_t element_bytes, std::span<const std::byte> file,
                     std::span<std::byte> memory);

// Copies the elements of runs from `file`, which holds the whole tensor in the order of a file, to `out`, one
// behind the other.
void copy_runs(const AxisOrder& order, std::size_t element_bytes, std::span<const std::byte> file,
               std::span<const StridedRun> runs, std::span<std::byte> out);

// A tensor to be written. Its bytes are in host memory at `data`, or are produced piece by piece:
// fill(offset, out) writes the bytes [offset, offset + out.size()) of what is held to `out`; it may be called
// from another thread.
struct TensorSource {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;  // of the whole tensor in the file
  const void* data = nullptr;
  std::function<void(std::uint64_t offset, std::span<std::byte> out)> fill;
  // What `data` and `fill` hold, one run behind the other; absent: the whole tensor. A rank without any takes
  // part in the layout of the files, and others write the tensor.
  std::optional<HeldRuns> runs;
  AxisOrder order;

  std::uint64_t bytes() const;  // of the whole tensor; throws kInvalid on overflow or a negative extent
  HeldRuns held() const;        // `runs`, or everything; throws kInvalid where one is not inside the tensor
  std::uint64_t held_bytes() const;  // of held()
  // The bytes [offset, offset + size) of held(): where they are, or in `buffer`, filled with them.
  std::span<const std::byte> read(std::uint64_t offset, std::uint64_t size,
                                  std::vector<std::byte>& buffer) const;
};

}  // namespace primus
