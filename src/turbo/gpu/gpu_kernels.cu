#include "turbo/gpu/register.h"

namespace primus::turbo::PRIMUS_GPU {

KernelTable gpu_kernel_table() {
  KernelTable table;
#define PRIMUS_GPU_OPERATOR(operator_name) register_##operator_name(table);
#include "turbo/gpu/operators.def"
#undef PRIMUS_GPU_OPERATOR
  return table;
}

}  // namespace primus::turbo::PRIMUS_GPU
