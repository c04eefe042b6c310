// Copies rows that a library wrote without gaps to the strided rows of a call.
#pragma once

#include "turbo/gpu/values.h"

namespace primus::turbo::PRIMUS_GPU {

// Copies bf16 rows into longer rows, or adds them to the destination. `cols` and `to_stride` are multiples of
// four, and addresses are aligned to four elements. Each thread copies four elements.
template <class T>
struct Spread {
  static constexpr int kThreads = 256, kElements = 4;
  const BFloat16* from;
  T* to;
  std::int64_t rows, cols, to_stride;
  bool add;

  PRIMUS_DEVICE void operator()() const {
    const std::int64_t i = (block() * kThreads + thread()) * kElements;
    if (i >= rows * cols) return;
    float values[kElements];
    load(from + i, values);
    T* const target = to + i / cols * to_stride + i % cols;
    if (add) {
      float there[kElements];
      load(target, there);
      PRIMUS_UNROLL
      for (int j = 0; j < kElements; ++j) values[j] += there[j];
    }
    store(target, values);
  }
};

}  // namespace primus::turbo::PRIMUS_GPU
