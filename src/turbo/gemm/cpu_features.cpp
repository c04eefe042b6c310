#include "turbo/gemm/cpu_features.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace primus::turbo::gemm {
namespace {

// These constants are from asm/prctl.h of Linux 5.16 and later; older Debian headers do not have them.
constexpr long kArchReqXcompPerm = 0x1023;
constexpr long kXfeatureTileData = 18;

bool has_amx_bf16() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
  const bool in_cpu = (d & (1U << 22)) != 0 && (d & (1U << 24)) != 0;
  return in_cpu && syscall(SYS_arch_prctl, kArchReqXcompPerm, kXfeatureTileData) == 0;
}

CpuFeatures detect() {
  CpuFeatures f;
  f.avx2_fma = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  f.avx512 = f.avx2_fma && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  f.avx512_bf16 = f.avx512 && __builtin_cpu_supports("avx512bf16");
  f.fast_vdpbf16 = f.avx512_bf16 && __builtin_cpu_is("amd");
  // The AMX kernels store bf16 with an instruction of avx512_bf16, which every CPU with AMX has.
  f.amx_bf16 = f.avx512_bf16 && has_amx_bf16();
  return f;
}

}  // namespace

const CpuFeatures& cpu_features() {
  static const CpuFeatures features = detect();
  return features;
}

}  // namespace primus::turbo::gemm
