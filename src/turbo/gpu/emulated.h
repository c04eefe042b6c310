// GPU kernels under the emulator (device/gpu/emulator.h), for tests: tables for a CPU device whose kernels
// are those of a GPU.
#pragma once

#include "turbo/kernel_table.h"

namespace primus::turbo {

// With warps of 32 or 64 lanes. Alive as long as the program.
const KernelTable& emulated_kernel_table(int warp);

}  // namespace primus::turbo
