// Pairs of blocks that run at the same time and access each other's shared memory: NVIDIA's thread block
// clusters of two, from Hopper on. Blocks 2 i and 2 i + 1 are a pair. Other GPUs and the emulator have no
// pairs.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <type_traits>

#include "device/gpu/launch.h"

namespace primus::gpu::PRIMUS_GPU {

#if defined(PRIMUS_GPU_VENDOR) && !defined(__HIP__)
inline constexpr bool kMayHavePairs = true;
inline bool has_pairs(const Context& context) { return context.capability() >= 90; }

// Launches 2 * `pairs` blocks. Requires has_pairs().
template <class Kernel>
void launch_pairs(Context& context, std::int64_t pairs, const Kernel& kernel, std::size_t shared_bytes) {
  static_assert(std::is_trivially_copyable_v<Kernel> && Kernel::kThreads % kWarp == 0);
  if (pairs <= 0) return;
  if (pairs > std::numeric_limits<std::int32_t>::max() / 2) throw std::logic_error("gpu: too many blocks");
  auto* const enter = &internal::enter<Kernel>;
  context.allow_shared(enter, shared_bytes);
  cudaLaunchAttribute size{};
  size.id = cudaLaunchAttributeClusterDimension;
  size.val.clusterDim.x = 2;
  size.val.clusterDim.y = size.val.clusterDim.z = 1;
  cudaLaunchConfig_t how{};
  how.gridDim = dim3(static_cast<unsigned>(2 * pairs));
  how.blockDim = dim3(Kernel::kThreads);
  how.dynamicSmemBytes = shared_bytes;
  how.stream = context.stream();
  how.attrs = &size;
  how.numAttrs = 1;
  (void)cudaLaunchKernelEx(&how, enter, kernel);  // check_launch() reads the status
  context.check_launch();
}
#else
inline constexpr bool kMayHavePairs = false;
inline bool has_pairs(const Context&) { return false; }
template <class Kernel>
void launch_pairs(Context&, std::int64_t, const Kernel&, std::size_t) {
  throw std::logic_error("gpu: this device has no pairs of blocks");
}
#endif

// All threads of both blocks call begin(), and later wait(). begin() does not wait. When wait() returns, all
// threads of the pair have called begin(), and their writes before it are visible.
struct PairBarrier {
  PRIMUS_DEVICE static void begin() {
#if PRIMUS_CUDA_ARCH >= 900
    asm volatile("barrier.cluster.arrive.release;" ::: "memory");
#endif
  }
  PRIMUS_DEVICE static void wait() {
#if PRIMUS_CUDA_ARCH >= 900
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
  }
};

// Stores a value at the address `here` in the shared memory of block `rank` (0 or 1) of the pair. Both blocks
// must have begun (PairBarrier), and that block must not end before.
PRIMUS_DEVICE void store_in_pair([[maybe_unused]] double* here, [[maybe_unused]] int rank,
                                 [[maybe_unused]] double value) {
#if PRIMUS_CUDA_ARCH >= 900
  const auto own = static_cast<std::uint32_t>(__cvta_generic_to_shared(here));
  std::uint32_t there = 0;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(own), "r"(rank));
  asm volatile("st.shared::cluster.b64 [%0], %1;" ::"r"(there), "l"(std::bit_cast<std::uint64_t>(value))
               : "memory");
#endif
}

}  // namespace primus::gpu::PRIMUS_GPU
