// Kernels for planning a run on a GPU whose plug-in is not installed. These kernels are the CPU's kernels.
// The GPU's workspace sizes replace the CPU's sizes for operators where the sizes differ substantially.
#pragma once

#include <stdexcept>

#include "turbo/kernel_table.h"

namespace primus::turbo {

// Returns the table for a device without its plug-in. For matrix products, the workspace size is that of the
// vendor's BLAS library. For attention, the workspace size is that of our own kernels. cuDNN's attention
// needs more memory, which planned_hardware.h reserves. Other kernels need about the same workspace on CPU
// and GPU. The table's kernels of the four operators below cannot run.
const KernelTable& planned_kernels();

// Each function adds the kernels of one operator to the table. The function is defined in planned.cpp in the
// operator's folder.
void plan_attention(KernelTable& table);
void plan_fp8_products(KernelTable& table);
void plan_grouped_products(KernelTable& table);
void plan_products(KernelTable& table);

// Replaces a kernel. Planning needs only the workspace size of the kernel, and does not run the kernel.
template <class Call>
void run_nothing(KernelContext&, const Call&) {
  throw std::logic_error("a planned device has no kernels to run");
}

}  // namespace primus::turbo
