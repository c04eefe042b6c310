// The CPU kernels. A build contains the kernels for one or more instruction set levels of the x86-64 psABI
// (-DPRIMUS_CPU_KERNELS). At run time, the program chooses the highest level that the machine supports. With
// all levels, one program runs on any x86-64-v2 CPU (2009) and is fast on new CPUs. (Matrix products in
// turbo/gemm choose separately, among more levels, including AMX.)
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

// These functions return levels in ascending order. built_isa_levels() returns the levels that the program
// contains. supported_isa_levels() returns the built levels that this machine supports (possibly none).
std::vector<IsaLevel> built_isa_levels();
std::vector<IsaLevel> supported_isa_levels();

// Returns the highest level of `built` that a machine of level `machine` supports. Throws Error(kUnsupported)
// if the machine supports no level of `built`: the program was built only for other CPUs.
IsaLevel best_isa_level(std::span<const IsaLevel> built, IsaLevel machine);
IsaLevel best_isa_level();  // the best built level for this machine

// Returns a constant table with static lifetime; the level must be in built_isa_levels(). Running a kernel
// above machine_isa_level() crashes the process with an illegal instruction.
const KernelTable& cpu_kernel_table(IsaLevel level);
inline const KernelTable& cpu_kernel_table() { return cpu_kernel_table(best_isa_level()); }

// Returns the plug-in of the CPU (turbo/devices/devices.h). Its measuring devices start no threads.
const DevicePlugin& cpu_plugin();

// Creates a CPU device with the best kernels. `threads` is as in cpu::CpuDevice; with 0, the device uses
// every core that the process may use. `batch_invariant` is as in DeviceSpec.
std::unique_ptr<Device> make_cpu_device(int threads, bool batch_invariant = false);

}  // namespace primus::turbo
