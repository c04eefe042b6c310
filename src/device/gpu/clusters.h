// Clusters of blocks: consecutive blocks that run at the same time and access each other's shared memory
// (NVIDIA's thread block clusters, from Hopper on). On other GPUs and in the emulator, a cluster has one
// block.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <type_traits>

#include "device/gpu/launch.h"

namespace primus::gpu::PRIMUS_GPU {

#if defined(PRIMUS_GPU_VENDOR) && !defined(__HIP__)

// Returns the maximum number of blocks in a cluster.
inline int max_cluster(const Context& context) { return context.capability() >= 90 ? 8 : 1; }

namespace internal {
template <int kBlocks, class Kernel>
__global__ void __launch_bounds__(Kernel::kThreads, kBlocks) enter_cluster(const Kernel kernel) {
  kernel();
}
}  // namespace internal

// Launches clusters * size blocks. `size` is a power of two, at most max_cluster(). The compiler limits the
// registers so that a multiprocessor can run kBlocks blocks. As much memory as possible becomes shared
// memory.
template <int kBlocks, class Kernel>
void launch_clusters(Context& context, std::int64_t clusters, int size, const Kernel& kernel,
                     std::size_t shared_bytes) {
  static_assert(std::is_trivially_copyable_v<Kernel> && Kernel::kThreads % kWarp == 0);
  if (clusters <= 0) return;
  if (clusters > std::numeric_limits<std::int32_t>::max() / size)
    throw std::logic_error("gpu: too many blocks");
  auto* const enter = &internal::enter_cluster<kBlocks, Kernel>;
  context.allow_shared(enter, shared_bytes);
  check(cudaFuncSetAttribute(reinterpret_cast<const void*>(enter),
                             cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared),
        "give a kernel its shared memory");
  cudaLaunchAttribute dimension{};
  dimension.id = cudaLaunchAttributeClusterDimension;
  dimension.val.clusterDim.x = static_cast<unsigned>(size);
  dimension.val.clusterDim.y = dimension.val.clusterDim.z = 1;
  cudaLaunchConfig_t how{};
  how.gridDim = dim3(static_cast<unsigned>(clusters * size));
  how.blockDim = dim3(Kernel::kThreads);
  how.dynamicSmemBytes = shared_bytes;
  how.stream = context.stream();
  how.attrs = &dimension;
  how.numAttrs = size > 1 ? 1 : 0;
  (void)cudaLaunchKernelEx(&how, enter, kernel);  // check_launch() reads the status
  context.check_launch();
}

#else

inline int max_cluster(const Context&) { return 1; }

template <int kBlocks, class Kernel>
void launch_clusters(Context& context, std::int64_t clusters, int size, const Kernel& kernel,
                     std::size_t shared_bytes) {
  if (size > 1) throw std::logic_error("gpu: this device has no clusters of several blocks");
  launch(context, clusters, kernel, shared_bytes);
}

#endif

// Returns how many bytes of shared memory each of `blocks` blocks on a multiprocessor may request, if the
// kernel also has `own` bytes that it does not request.
inline std::int64_t shared_of_blocks(const Context& context, std::int64_t blocks, std::int64_t own) {
  // A multiprocessor reserves this amount for each block. A single block may not use the reserve of others.
  constexpr std::int64_t kReserved = 1024;
  return std::max<std::int64_t>((max_shared(context) + kReserved) / blocks - kReserved - own, 0);
}

// All threads of all blocks of a cluster call begin(), and later wait(). begin() does not wait. When wait()
// returns, all threads of the cluster have called begin(), and their writes before it are visible.
struct ClusterBarrier {
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

// Stores a value at the address `here` in the shared memory of block `rank` of the cluster. All blocks must
// have begun (ClusterBarrier), and block `rank` must not end before.
PRIMUS_DEVICE void store_in_cluster([[maybe_unused]] double* here, [[maybe_unused]] int rank,
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
