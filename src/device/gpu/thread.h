// The interface of kernel code to the machine, with names common to all targets: the position in the grid,
// barriers, exchanges between the lanes of a warp, shared memory, integer atomics.
//
// Every lane of a warp must take part in an exchange, and every thread of a block in a barrier; the emulator
// checks this. There are no floating-point atomics, because the order of atomics, and so the result, would
// vary between runs.
#pragma once

#include <cstdint>

#include "device/gpu/target.h"
#ifndef PRIMUS_GPU_VENDOR
#include <atomic>
#include <cstring>

#include "device/gpu/emulator.h"
#endif

namespace primus::gpu::PRIMUS_GPU {

#ifdef PRIMUS_GPU_VENDOR

PRIMUS_DEVICE int thread() { return static_cast<int>(threadIdx.x); }
PRIMUS_DEVICE int threads() { return static_cast<int>(blockDim.x); }
PRIMUS_DEVICE std::int64_t block() { return blockIdx.x; }
PRIMUS_DEVICE std::int64_t blocks() { return gridDim.x; }
PRIMUS_DEVICE void barrier() { __syncthreads(); }

// For kernels that start early (launch.h). let_next_begin(): once all blocks of this kernel have called it,
// the next kernel may begin concurrently. wait_for_previous(): waits until the previous kernel has ended and
// its writes are visible.
PRIMUS_DEVICE void let_next_begin() {
#if PRIMUS_CUDA_ARCH >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
PRIMUS_DEVICE void wait_for_previous() {
#if PRIMUS_CUDA_ARCH >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Makes writes of a lane to shared memory visible to all lanes of the warp.
PRIMUS_DEVICE void warp_barrier() {
#if defined(__HIP__)
  __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront");
  __builtin_amdgcn_wave_barrier();
#else
  __syncwarp();
#endif
}

// Returns the value of the lane whose index is this lane's index XOR `mask`.
template <class T>
PRIMUS_DEVICE T from_lane_xor(T value, int mask) {
#if defined(__HIP__)
  return __shfl_xor(value, mask, kWarp);
#else
  return __shfl_xor_sync(0xffffffffU, value, mask);
#endif
}

// Returns the value of lane (this lane - `distance`), or this lane's own value if there is no such lane.
template <class T>
PRIMUS_DEVICE T from_lane_before(T value, int distance) {
#if defined(__HIP__)
  return __shfl_up(value, distance, kWarp);
#else
  return __shfl_up_sync(0xffffffffU, value, distance);
#endif
}

PRIMUS_DEVICE void atomic_add(std::int32_t* to, std::int32_t value) { atomicAdd(to, value); }
PRIMUS_DEVICE void atomic_max(std::int32_t* to, std::int32_t value) { atomicMax(to, value); }

// Returns an object of type T in the shared memory of the block. A kernel has one such object per type. The
// object is not initialised.
template <class T>
PRIMUS_DEVICE T& shared() {
  __shared__ __align__(128) unsigned char memory[sizeof(T)];
  return *reinterpret_cast<T*>(memory);
}

// Returns the dynamic shared memory of the launch, 128-byte aligned.
PRIMUS_DEVICE unsigned char* dynamic_shared() {
  extern __shared__ __align__(128) unsigned char primus_dynamic_shared[];
  return primus_dynamic_shared;
}

#else

inline int thread() { return emulator::place().thread; }
inline int threads() { return emulator::place().threads; }
inline std::int64_t block() { return emulator::place().block; }
inline std::int64_t blocks() { return emulator::place().blocks; }
inline void barrier() { emulator::barrier(); }

// The emulator runs kernels one after another, and checks that kernels that start early call
// wait_for_previous().
inline void let_next_begin() {}
inline void wait_for_previous() { emulator::wait_for_previous(); }

inline void warp_barrier() {
  const char nothing = 0;
  emulator::exchange(&nothing, sizeof(nothing));
}

template <class T>
T from_lane(T value, int lane) {
  const std::byte* all = emulator::exchange(&value, sizeof(value));
  T result;
  std::memcpy(&result, all + static_cast<std::size_t>(lane) * emulator::kExchangeBytes, sizeof(result));
  return result;
}
template <class T>
T from_lane_xor(T value, int mask) {
  return from_lane(value, (thread() % kWarp) ^ mask);
}
template <class T>
T from_lane_before(T value, int distance) {
  const int lane = thread() % kWarp;
  return from_lane(value, lane >= distance ? lane - distance : lane);
}

inline void atomic_add(std::int32_t* to, std::int32_t value) { std::atomic_ref<std::int32_t>(*to) += value; }
inline void atomic_max(std::int32_t* to, std::int32_t value) {
  std::atomic_ref<std::int32_t> target(*to);
  std::int32_t before = target.load();
  while (before < value && !target.compare_exchange_weak(before, value)) {
  }
}

template <class T>
T& shared() {
  static const char name = 0;
  return *static_cast<T*>(emulator::shared(&name, sizeof(T)));
}
inline unsigned char* dynamic_shared() { return static_cast<unsigned char*>(emulator::shared(nullptr, 0)); }

#endif

PRIMUS_DEVICE int lane() { return thread() % kWarp; }
PRIMUS_DEVICE int warp() { return thread() / kWarp; }

}  // namespace primus::gpu::PRIMUS_GPU
