// Kernels for planning a run on a GPU whose plug-in is not installed. They are the CPU's kernels, with the
// GPU's workspace sizes for operators where CPU and GPU differ substantially.
#pragma once

#include <stdexcept>

#include "turbo/kernel_table.h"

namespace primus::turbo {

// Returns the table for a device without its plug-in. Matrix products use the workspace size that the
// vendor's BLAS library gets, attention uses the workspace size of our own kernels; cuDNN's attention needs
// more (planned_hardware.h reserves memory for it). Other kernels need about the same workspace on CPU and
// GPU. The kernels of the four operators below cannot be run.
const KernelTable& planned_kernels();

// Each function adds the kernels of one operator to the table. It is defined in planned.cpp in the operator's
// folder.
void plan_attention(KernelTable& table);
void plan_fp8_products(KernelTable& table);
void plan_grouped_products(KernelTable& table);
void plan_products(KernelTable& table);

// Replaces a kernel. Planning needs only its workspace size, and never runs it.
template <class Call>
void run_nothing(KernelContext&, const Call&) {
  throw std::logic_error("a planned device has no kernels to run");
}

}  // namespace primus::turbo
