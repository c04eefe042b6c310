// GPU kernels under the emulator (device/gpu/emulator.h), for tests: kernel tables that let a CPU device run
// the kernels of a GPU.
#pragma once

#include "turbo/kernel_table.h"

namespace primus::turbo {

// Returns the table for warps of 32 or 64 lanes. It has static lifetime.
const KernelTable& emulated_kernel_table(int warp);

}  // namespace primus::turbo
