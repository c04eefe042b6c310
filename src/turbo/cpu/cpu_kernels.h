// The CPU's kernels. A build holds them for one or more instruction set levels of the x86-64 psABI
// (-DPRIMUS_CPU_KERNELS); the best one that the machine has is chosen when the program runs. With all levels,
// one program serves any x86-64-v2 CPU (2009) and is fast on the newest. (Matrix products choose among finer
// levels, AMX included, by themselves: turbo/gemm.)
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "device/plugin.h"
#include "turbo/cpu/isa_level.h"
#include "turbo/kernel_table.h"

namespace primus::turbo {

std::string_view name_of(IsaLevel level);  // "x86-64-v3"

// Levels in rising order: those in the program, and those of them that this machine can run, which may be
// none.
std::vector<IsaLevel> built_isa_levels();
std::vector<IsaLevel> supported_isa_levels();

// The highest level of `built` that a machine of level `machine` can run. Throws Error (kUnsupported) where
// there is none: the program was built for newer CPUs only.
IsaLevel best_isa_level(std::span<const IsaLevel> built, IsaLevel machine);
IsaLevel best_isa_level();  // of the program, on this machine

// Constant tables, alive as long as the program; the level must be in built_isa_levels(). Running a kernel
// above machine_isa_level() kills the process.
const KernelTable& cpu_kernel_table(IsaLevel level);
inline const KernelTable& cpu_kernel_table() { return cpu_kernel_table(best_isa_level()); }

// The CPU among the devices (turbo/devices/devices.h), where measuring needs no threads.
const DevicePlugin& cpu_plugin();

// A CPU device with the best kernels. `threads` as in cpu::CpuDevice: 0 takes every core the process may use.
std::unique_ptr<Device> make_cpu_device(int threads);

}  // namespace primus::turbo
