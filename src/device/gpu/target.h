// The target machine of a kernel source. Each gpu.cu is compiled once per target, in its own namespace
// (PRIMUS_GPU), as CPU kernels are compiled once per instruction set:
//
//   cuda        nvcc                       warps of 32
//   hip         clang for AMD GPUs         warps of 64
//   emulated32  any C++ compiler           warps of 32, run by device/gpu/emulator.h
//   emulated64  any C++ compiler           warps of 64, run by device/gpu/emulator.h
#pragma once

#if defined(__HIP__)
#define PRIMUS_GPU hip
#define PRIMUS_GPU_VENDOR 1
#include <hip/hip_runtime.h>
#elif defined(__CUDACC__)
#define PRIMUS_GPU cuda
#define PRIMUS_GPU_VENDOR 1
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#elif PRIMUS_EMULATED_WARP == 32
#define PRIMUS_GPU emulated32
#elif PRIMUS_EMULATED_WARP == 64
#define PRIMUS_GPU emulated64
#else
#error "compile GPU kernels with nvcc, with clang for HIP, or with PRIMUS_EMULATED_WARP=32 or 64"
#endif

#ifdef PRIMUS_GPU_VENDOR
#define PRIMUS_DEVICE __device__ __forceinline__
#define PRIMUS_UNROLL _Pragma("unroll")
#define PRIMUS_PRAGMA(text) _Pragma(#text)
#define PRIMUS_UNROLL_BY(count) PRIMUS_PRAGMA(unroll count)
#else
#define PRIMUS_DEVICE inline
#define PRIMUS_UNROLL
#define PRIMUS_UNROLL_BY(count)
#endif

// PRIMUS_CUDA_ARCH is the compute capability (80, 90) while device code for an NVIDIA GPU is compiled, else
// 0.
#if defined(__CUDA_ARCH__)
#define PRIMUS_CUDA_ARCH __CUDA_ARCH__
#else
#define PRIMUS_CUDA_ARCH 0
#endif

namespace primus::gpu::PRIMUS_GPU {

#if defined(__HIP__) || PRIMUS_EMULATED_WARP == 64
inline constexpr int kWarp = 64;
#else
inline constexpr int kWarp = 32;
#endif

}  // namespace primus::gpu::PRIMUS_GPU
