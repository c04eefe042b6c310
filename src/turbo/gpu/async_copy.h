// Asynchronous copies from global to shared memory (cp.async on NVIDIA, sm_80 and later). With asynchronous
// copies, a block fetches the next operands while it multiplies. On other targets, the copies are
// synchronous.
#pragma once

#include "turbo/gpu/values.h"

namespace primus::turbo::PRIMUS_GPU {

// An address in shared memory, in the form that copy instructions need. Offsets in bytes may be added to it.
#if PRIMUS_CUDA_ARCH >= 800
using SharedAddress = std::uint32_t;
PRIMUS_DEVICE SharedAddress shared_address(void* to) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(to));
}
#else
using SharedAddress = std::byte*;
PRIMUS_DEVICE SharedAddress shared_address(void* to) { return static_cast<std::byte*>(to); }
#endif

// Copies 16 bytes; both addresses are multiples of 16. If `valid` is false, writes zeros and does not read
// `from`. `from` must always be an address in global memory.
PRIMUS_DEVICE void copy_async(SharedAddress to, const void* from, bool valid) {
#if PRIMUS_CUDA_ARCH >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(__cvta_generic_to_global(from)),
               "r"(valid ? 16 : 0)
               : "memory");
#else
  struct alignas(16) Line {
    std::uint64_t low, high;
  };
  *reinterpret_cast<Line*>(to) = valid ? *static_cast<const Line*>(from) : Line{};
#endif
}
PRIMUS_DEVICE void copy_async(void* to, const void* from, bool valid) {
  copy_async(shared_address(to), from, valid);
}

// Ends a group of this thread's copies.
PRIMUS_DEVICE void end_group_of_copies() {
#if PRIMUS_CUDA_ARCH >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until at most kLater groups of this thread's copies are not complete. Other threads see the copied
// data after a barrier.
template <int kLater>
PRIMUS_DEVICE void wait_for_copies() {
#if PRIMUS_CUDA_ARCH >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(kLater) : "memory");
#endif
}

}  // namespace primus::turbo::PRIMUS_GPU
