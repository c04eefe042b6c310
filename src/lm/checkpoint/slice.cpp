#include "lm/checkpoint/slice.h"

#include <algorithm>

namespace primus {

Slice whole(std::span<const std::int64_t> shape) {
  return {.offset = std::vector<std::int64_t>(shape.size(), 0), .extent = {shape.begin(), shape.end()}};
}

bool is_inside(const Slice& slice, std::span<const std::int64_t> shape) {
  if (slice.offset.size() != shape.size() || slice.extent.size() != shape.size()) return false;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    const std::int64_t offset = slice.offset[d], extent = slice.extent[d];
    if (offset < 0 || extent < 0 || offset > shape[d] || extent > shape[d] - offset) return false;
  }
  return true;
}

bool are_disjoint(const Slice& a, const Slice& b) {
  for (std::size_t d = 0; d < a.offset.size(); ++d) {
    if (a.offset[d] + a.extent[d] <= b.offset[d] || b.offset[d] + b.extent[d] <= a.offset[d]) return true;
  }
  return a.offset.empty() ? false : elements(a) == 0 || elements(b) == 0;
}

std::int64_t elements(const Slice& slice) {
  std::int64_t count = 1;
  for (const std::int64_t extent : slice.extent) count *= extent;
  return count;
}

bool tile(std::span<const Slice* const> slices, std::span<const std::int64_t> shape) {
  std::int64_t left = elements(whole(shape));
  for (const Slice* slice : slices) {
    if (!is_inside(*slice, shape) || elements(*slice) > left) return false;
    left -= elements(*slice);
  }
  if (left != 0) return false;
  if (shape.empty()) return slices.size() == 1;
  // The boxes together have as many elements as the tensor. The boxes therefore cover the tensor exactly if
  // no two boxes overlap. Each box is compared only with the boxes that begin, along the first dimension,
  // before the end of this box.
  std::vector<const Slice*> sorted(slices.begin(), slices.end());
  std::ranges::sort(sorted, {}, [](const Slice* slice) { return slice->offset[0]; });
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    const std::int64_t end = sorted[i]->offset[0] + sorted[i]->extent[0];
    for (std::size_t k = i + 1; k < sorted.size() && sorted[k]->offset[0] < end; ++k) {
      if (!are_disjoint(*sorted[i], *sorted[k])) return false;
    }
  }
  return true;
}

}  // namespace primus
