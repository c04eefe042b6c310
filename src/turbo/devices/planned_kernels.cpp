#include "turbo/devices/planned_kernels.h"

#include "turbo/cpu/cpu_kernels.h"

namespace primus::turbo {
namespace {

KernelTable make_table() {
  KernelTable table = cpu_kernel_table();
  for (const auto plan : {plan_products, plan_fp8_products, plan_grouped_products, plan_attention})
    plan(table);
  return table;
}

}  // namespace

const KernelTable& planned_kernels() {
  static const KernelTable table = make_table();
  return table;
}

}  // namespace primus::turbo
