// Boxes of a tensor. A box is what one rank of a mesh holds, writes or reads.
//
// Errors: kInvalid. Thread-safety: plain values and pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace primus {

// A box: its offset and extent per dimension, outermost first, in elements.
struct Slice {
  std::vector<std::int64_t> offset, extent;
};

// Returns the box that covers the complete tensor.
Slice whole(std::span<const std::int64_t> shape);

// Returns whether the box has as many dimensions as the tensor and lies inside the tensor.
bool is_inside(const Slice& slice, std::span<const std::int64_t> shape);

// Returns whether the boxes have no element in common.
bool are_disjoint(const Slice& a, const Slice& b);

// Returns whether each element of the tensor is in exactly one of the boxes.
bool tile(std::span<const Slice* const> slices, std::span<const std::int64_t> shape);

// Returns the number of elements of a box. The box must lie inside a tensor whose element count fits into
// int64.
std::int64_t elements(const Slice& slice);

// Splits the box into the longest ranges of consecutive elements of the row-major tensor. Calls run(first,
// count) for each range, in row-major order. The box must lie inside the tensor.
template <typename Run>
void for_each_run(std::span<const std::int64_t> shape, const Slice& slice, Run run) {
  // The box covers dimensions [inner, rank) completely. In dimension inner - 1, the box covers consecutive
  // indices. These dimensions together therefore form one range of consecutive elements.
  std::size_t inner = shape.size();
  std::int64_t stride = 1;  // number of elements between neighbouring indices of dimension inner - 1
  while (inner > 0 && slice.extent[inner - 1] == shape[inner - 1]) stride *= shape[--inner];
  if (elements(slice) == 0) return;
  if (inner == 0) return run(std::int64_t{0}, stride);
  const std::size_t split = inner - 1;
  const std::int64_t count = slice.extent[split] * stride;
  std::vector<std::int64_t> at(slice.offset.begin(),
                               slice.offset.begin() + static_cast<std::ptrdiff_t>(inner));
  for (;;) {
    std::int64_t first = 0;
    for (std::size_t d = 0; d < inner; ++d) first = first * shape[d] + at[d];
    run(first * stride, count);
    std::size_t d = split;
    while (d > 0 && ++at[d - 1] == slice.offset[d - 1] + slice.extent[d - 1]) {
      at[d - 1] = slice.offset[d - 1];
      --d;
    }
    if (d == 0) return;
  }
}

}  // namespace primus
