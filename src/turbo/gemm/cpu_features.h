// CPU features that the GEMM kernels may use, from cpuid and the operating system. (The operating system must
// permit some features.)
#pragma once

namespace primus::turbo::gemm {

struct CpuFeatures {
  bool avx2_fma = false;
  bool avx512 = false;       // AVX-512 F, BW, DQ and VL
  bool avx512_bf16 = false;  // vdpbf16ps, vcvtne2ps2bf16
  // vdpbf16ps outperforms fp32 multiply-add: true on AMD CPUs, false on Intel CPUs.
  bool fast_vdpbf16 = false;
  bool amx_bf16 = false;  // tiles and tdpbf16ps; the OS kernel has granted this process the tile state
};

// Returns the features, which are detected in the first call. The first call requests permission to use AMX
// tile registers (arch_prctl).
const CpuFeatures& cpu_features();

}  // namespace primus::turbo::gemm
