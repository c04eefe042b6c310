// Matrix products by the vendor's library: cuBLASLt on NVIDIA, loaded when the first product wants it.
#pragma once

#include "device/gpu/launch.h"
#include "turbo/fp8_linear/fp8_linear.h"
#include "turbo/linear/linear.h"

namespace primus::turbo::PRIMUS_GPU {

// Bytes of workspace that multiply_by_library() may use; 0 where there is no library. Where the device has a
// folder for it (DeviceSpec::tuning_folder), the first time that a shape is asked about also times the
// library's algorithms for it, unless the folder knows the fastest (algorithm_cache.h).
std::int64_t library_workspace(gpu::PRIMUS_GPU::Context& context, const Gemm& call);

// Enqueues the product if the library covers it, and says whether it did. Products of equal shapes, types and
// alignments use equal algorithms, so results are bit-identical from run to run with one version of the
// library on one kind of GPU, and with one content of the tuning folder.
bool multiply_by_library(gpu::PRIMUS_GPU::Context& context, const Gemm& call);

// The same of products in fp8, which nothing else than a library computes: a GPU or a library without them is
// an error.
std::int64_t library_workspace(gpu::PRIMUS_GPU::Context& context, const Fp8Gemm& call);
void multiply_by_library(gpu::PRIMUS_GPU::Context& context, const Fp8Gemm& call);

}  // namespace primus::turbo::PRIMUS_GPU
