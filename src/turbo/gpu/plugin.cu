// What a GPU plug-in (libprimus_cuda.so, libprimus_hip.so) exports.
#include "device/gpu/gpu_device.h"
#include "turbo/gpu/register.h"

// Opens GPU number `index` with all kernels; the caller owns the device. Throws as open_gpu() does.
extern "C" __attribute__((visibility("default"))) primus::Device* primus_open_gpu(int index);
primus::Device* primus_open_gpu(int index) {
  static const primus::KernelTable kernels = primus::turbo::PRIMUS_GPU::gpu_kernel_table();
  return primus::gpu::PRIMUS_GPU::open_gpu(index, kernels).release();
}
