// Finds the owner of an index if each owner has a consecutive run of indices.
#pragma once

#include "turbo/gpu/values.h"

namespace primus::turbo::PRIMUS_GPU {

// Returns the last i < n whose run begins at or before `place`. starts[0] <= place, and starts are
// non-decreasing.
template <class Index>
PRIMUS_DEVICE Index owner_of(const std::int32_t* starts, Index n, Index place) {
  Index low = 0, high = n;
  while (low + 1 < high) {
    const Index middle = (low + high) / 2;
    if (starts[middle] <= place) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

}  // namespace primus::turbo::PRIMUS_GPU
