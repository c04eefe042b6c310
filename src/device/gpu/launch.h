// Launches kernels from host code. A kernel is a small struct: its members are the arguments, kThreads is the
// block size, and operator() is the work of one thread.
//
//   struct Scale {
//     static constexpr int kThreads = 256;
//     float* x;
//     std::int64_t n;
//     PRIMUS_DEVICE void operator()() const {
//       const std::int64_t i = block() * kThreads + thread();
//       if (i < n) x[i] *= 2;
//     }
//   };
//   launch(context, blocks_for(n, Scale::kThreads), Scale{x, n});
//
// A short kernel takes longer to launch than to run. A kernel with `using StartsEarly = void` may begin while
// the previous kernel of the stream still runs (NVIDIA's programmatic dependent launch, from Hopper on).
// Every thread then calls wait_for_previous() before it accesses memory that other kernels write, and before
// it writes memory that other kernels read. Every thread must call wait_for_previous() before the thread
// ends: otherwise the next kernel would not wait for the previous kernel either. The emulator checks that no
// thread ends without the call.
//
// A kernel with a member kAlone is compiled for one block per multiprocessor, so its threads may use all
// registers. On NVIDIA GPUs, the arguments of such a kernel are in constant memory (__grid_constant__), so
// the kernel may take the address of an argument, as copies by the TMA require.
//
// `Context` is the device context of a kernel: it has a stream on a GPU, and a thread pool in the emulator.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <type_traits>
#include <typeinfo>
#include <vector>

#include "device/gpu/fault.h"
#include "device/gpu/thread.h"
#ifdef PRIMUS_GPU_VENDOR
#include "device/gpu/gpu_context.h"
#else
#include "device/cpu/cpu_device.h"
#endif

namespace primus::gpu::PRIMUS_GPU {

inline std::int64_t blocks_for(std::int64_t items, std::int64_t per_block) {
  return (items + per_block - 1) / per_block;
}

#ifdef PRIMUS_GPU_VENDOR

using Context = GpuContext;

#if defined(__HIP__)
#define PRIMUS_GRID_CONSTANT
#else
#define PRIMUS_GRID_CONSTANT __grid_constant__
#endif

namespace internal {
template <class Kernel>
__global__ void __launch_bounds__(Kernel::kThreads) enter(const Kernel kernel) {
  kernel();
}
template <class Kernel>
__global__ void __launch_bounds__(Kernel::kThreads, 1) enter_alone(const PRIMUS_GRID_CONSTANT Kernel kernel) {
  kernel();
}
}  // namespace internal

template <class Kernel>
void launch(Context& context, std::int64_t blocks, const Kernel& kernel, std::size_t shared_bytes = 0) {
  static_assert(std::is_trivially_copyable_v<Kernel> && Kernel::kThreads % kWarp == 0);
  if (blocks <= 0) return;
  if (blocks > std::numeric_limits<std::int32_t>::max()) throw std::logic_error("gpu: too many blocks");
  // A kernel that needs more shared memory than this must request it.
  constexpr std::size_t kAlwaysThere = std::size_t{48} << 10;
  const auto start = [&](auto* enter) {
    if (shared_bytes > kAlwaysThere) context.allow_shared(enter, shared_bytes);
#if !defined(__HIP__)
    if constexpr (requires { typename Kernel::StartsEarly; }) {
      if (context.capability() >= 90) {
        cudaLaunchAttribute early{};
        early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
        early.val.programmaticStreamSerializationAllowed = 1;
        cudaLaunchConfig_t how{};
        how.gridDim = dim3(static_cast<unsigned>(blocks));
        how.blockDim = dim3(Kernel::kThreads);
        how.dynamicSmemBytes = shared_bytes;
        how.stream = context.stream();
        how.attrs = &early;
        how.numAttrs = 1;
        (void)cudaLaunchKernelEx(&how, enter, kernel);  // check_launch() reads the status
        return;
      }
    }
#endif
    enter<<<static_cast<unsigned>(blocks), Kernel::kThreads, shared_bytes, context.stream()>>>(kernel);
  };
  if constexpr (requires { Kernel::kAlone; }) {
    start(&internal::enter_alone<Kernel>);
  } else {
    start(&internal::enter<Kernel>);
  }
  context.check_launch();
}

// Returns the number of multiprocessors, which determines the size of persistent grids. Results must not
// depend on this number.
inline std::int64_t multiprocessors(const Context& context) { return context.multiprocessors(); }

// Returns the maximum bytes of shared memory per block.
inline std::int64_t max_shared(const Context& context) { return context.max_shared_bytes(); }

// Returns memory for partial results between the kernels of one operator; the next operator of the stream
// reuses it.
template <class T>
T* partials(Context& context, std::int64_t count) {
  return static_cast<T*>(context.partials(count * static_cast<std::int64_t>(sizeof(T))));
}

// Returns the memory in which kernels of this stream report faults.
inline Fault* faults(const Context& context) { return context.faults(); }

#else

using Context = cpu::CpuContext;

template <class Kernel>
void launch(Context& context, std::int64_t blocks, const Kernel& kernel, std::size_t shared_bytes = 0) {
  static_assert(std::is_trivially_copyable_v<Kernel> && Kernel::kThreads % kWarp == 0);
  emulator::Grid grid{blocks, Kernel::kThreads, kWarp, shared_bytes};
  if constexpr (requires { typename Kernel::StartsEarly; }) grid.early = &typeid(Kernel);
  emulator::run(
      context.pool(), grid, [](const void* arguments) { (*static_cast<const Kernel*>(arguments))(); },
      &kernel);
}

inline std::int64_t multiprocessors(const Context&) { return 4; }
inline std::int64_t max_shared(const Context&) { return 4096; }

template <class T>
T* partials(Context&, std::int64_t count) {
  thread_local std::vector<T> memory;
  memory.assign(static_cast<std::size_t>(count), T{});
  return memory.data();
}

inline Fault* faults(const Context&) { return nullptr; }

#endif

// Returns the address of an operand, or null if it is absent.
template <class T>
T* optional(const Context& context, const Tensor& tensor) {
  return tensor.absent() ? nullptr : context.template data<T>(tensor);
}

}  // namespace primus::gpu::PRIMUS_GPU
