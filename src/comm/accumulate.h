// Reduction arithmetic: adds inputs to an accumulator and merges accumulators, in the caller's order.
// bf16 and fp16 accumulate in fp32; every other type accumulates in its own type, and integers wrap around.
#pragma once

#include <cstddef>
#include <cstdint>

#include "comm/communicator.h"

namespace primus::comm {

// Maximum number of elements in an accumulator. With this number, an accumulator of any type fits in the L1
// cache.
inline constexpr std::int64_t kAccumulatorElements = 2048;

// The accumulation functions of one element type and reduction. `accumulator` must be aligned to 8 bytes,
// other buffers to their element size.
struct Accumulate {
  // accumulator[i] = in[i]
  void (*assign)(void* accumulator, const void* in, std::int64_t count);
  // accumulator[i] = accumulator[i] (+ or max) in[i]
  void (*add)(void* accumulator, const void* in, std::int64_t count);
  // out[i] = accumulator[i], divided by `size` for a mean
  void (*store)(void* out, const void* accumulator, std::int64_t count, int size);
  // accumulator[i] = accumulator[i] (+ or max) other[i]; both arguments are accumulators
  void (*merge)(void* accumulator, const void* other, std::int64_t count);
  // add() and store() in one pass
  void (*add_store)(void* out, const void* accumulator, const void* in, std::int64_t count, int size);
  std::int64_t accumulator_size;  // bytes per accumulator element
};

// Returns the functions for `dtype`, for which supports() must be true.
Accumulate accumulate_for(DType dtype, Reduction reduction);

}  // namespace primus::comm
