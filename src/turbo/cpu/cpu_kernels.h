// The CPU's kernels. They exist once per instruction set level of the x86-64 psABI; the best one the machine
// has is chosen when the program runs, so one program serves any x86-64-v2 CPU (2009) and is fast on the
// newest. (Matrix products choose among finer levels, AMX included, by themselves: turbo/gemm.)
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "device/plugin.h"
#include "turbo/kernel_table.h"

namespace primus::turbo {

enum class IsaLevel : std::uint8_t {
  kV2,  // SSE4.2
  kV3,  // AVX2, FMA, BMI2
  kV4,  // AVX-512 F, BW, CD, DQ, VL
};

std::string_view name_of(IsaLevel level);  // "x86-64-v3"
IsaLevel best_isa_level();                 // of this machine
std::vector<IsaLevel> supported_isa_levels();

// Constant tables, alive as long as the program. Running a kernel above best_isa_level() kills the process.
const KernelTable& cpu_kernel_table(IsaLevel level);
inline const KernelTable& cpu_kernel_table() { return cpu_kernel_table(best_isa_level()); }

// The CPU among the devices (turbo/devices/devices.h), where measuring needs no threads.
const DevicePlugin& cpu_plugin();

// A CPU device with the best kernels. `threads` as in cpu::CpuDevice: 0 takes every core the process may use.
std::unique_ptr<Device> make_cpu_device(int threads);

}  // namespace primus::turbo
