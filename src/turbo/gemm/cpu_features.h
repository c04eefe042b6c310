// What the GEMM kernels may use of this CPU: asked of cpuid, and of the operating system where its consent is
// needed.
#pragma once

namespace primus::turbo::gemm {

struct CpuFeatures {
  bool avx2_fma = false;
  bool avx512 = false;       // F, BW, DQ and VL
  bool avx512_bf16 = false;  // vdpbf16ps, vcvtne2ps2bf16
  bool fast_vdpbf16 =
      false;  // vdpbf16ps does more work per cycle than fp32 multiply-add: AMD's does, Intel's does not
  bool amx_bf16 = false;  // tiles and tdpbf16ps; the kernel has granted this process the tile state
};

// Detected once. The first call asks Linux for the permission to use AMX tile registers (arch_prctl).
const CpuFeatures& cpu_features();

}  // namespace primus::turbo::gemm
