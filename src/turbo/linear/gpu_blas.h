// Matrix products by the vendor's library, loaded at the first product that needs it: cuBLASLt on NVIDIA GPUs
// (required), hipBLASLt and rocBLAS on AMD GPUs (amd_products.h; not yet run on hardware). lt_products.h has
// the common code for cuBLASLt and hipBLASLt.
#pragma once

#include "device/gpu/launch.h"
#include "turbo/linear/linear.h"

namespace primus::turbo::PRIMUS_GPU {

// Returns the bytes of workspace that multiply_by_library() may use; 0 in the emulator, which has no library.
// If the device has a tuning folder (DeviceSpec::tuning_folder), the first call for a shape also finds the
// fastest algorithm: it reads the choice from the folder (algorithm_cache.h), or times the library's
// algorithms.
std::int64_t library_workspace(gpu::PRIMUS_GPU::Context& context, const Gemm& call);

// Enqueues the product if the library supports it, and returns whether it did. Products of equal shapes,
// types and alignments use the same algorithm. Results are therefore bit-identical between runs if the
// version of the library, the kind of GPU and the content of the tuning folder are the same.
bool multiply_by_library(gpu::PRIMUS_GPU::Context& context, const Gemm& call);

// A product in fp8: c (+)= (a · bᵀ) * *a_scale * *b_scale.
struct CodeProduct {
  Tensor a, b;                    // [m, k], [n, k]: e4m3 or e5m2
  Tensor c;                       // [m, n]: fp32 or bf16
  const void *a_scale, *b_scale;  // pointers to one float each, on the device
  bool accumulate, fast;          // fast: accumulate less precisely
  int spared;                     // as in Gemm
  Tensor workspace;
};

// Both functions also exist for fp8 products, which only a library computes. They throw Error if the GPU or
// the library does not support fp8.
std::int64_t library_workspace(gpu::PRIMUS_GPU::Context& context, const CodeProduct& call);
void multiply_by_library(gpu::PRIMUS_GPU::Context& context, const CodeProduct& call);

}  // namespace primus::turbo::PRIMUS_GPU
