// Every gpu.cu defines register_<operator>(table), once per target. This function registers the operator's
// kernels.
#pragma once

#include "device/gpu/target.h"
#include "turbo/kernel_table.h"

// clang-format off
#define PRIMUS_GPU_OPERATOR(operator_name) void register_##operator_name(KernelTable& table);
namespace primus::turbo::PRIMUS_GPU {
#include "turbo/gpu/operators.def"

// Returns the table with all kernels.
KernelTable gpu_kernel_table();
}  // namespace primus::turbo::PRIMUS_GPU
#undef PRIMUS_GPU_OPERATOR
// clang-format on
