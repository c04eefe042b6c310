// Copies from global to shared memory that a block waits for later (cp.async on NVIDIA, sm_80 and later), so
// that the next operands are on the way while it multiplies. Elsewhere they are ordinary copies, done at
// once.
#pragma once

#include "turbo/gpu/values.h"

namespace primus::turbo::PRIMUS_GPU {

// A place in shared memory as copies name it. Bytes are added to it.
#if PRIMUS_CUDA_ARCH >= 800
using SharedAddress = std::uint32_t;
PRIMUS_DEVICE SharedAddress shared_address(void* to) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(to));
}
#else
using SharedAddress = std::byte*;
PRIMUS_DEVICE SharedAddress shared_address(void* to) { return static_cast<std::byte*>(to); }
#endif

// 16 bytes, both addresses aligned to that; zeros where `valid` is false, and `from` is then not read, but
// must be an address of global memory all the same.
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

// Waits until no more than kLater groups of this thread's copies are under way. Other threads see what was
// copied after a barrier.
template <int kLater>
PRIMUS_DEVICE void wait_for_copies() {
#if PRIMUS_CUDA_ARCH >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(kLater) : "memory");
#endif
}

}  // namespace primus::turbo::PRIMUS_GPU
