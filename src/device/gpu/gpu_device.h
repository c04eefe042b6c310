// A GPU as a device. CUDA and HIP have a common source, which is compiled into one plug-in for each
// (plugin.cu).
#pragma once

#include <memory>
#include <string>

#include "device/collectives.h"
#include "device/device.h"
#include "device/gpu/target.h"
#include "device/plugin.h"
#include "device/timing.h"

namespace primus::gpu::PRIMUS_GPU {

// The functions of DevicePlugin (device/plugin.h). Kernel tables must outlive the devices.
int device_count(std::string& why);
DeviceProperties device_properties(int index);
std::unique_ptr<Device> open_gpu(const DeviceSpec& spec, const KernelTable& kernels);
// Creates a measuring device with the properties of the requested GPU if it exists, otherwise of the largest
// tested GPU.
std::unique_ptr<Device> measuring_gpu(const DeviceSpec& spec, const KernelTable& kernels);
// Returns the device services for NCCL or RCCL.
const DeviceCollectives& collectives();
const DevicePeers& peers();
// Returns the functions that measure the time of work on GPUs.
const DeviceTiming& timing();

}  // namespace primus::gpu::PRIMUS_GPU
