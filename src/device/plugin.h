// How a kind of device is offered: built in (the CPU), or in a shared library "libprimus_<kind>.so" that is
// loaded when somebody asks for it (device/plugin_loader.h).
//
// A plug-in is compiled with the same headers as the program. Its library exports one function,
//   extern "C" const primus::DevicePlugin* primus_device_plugin();
// and `abi` is compared before anything else is looked at. A library must load on a machine without the
// vendor's driver: count() then says what is missing, and measuring() works all the same.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "device/device.h"

namespace primus {

struct DeviceCollectives;
struct DeviceTiming;

// What somebody asks for.
struct DeviceSpec {
  std::string kind = "auto";  // "auto": the best there is, which devices.h chooses
  int ordinal = 0;            // which one of its kind
  int threads = 0;            // of CPU kernels; 0: every core the process may use
  // False: kernels may take faster ways whose results change from run to run in the last bits.
  bool deterministic = true;
  // False: our own kernels do what a library of the vendor's could do as well. Matrix products are always the
  // library's.
  bool attention_library = true;
  // Where choices between a library's algorithms, made by timing them, are kept; empty: nothing is timed.
  std::string tuning_folder = {};
};

struct DevicePlugin {
  std::uint64_t abi;  // plugin_abi() of the headers it was compiled with
  const char* kind;   // "cuda"
  // How many devices this process can use. 0: `why` says what is missing and what to do about it.
  int (*count)(std::string& why);
  // Of device `ordinal` < count().
  DeviceProperties (*properties)(int ordinal);
  // Throws Error when the device cannot be used.
  std::unique_ptr<Device> (*open)(const DeviceSpec& spec);
  // A device that can be measured on (engine/rank.h) and does nothing else: its kernels tell their
  // workspaces. Needs neither hardware nor driver.
  std::unique_ptr<Device> (*measuring)(const DeviceSpec& spec);
  // How its devices take part in the vendor's collectives (device/collectives.h). Null: they do not, and
  // comm's own communicators serve them.
  const DeviceCollectives* collectives = nullptr;
  // How its devices tell when work ran (device/timing.h). Null: their streams run functions that are launched
  // on them where these can take the clock.
  const DeviceTiming* timing = nullptr;
};

constexpr const char* kDevicePluginEntry = "primus_device_plugin";
using DevicePluginEntry = const DevicePlugin* (*)();

}  // namespace primus
