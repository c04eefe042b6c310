// Defines how a kind of device is provided: built in (the CPU), or in a shared library "libprimus_<kind>.so"
// that is loaded on demand (device/plugin_loader.h).
//
// A plug-in is compiled with the same headers as the program. Its library exports one function,
//   extern "C" const primus::DevicePlugin* primus_device_plugin();
// and `abi` is compared before any other member is read. A library must load on a machine without the
// vendor's driver: count() then explains what is missing, and measuring() still works.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "device/device.h"

namespace primus {

struct DeviceCollectives;
struct DeviceTiming;

// A requested device.
struct DeviceSpec {
  std::string kind = "auto";  // "auto": the best available kind, chosen by devices.h
  int ordinal = 0;            // index within its kind
  int threads = 0;            // for CPU kernels; 0: every core that the process may use
  // False: kernels may use faster algorithms whose last bits change from run to run.
  bool deterministic = true;
  // False: uses this program's kernels where they can replace a vendor library. Matrix products always use
  // the library.
  bool attention_library = true;
  // Folder that stores timed choices between a library's algorithms; empty: nothing is timed.
  std::string tuning_folder = {};
};

struct DevicePlugin {
  std::uint64_t abi;  // plugin_abi() of the headers that it was compiled with
  const char* kind;   // "cuda"
  // Returns the number of devices that this process can use. If 0, `why` explains what is missing and how to
  // fix it.
  int (*count)(std::string& why);
  // Properties of device `ordinal` < count().
  DeviceProperties (*properties)(int ordinal);
  // Throws Error if the device cannot be used.
  std::unique_ptr<Device> (*open)(const DeviceSpec& spec);
  // Creates a device only for measuring (engine/rank.h): its kernels report their workspace sizes. Needs
  // neither hardware nor driver.
  std::unique_ptr<Device> (*measuring)(const DeviceSpec& spec);
  // Services for the vendor's collectives (device/collectives.h). Null: not supported; comm's own
  // communicators serve these devices.
  const DeviceCollectives* collectives = nullptr;
  // Timing of work (device/timing.h). Null: functions launched on their streams run in order with the work,
  // and can read the clock.
  const DeviceTiming* timing = nullptr;
};

constexpr const char* kDevicePluginEntry = "primus_device_plugin";
using DevicePluginEntry = const DevicePlugin* (*)();

}  // namespace primus
