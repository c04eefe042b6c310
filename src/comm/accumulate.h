// The arithmetic of reductions: contributions are added to an accumulator, and accumulators to each other, in
// the order the caller brings them. bf16 and fp16 accumulate in fp32, all others in their own type (and wrap
// around).
#pragma once

#include <cstddef>
#include <cstdint>

#include "comm/communicator.h"

namespace primus::comm {

// Elements of an accumulator, of any type: so few that they stay in the innermost cache.
inline constexpr std::int64_t kAccumulatorElements = 2048;

// How the type accumulates. `accumulator` is aligned to 8 bytes, the others to their element size.
struct Accumulate {
  // accumulator[i] = in[i]
  void (*assign)(void* accumulator, const void* in, std::int64_t count);
  // accumulator[i] = accumulator[i] (+ or max) in[i]
  void (*add)(void* accumulator, const void* in, std::int64_t count);
  // out[i] = accumulator[i], divided by `size` for a mean
  void (*store)(void* out, const void* accumulator, std::int64_t count, int size);
  // accumulator[i] = accumulator[i] (+ or max) other[i], both accumulators
  void (*merge)(void* accumulator, const void* other, std::int64_t count);
  // add(), then store(), in one pass
  void (*add_store)(void* out, const void* accumulator, const void* in, std::int64_t count, int size);
  std::int64_t accumulator_size;  // bytes of an accumulator's element
};

// For a type that supports() holds of.
Accumulate accumulate_for(DType dtype, Reduction reduction);

}  // namespace primus::comm
