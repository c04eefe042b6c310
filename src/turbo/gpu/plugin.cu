// A GPU plug-in (libprimus_cuda.so, libprimus_hip.so): implements device/plugin.h.
#include "device/gpu/gpu_device.h"
#include "device/gpu/runtime.h"
#include "device/plugin.h"
#include "turbo/devices/plugin_abi.h"
#include "turbo/gpu/register.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

namespace runtime = gpu::PRIMUS_GPU;

const KernelTable& kernels() {
  static const KernelTable table = gpu_kernel_table();
  return table;
}

const DevicePlugin kPlugin{
    .abi = kPluginAbi,
    .kind = runtime::kVendor,
    .count = runtime::device_count,
    .properties = runtime::device_properties,
    .open = [](const DeviceSpec& spec) { return runtime::open_gpu(spec, kernels()); },
    .measuring = [](const DeviceSpec& spec) { return runtime::measuring_gpu(spec, kernels()); },
    .collectives = &runtime::collectives(),
    .timing = &runtime::timing()};

}  // namespace
}  // namespace primus::turbo::PRIMUS_GPU

extern "C" __attribute__((visibility("default"))) const primus::DevicePlugin* primus_device_plugin() {
  return &primus::turbo::PRIMUS_GPU::kPlugin;
}
