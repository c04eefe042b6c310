// Common names for functions of the CUDA and HIP runtimes, so that both have the same host code. Every
// failing call throws an Error with the requested action, the runtime's message and a hint. Only nvcc and
// clang for HIP compile this file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/terminal/terminal.h"
#include "device/gpu/target.h"
#include "device/lost_device.h"

// Names of functions and types of the two runtimes differ only in a prefix.
#if defined(__HIP__)
#define PRIMUS_GPU_CALL(name) hip##name
#else
#define PRIMUS_GPU_CALL(name) cuda##name
#endif

namespace primus::gpu::PRIMUS_GPU {

using StreamHandle = PRIMUS_GPU_CALL(Stream_t);
using GraphHandle = PRIMUS_GPU_CALL(Graph_t);
using GraphExecHandle = PRIMUS_GPU_CALL(GraphExec_t);
using EventHandle = PRIMUS_GPU_CALL(Event_t);
using Status = PRIMUS_GPU_CALL(Error_t);

#if defined(__HIP__)
using RuntimeProperties = hipDeviceProp_t;
inline constexpr const char* kVendor = "hip";
inline constexpr const char* kVendorName = "AMD";
#else
using RuntimeProperties = cudaDeviceProp;
inline constexpr const char* kVendor = "cuda";
inline constexpr const char* kVendorName = "NVIDIA";
#endif

// Throws Error if `status` is not success; `what` completes the message "cannot ...".
inline void check(Status status, const char* what) {
  if (status == PRIMUS_GPU_CALL(Success)) [[likely]]
    return;
  (void)PRIMUS_GPU_CALL(GetLastError)();
  std::string message = std::string(kVendor) + ": cannot " + what + ": " +
                        PRIMUS_GPU_CALL(GetErrorString)(status) + " (" +
                        PRIMUS_GPU_CALL(GetErrorName)(status) + ")";
  switch (status) {
    case PRIMUS_GPU_CALL(ErrorMemoryAllocation):
      throw invalid(std::move(message), "use a smaller micro-batch or sequence, or more recomputation");
    case PRIMUS_GPU_CALL(ErrorNoDevice):
    case PRIMUS_GPU_CALL(ErrorInsufficientDriver):
      throw Error(ErrorKind::kDependency, std::move(message),
                  std::string("check that the ") + kVendorName +
                      " driver is loaded and new enough, or use device: cpu");
    default:
      throw Error(ErrorKind::kIo, std::move(message), kLostDeviceHint);
  }
}

inline void* malloc(std::int64_t bytes) {
  void* address = nullptr;
  const Status status = PRIMUS_GPU_CALL(Malloc)(&address, static_cast<std::size_t>(bytes));
  if (status == PRIMUS_GPU_CALL(ErrorMemoryAllocation)) {
    (void)PRIMUS_GPU_CALL(GetLastError)();
    std::size_t free = 0, total = 0;
    (void)PRIMUS_GPU_CALL(MemGetInfo)(&free, &total);
    throw invalid(std::string(kVendor) +
                      ": out of device memory: " + human_bytes(static_cast<double>(bytes)) + " asked for, " +
                      human_bytes(static_cast<double>(free)) + " of " +
                      human_bytes(static_cast<double>(total)) + " free",
                  "set a smaller micro_batch_size or seq_length, or recompute_granularity=full, or look with "
                  "nvidia-smi "
                  "or rocm-smi for other programs on this GPU");
  }
  check(status, "allocate device memory");
  return address;
}
inline void free(void* address) noexcept { (void)PRIMUS_GPU_CALL(Free)(address); }

inline void* malloc_pinned(std::int64_t bytes) {
  void* address = nullptr;
#if defined(__HIP__)
  check(hipHostMalloc(&address, static_cast<std::size_t>(bytes), hipHostMallocMapped),
        "allocate pinned memory");
#else
  check(cudaHostAlloc(&address, static_cast<std::size_t>(bytes), cudaHostAllocMapped),
        "allocate pinned memory");
#endif
  return address;
}
inline void free_pinned(void* address) noexcept {
#if defined(__HIP__)
  (void)hipHostFree(address);
#else
  (void)cudaFreeHost(address);
#endif
}

// Allows launches of a kernel on the current GPU to request this much shared memory. A kernel has one limit
// per process and GPU. So the limit is never decreased, because another thread may be about to launch the
// same kernel with more shared memory.
inline void allow_shared(const void* kernel, std::size_t bytes) {
  static std::mutex mutex;
  static std::map<std::pair<int, const void*>, std::size_t> limits;
  int device = 0;
  check(PRIMUS_GPU_CALL(GetDevice)(&device), "read the current device");
  const std::lock_guard lock(mutex);
  std::size_t& limit = limits[{device, kernel}];
  if (bytes <= limit) return;
  check(PRIMUS_GPU_CALL(FuncSetAttribute)(kernel, PRIMUS_GPU_CALL(FuncAttributeMaxDynamicSharedMemorySize),
                                          static_cast<int>(bytes)),
        "give a kernel its shared memory");
  limit = bytes;
}
inline void check_launch() { check(PRIMUS_GPU_CALL(GetLastError)(), "start a kernel"); }

}  // namespace primus::gpu::PRIMUS_GPU
