// Devices of this machine by name: "cpu", "cuda:1". The CPU is built in; other kinds are plug-ins
// (device/plugin.h). Free functions; thread-safe.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "device/plugin.h"

namespace primus::turbo {

// Parses "auto", "cpu", "cuda" or "cuda:1". Throws Error(kInvalid) if `text` is not a device name. `threads`
// is as in DeviceSpec.
DeviceSpec parse_device(std::string_view text, int threads = 0);
// Parses a name. Throws Error(kInvalid) unless its kind is auto, cpu, cuda, hip, or the kind of an installed
// plug-in.
DeviceSpec known_device(std::string_view text, int threads = 0);
// Returns the name of a device: "cuda:1", "cpu".
std::string name_of(const DeviceSpec& spec);

// Resolves "auto" to cuda if there is such a device, else to hip if there is such a device, else to the CPU.
// Leaves other kinds unchanged. If an installed plug-in finds no device, "auto" ignores it. If an installed
// plug-in cannot be used for another reason, appends the reason to `notes`.
DeviceSpec choose_device(DeviceSpec spec, std::vector<std::string>* notes = nullptr);

// Throws Error(kUnsupported) if the spec requires DeviceSpec::batch_invariant of a chosen device that is not
// a CPU. The functions below that make devices do so, too.
void check_batch_invariant(const DeviceSpec& spec);

// Opens a device. Throws Error: kDependency if the kind's plug-in is missing or has another version, kInvalid
// if the device does not exist.
std::unique_ptr<Device> open_device(const DeviceSpec& spec);
// Creates a device that only measures the memory and the work of a run, and needs no hardware
// (device/measuring_device.h). With this device, a machine can plan a run for a device that it does not have,
// if the plug-in of the device's kind is installed.
std::unique_ptr<Device> measuring_device(const DeviceSpec& spec);
// The result of planning for a device with given properties, without its hardware. The properties may
// describe a device of another machine. The plug-in of the device's kind determines workspace sizes. If this
// plug-in is not installed, planned_kernels() determines workspace sizes, and `by_cpu_kernels` is true.
struct PlannedDevice {
  std::unique_ptr<Device> device;
  bool by_cpu_kernels = false;
};
PlannedDevice planned_device(const DeviceProperties& properties, DeviceSpec spec);

// Returns the interface to the vendor's collectives for devices of this kind. Returns null if devices of this
// kind use the communicators of src/comm. The result is an argument of comm::Job::world(). Throws
// Error(kDependency) as open_device() does.
const DeviceCollectives* collectives_of(const Device& device);

// Returns the interface that measures the times of work on devices of this kind. Returns null if the streams
// of these devices can read the clock. The result is an argument of make_tracing_device() and
// TrainingStep::set_timing(). Throws Error(kDependency) as open_device() does.
const DeviceTiming* timing_of(const Device& device);

// The devices of one kind, as listed by list_devices().
struct DeviceListing {
  std::string kind;
  std::vector<DeviceProperties> devices;
  std::string problem;  // why there is no device
};
std::vector<DeviceListing> list_devices();

}  // namespace primus::turbo
