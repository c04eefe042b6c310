// The interface of a kind of device. The CPU is built in; every other kind is a plug-in, a shared library
// "libprimus_<kind>.so" that is loaded when needed (device/plugin_loader.h).
//
// A plug-in is compiled with the same headers as the program. The library exports one function,
//   extern "C" const primus::DevicePlugin* primus_device_plugin();
// and the program compares `abi` before it reads any other member. A library must load on a machine without
// the vendor's driver: count() then explains what is missing, and measuring() still works.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "device/device.h"

namespace primus {

struct DeviceCollectives;
struct DeviceTiming;

// Describes a requested device.
struct DeviceSpec {
  std::string kind = "auto";  // "auto": devices.h chooses the best available kind
  int ordinal = 0;            // index within its kind
  int threads = 0;            // number of threads for CPU kernels; 0: one per core that the process may use
  // If false, kernels may use faster algorithms, whose results may differ in the last bits between runs.
  bool deterministic = true;
  // If true, the result of a token in a forward pass has the same bits whatever other tokens are computed
  // with it: kernels use one order of additions for any number of rows, and the same kernels for training
  // and for decoding. CPUs support it, and NVIDIA GPUs of compute capability 9.0 for products and attention
  // in bf16 (turbo::check_batch_invariant()). Kernels throw Error(kUnsupported) for shapes without such an
  // order.
  bool batch_invariant = false;
  // If false, attention uses our own kernels instead of the vendor's library. Matrix products still use the
  // vendor's library.
  bool attention_library = true;
  // The folder that stores which library algorithms were fastest when they were timed. If empty, algorithms
  // are not timed.
  std::string tuning_folder = {};
};

struct DevicePlugin {
  std::uint64_t abi;  // plugin_abi() of the headers with which the plug-in was compiled
  const char* kind;   // the kind of device, such as "cuda"
  // Returns the number of devices that this process can use. If 0, `why` explains what is missing and how to
  // fix it.
  int (*count)(std::string& why);
  // Returns the properties of device `ordinal` < count().
  DeviceProperties (*properties)(int ordinal);
  // Opens a device. Throws Error if the device cannot be used.
  std::unique_ptr<Device> (*open)(const DeviceSpec& spec);
  // Creates a device only for measuring (engine/runtime/rank.h): its kernels report their workspace sizes.
  // Needs neither hardware nor driver.
  std::unique_ptr<Device> (*measuring)(const DeviceSpec& spec);
  // Services for the vendor's collectives (device/collectives.h). Null if the devices have no such library;
  // these devices use the communicators of src/comm.
  const DeviceCollectives* collectives = nullptr;
  // Functions that measure the time of work (device/timing.h). Null if functions launched on a stream run on
  // the host, in order with the stream's work: such functions can read the clock.
  const DeviceTiming* timing = nullptr;
};

constexpr const char* kDevicePluginEntry = "primus_device_plugin";
using DevicePluginEntry = const DevicePlugin* (*)();

}  // namespace primus
