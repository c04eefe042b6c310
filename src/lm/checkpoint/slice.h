// Boxes of a tensor: what one rank of a mesh holds, writes and asks for.
//
// Errors: kInvalid. Thread-safety: plain values and pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace primus {

// Per dimension, outermost first, where the box begins and how far it goes, in elements.
struct Slice {
  std::vector<std::int64_t> offset, extent;
};

// All of a tensor.
Slice whole(std::span<const std::int64_t> shape);

// True when the box has the tensor's rank and lies inside it.
bool is_inside(const Slice& slice, std::span<const std::int64_t> shape);

// True when no element is in both.
bool are_disjoint(const Slice& a, const Slice& b);

// True when each element of the tensor is in exactly one of the boxes.
bool tile(std::span<const Slice* const> slices, std::span<const std::int64_t> shape);

// Elements of a box that is_inside() a tensor whose own count fits.
std::int64_t elements(const Slice& slice);

// Calls run(first, count) for the longest runs of elements that are consecutive in the row-major tensor;
// together, in this order, they are the box in row-major order. The box must be inside.
template <typename Run>
void for_each_run(std::span<const std::int64_t> shape, const Slice& slice, Run run) {
  // Dimensions [inner, rank) are taken whole, and of dimension inner - 1 a consecutive part: one run.
  std::size_t inner = shape.size();
  std::int64_t stride = 1;  // elements per step of dimension inner - 1
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
