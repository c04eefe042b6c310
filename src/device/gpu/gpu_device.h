// A GPU as a device: one source for CUDA and HIP, compiled into the plug-in of each (plugin.cu).
#pragma once

#include <memory>
#include <string>

#include "device/collectives.h"
#include "device/device.h"
#include "device/gpu/target.h"
#include "device/plugin.h"
#include "device/timing.h"

namespace primus::gpu::PRIMUS_GPU {

// What DevicePlugin (device/plugin.h) asks for. Tables must outlive the devices.
int device_count(std::string& why);
DeviceProperties device_properties(int index);
std::unique_ptr<Device> open_gpu(const DeviceSpec& spec, const KernelTable& kernels);
// Of the GPU that is asked for if it is there, else of the largest kind that was tested.
std::unique_ptr<Device> measuring_gpu(const DeviceSpec& spec, const KernelTable& kernels);
// NCCL's or RCCL's view of these devices.
const DeviceCollectives& collectives();
const DevicePeers& peers();
// When work on them ran.
const DeviceTiming& timing();

}  // namespace primus::gpu::PRIMUS_GPU
