// Every cpu.cpp defines register_<operator>(table), once per instruction set. This function registers the
// operator's kernels. Only these functions are visible outside the objects of their instruction set (see
// CMakeLists.txt).
#pragma once

#include "turbo/kernel_table.h"

// clang-format off
#define PRIMUS_CPU_OPERATOR(operator_name) void register_##operator_name(KernelTable& table);
namespace primus::turbo::isa_v2 {
#include "turbo/cpu/operators.def"
}
namespace primus::turbo::isa_v3 {
#include "turbo/cpu/operators.def"
}
namespace primus::turbo::isa_v4 {
#include "turbo/cpu/operators.def"
}
#undef PRIMUS_CPU_OPERATOR
// clang-format on
