// The kernels of a GPU on paper: the CPU's, with the workspaces of a GPU's where the two differ by much.
#pragma once

#include <stdexcept>

#include "turbo/kernel_table.h"

namespace primus::turbo {

// For a device without its plug-in. Products take the workspace of a GPU's library of products, attention
// that of our own kernels: a library of attention takes more (planned_hardware.h keeps memory for it). Other
// kernels take on a CPU what they take on a GPU, or little. Nothing of these four operators can be run.
const KernelTable& planned_kernels();

// Each operator's own part of the table: planned.cpp in its folder.
void plan_attention(KernelTable& table);
void plan_fp8_products(KernelTable& table);
void plan_grouped_products(KernelTable& table);
void plan_products(KernelTable& table);

// A kernel that a plan asks for its workspace and never runs.
template <class Call>
void run_nothing(KernelContext&, const Call&) {
  throw std::logic_error("a planned device has no kernels to run");
}

}  // namespace primus::turbo
