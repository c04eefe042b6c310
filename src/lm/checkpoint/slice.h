// Boxes of a tensor: the part that one rank of a mesh holds, writes or reads.
//
// Errors: kInvalid. Thread-safety: plain values and pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace primus {

// Offset and extent of the box per dimension, outermost first, in elements.
struct Slice {
  std::vector<std::int64_t> offset, extent;
};

// Returns the box that covers the complete tensor.
Slice whole(std::span<const std::int64_t> shape);

// Whether the box has the tensor's rank and lies inside the tensor.
bool is_inside(const Slice& slice, std::span<const std::int64_t> shape);

// Whether the boxes have no element in common.
bool are_disjoint(const Slice& a, const Slice& b);

// Whether each element of the tensor is in exactly one of the boxes.
bool tile(std::span<const Slice* const> slices, std::span<const std::int64_t> shape);

// Returns the number of elements of a box that lies inside a tensor whose element count fits into int64.
std::int64_t elements(const Slice& slice);

// Splits the box into the longest runs of consecutive elements of the row-major tensor, in row-major order.
// Calls run(first, count) for each. The box must lie inside the tensor.
template <typename Run>
void for_each_run(std::span<const std::int64_t> shape, const Slice& slice, Run run) {
  // Dimensions [inner, rank) are complete, and dimension inner - 1 contributes consecutive elements, so these
  // dimensions form one run.
  std::size_t inner = shape.size();
  std::int64_t stride = 1;  // number of elements per step of dimension inner - 1
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
