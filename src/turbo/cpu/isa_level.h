// The instruction set levels of the x86-64 psABI for which CPU kernels are compiled, and the level of this
// machine. CMake also compiles this header separately to choose the kernels of a build with
// -DPRIMUS_CPU_KERNELS=native.
#pragma once

#include <cstdint>

namespace primus::turbo {

enum class IsaLevel : std::uint8_t {
  kV2,  // SSE4.2
  kV3,  // AVX2, FMA, BMI2
  kV4,  // AVX-512 F, BW, CD, DQ, VL
};

inline IsaLevel machine_isa_level() {
  // These builtins also check that the operating system saves the wide registers when it switches threads.
  const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                  __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
  const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                  __builtin_cpu_supports("avx512vl");
  return v4 ? IsaLevel::kV4 : v3 ? IsaLevel::kV3 : IsaLevel::kV2;
}

}  // namespace primus::turbo
