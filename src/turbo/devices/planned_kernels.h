// The kernels of a GPU on paper: the CPU's, with the workspaces of a GPU's where the two differ by much.
#pragma once

#include "turbo/kernel_table.h"

namespace primus::turbo {

// For a device without its plug-in. Products take the workspace of a GPU's library of products, attention
// that of our own kernels: a library of attention takes more (planned_hardware.h keeps memory for it). Other
// kernels take on a CPU what they take on a GPU, or little. Nothing in the table can be run.
const KernelTable& planned_kernels();

}  // namespace primus::turbo
