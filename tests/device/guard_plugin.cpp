// The guard device as a plug-in, libprimus_guard.so. It shows what a vendor's plug-in must implement, and
// lets tests load a second kind of device through the plug-in interface.
//
// PRIMUS_GUARD_COPY_DELAY: microseconds before each operation on a copy stream.
// PRIMUS_GUARD_WAITS: file for the numbers of host waits, for streams and for events: "12 100".
// PRIMUS_GUARD_GRAPHS: enables recording of streams; file for the numbers of graphs recorded and launched:
// "4 36".
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <utility>

#include "device/counting_device.h"
#include "device/guard_device.h"
#include "device/measuring_device.h"
#include "device/plugin.h"
#include "device/recording_device.h"
#include "turbo/cpu/cpu_kernels.h"
#include "turbo/devices/plugin_abi.h"

namespace primus::test {
namespace {

int threads_of(const DeviceSpec& spec) { return spec.threads == 0 ? cpu::available_cores() : spec.threads; }

std::chrono::microseconds copy_delay() {
  const char* text = std::getenv("PRIMUS_GUARD_COPY_DELAY");
  return std::chrono::microseconds(text ? std::atoi(text) : 20);
}

// Returns the properties that an opened device will have.
DeviceProperties plugin_properties() {
  DeviceProperties properties = GuardDevice::guard_properties();
  properties.graphs = std::getenv("PRIMUS_GUARD_GRAPHS") != nullptr;
  return properties;
}

const DevicePlugin kPlugin{
    .abi = turbo::kPluginAbi,
    .kind = "guard",
    .count = [](std::string&) { return 1; },
    .properties = [](int) { return plugin_properties(); },
    .open = [](const DeviceSpec& spec) -> std::unique_ptr<Device> {
      std::unique_ptr<Device> device = std::make_unique<GuardDevice>(
          threads_of(spec), turbo::cpu_kernel_table(), std::chrono::microseconds(20), copy_delay());
      if (const char* file = std::getenv("PRIMUS_GUARD_WAITS")) {
        device =
            std::make_unique<CountingDevice>(std::move(device), std::make_shared<CountingDevice::Waits>(),
                                             [path = std::string(file)](const auto& waits) {
                                               std::ofstream(path) << waits.streams << ' ' << waits.events;
                                             });
      }
      if (const char* file = std::getenv("PRIMUS_GUARD_GRAPHS")) {
        device = std::make_unique<RecordingDevice>(
            std::move(device), std::make_shared<RecordingDevice::Counts>(),
            [path = std::string(file)](const auto& counts) {
              std::ofstream(path) << counts.captures << ' ' << counts.replays;
            });
      }
      return device;
    },
    .measuring = [](const DeviceSpec& spec) -> std::unique_ptr<Device> {
      return std::make_unique<MeasuringDevice>(plugin_properties(), "guard, measured",
                                               turbo::cpu_kernel_table(),
                                               std::make_unique<cpu::CpuContext>(threads_of(spec)));
    }};

}  // namespace
}  // namespace primus::test

extern "C" __attribute__((visibility("default"))) const primus::DevicePlugin* primus_device_plugin() {
  return &primus::test::kPlugin;
}
