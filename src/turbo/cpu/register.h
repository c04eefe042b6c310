// What every cpu.cpp defines, once per instruction set: register_<operator>(table) enters the operator's
// kernels. Only these functions are visible outside the objects of their instruction set (CMakeLists.txt
// tells why).
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
