// Finds the owner of an index, if the indices of each owner are consecutive.
#pragma once

#include "turbo/gpu/values.h"

namespace primus::turbo::PRIMUS_GPU {

// Returns the largest i < n with starts[i] <= place. Requires starts[0] <= place and non-decreasing starts.
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
