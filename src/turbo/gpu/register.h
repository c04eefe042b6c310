// What every gpu.cu defines, once per target: register_<operator>(table) enters the operator's kernels.
#pragma once

#include "device/gpu/target.h"
#include "turbo/kernel_table.h"

// clang-format off
#define PRIMUS_GPU_OPERATOR(operator_name) void register_##operator_name(KernelTable& table);
namespace primus::turbo::PRIMUS_GPU {
#include "turbo/gpu/operators.def"

// All of them.
KernelTable gpu_kernel_table();
}  // namespace primus::turbo::PRIMUS_GPU
#undef PRIMUS_GPU_OPERATOR
// clang-format on
