// Every device of this machine by its name: "cpu", "cuda:1". The CPU is built in, other kinds are plug-ins
// (device/plugin.h). Free functions; thread-safe.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "device/plugin.h"

namespace primus::turbo {

// "auto", "cpu", "cuda" or "cuda:1". Throws Error(kInvalid) for anything that is no name of a device.
// `threads` as in DeviceSpec.
DeviceSpec parse_device(std::string_view text, int threads = 0);
// The same of a kind that can be there: auto, cpu, cuda, hip, or that of a plug-in. Throws Error(kInvalid).
DeviceSpec known_device(std::string_view text, int threads = 0);
// The reverse: "cuda:1", "cpu".
std::string name_of(const DeviceSpec& spec);

// "auto" becomes the first kind of cuda and hip that has a device, else the CPU; other kinds stay. Appends to
// `notes` why a plug-in that is installed cannot be used; that it finds no device is no news.
DeviceSpec choose_device(DeviceSpec spec, std::vector<std::string>* notes = nullptr);

// Throws Error: kDependency when the kind's plug-in is missing or does not match, kInvalid when there is no
// such device.
std::unique_ptr<Device> open_device(const DeviceSpec& spec);
// A device to measure on, which needs no hardware (device/measuring_device.h): any machine can plan a run for
// any device whose plug-in it has.
std::unique_ptr<Device> measuring_device(const DeviceSpec& spec);
// The same for a device with these properties, which need not be of this machine: kernels of its kind's
// plug-in tell their workspaces and, where that is not installed, planned_kernels() (`by_cpu_kernels`).
struct PlannedDevice {
  std::unique_ptr<Device> device;
  bool by_cpu_kernels = false;
};
PlannedDevice planned_device(const DeviceProperties& properties, DeviceSpec spec);

// How devices of this kind take part in the vendor's collectives; null where comm's own communicators serve
// them. For comm::Job::world(). Throws Error(kDependency) as open_device() does.
const DeviceCollectives* collectives_of(const Device& device);

// How devices of this kind tell when work ran; null where their streams can take the clock themselves. For
// make_tracing_device() and TrainingStep::set_timing(). Throws Error(kDependency) as open_device() does.
const DeviceTiming* timing_of(const Device& device);

// What is there, by kind.
struct DeviceListing {
  std::string kind;
  std::vector<DeviceProperties> devices;
  std::string problem;  // why there are none
};
std::vector<DeviceListing> list_devices();

}  // namespace primus::turbo
