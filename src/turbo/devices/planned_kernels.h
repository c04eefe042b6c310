// Kernels for planning a run on a GPU whose plug-in is not installed: the CPU's, with the GPU's workspace
// sizes for operators where the two differ substantially.
#pragma once

#include <stdexcept>

#include "turbo/kernel_table.h"

namespace primus::turbo {

// Returns the table for a device without its plug-in. Matrix products use the workspace size that the
// vendor's BLAS library gets, attention uses the workspace size of our own kernels; cuDNN's attention needs
// more (planned_hardware.h reserves memory for it). Other kernels need about the same workspace on CPU and
// GPU. The kernels of the four operators below cannot be run.
const KernelTable& planned_kernels();

// Each function adds one operator's kernels to the table. It is in planned.cpp in the operator's folder.
void plan_attention(KernelTable& table);
void plan_fp8_products(KernelTable& table);
void plan_grouped_products(KernelTable& table);
void plan_products(KernelTable& table);

// Stands for a kernel of which only the workspace size is needed; it is never run.
template <class Call>
void run_nothing(KernelContext&, const Call&) {
  throw std::logic_error("a planned device has no kernels to run");
}

}  // namespace primus::turbo
