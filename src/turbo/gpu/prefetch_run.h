// Prefetches runs of bytes into the L2 cache.
#pragma once

#include "turbo/gpu/values.h"

namespace primus::turbo::PRIMUS_GPU {

// Prefetches contiguous bytes into L2, if the GPU supports this. One thread calls it. Address and size are
// multiples of 16.
PRIMUS_DEVICE void prefetch_run([[maybe_unused]] const void* from, [[maybe_unused]] int bytes) {
#if PRIMUS_CUDA_ARCH >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(__cvta_generic_to_global(from)), "r"(bytes)
               : "memory");
#endif
}

}  // namespace primus::turbo::PRIMUS_GPU
