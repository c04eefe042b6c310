#include "turbo/gpu/emulated.h"

#include <stdexcept>

namespace primus::turbo {
namespace emulated32 {
KernelTable gpu_kernel_table();
}
namespace emulated64 {
KernelTable gpu_kernel_table();
}

const KernelTable& emulated_kernel_table(int warp) {
  static const KernelTable of32 = emulated32::gpu_kernel_table(), of64 = emulated64::gpu_kernel_table();
  if (warp != 32 && warp != 64) throw std::logic_error("emulated GPU: warps have 32 or 64 lanes");
  return warp == 32 ? of32 : of64;
}

}  // namespace primus::turbo
