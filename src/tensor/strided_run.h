// Elements of something flat that lie in equal distances, as a part of a matrix's columns does: `count` runs
// of `length` elements, the first at `begin`, `stride` from the beginning of one to that of the next.
//
// A plain value.
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
