// Matrix products by the vendor's library, loaded when the first product wants it: cuBLASLt on NVIDIA's GPUs,
// without which there is an error; hipBLASLt and rocBLAS on AMD's (amd_products.h), which nobody has run yet.
// cuBLASLt and hipBLASLt share lt_products.h.
#pragma once

#include "device/gpu/launch.h"
#include "turbo/linear/linear.h"

namespace primus::turbo::PRIMUS_GPU {

// Bytes of workspace that multiply_by_library() may use; 0 in the emulator, which has no library. Where the
// device has a folder for it (DeviceSpec::tuning_folder), the first time that a shape is asked about also
// times the library's algorithms for it, unless the folder knows the fastest (algorithm_cache.h).
std::int64_t library_workspace(gpu::PRIMUS_GPU::Context& context, const Gemm& call);

// Enqueues the product if the library covers it, and says whether it did. Products of equal shapes, types and
// alignments use equal algorithms, so results are bit-identical from run to run with one version of the
// library on one kind of GPU, and with one content of the tuning folder.
bool multiply_by_library(gpu::PRIMUS_GPU::Context& context, const Gemm& call);

// A product in fp8: c (+)= (a · bᵀ) * *a_scale * *b_scale.
struct CodeProduct {
  Tensor a, b;                    // [m, k], [n, k]: e4m3 or e5m2
  Tensor c;                       // [m, n]: fp32 or bf16
  const void *a_scale, *b_scale;  // one float each, on the device
  bool accumulate, fast;          // fast: with less exact sums
  int spared;                     // as in Gemm
  Tensor workspace;
};

// The same of these, which nothing else than a library computes: a GPU or a library without them is an error.
std::int64_t library_workspace(gpu::PRIMUS_GPU::Context& context, const CodeProduct& call);
void multiply_by_library(gpu::PRIMUS_GPU::Context& context, const CodeProduct& call);

}  // namespace primus::turbo::PRIMUS_GPU
