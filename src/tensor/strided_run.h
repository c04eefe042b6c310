// Elements of a flat buffer, e.g. some columns of a matrix: `count` runs of `length` consecutive elements.
// The first run starts at `begin`, and the starts of consecutive runs are `stride` elements apart.
//
// StridedRun is a plain value type.
#pragma once

#include <cstdint>

namespace primus {

struct StridedRun {
  std::int64_t begin = 0, length = 0;
  std::int64_t count = 1, stride = 0;

  std::int64_t size() const { return length * count; }
  std::int64_t end() const { return begin + (count - 1) * stride + length; }
  bool operator==(const StridedRun&) const = default;
};

}  // namespace primus
