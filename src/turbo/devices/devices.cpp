#include "turbo/devices/devices.h"

#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "device/measuring_device.h"
#include "device/plugin_loader.h"
#include "turbo/cpu/cpu_kernels.h"
#include "turbo/devices/planned_kernels.h"
#include "turbo/devices/plugin_abi.h"

namespace primus::turbo {
namespace {

constexpr std::string_view kAuto = "auto", kCpu = "cpu";

const DevicePlugin& plugin_of(std::string_view kind) {
  return kind == kCpu ? cpu_plugin() : load_plugin(kind, kPluginAbi);
}

// Returns the devices of one kind. If there is no device, sets `why` to the reason. Throws Error if the
// plug-in cannot be used.
std::vector<DeviceProperties> devices_of(const std::string& kind, std::string& why) {
  std::vector<DeviceProperties> devices;
  const DevicePlugin& plugin = plugin_of(kind);
  const int count = plugin.count(why);
  for (int i = 0; i < count; ++i) devices.push_back(plugin.properties(i));
  return devices;
}

}  // namespace

DeviceSpec parse_device(std::string_view text, int threads) {
  const std::size_t colon = text.find(':');
  DeviceSpec spec{.kind = std::string(text.substr(0, colon)), .ordinal = 0, .threads = threads};
  const bool word = !spec.kind.empty() && std::all_of(spec.kind.begin(), spec.kind.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  });
  bool good = word;
  if (colon != std::string_view::npos) {
    const std::string_view number = text.substr(colon + 1);
    const auto [end, failure] = std::from_chars(number.data(), number.data() + number.size(), spec.ordinal);
    good = good && failure == std::errc() && end == number.data() + number.size() && spec.ordinal >= 0 &&
           spec.kind != kAuto;
  }
  if (!good) {
    throw invalid("'" + std::string(text) + "' is not a device name",
                  "choose auto, cpu, cuda, cuda:1, hip or hip:1; 'primus device list' shows the devices");
  }
  return spec;
}

DeviceSpec known_device(std::string_view text, int threads) {
  DeviceSpec spec = parse_device(text, threads);
  std::vector<std::string> kinds = installed_plugins();
  kinds.insert(kinds.end(), {"auto", "cpu", "cuda", "hip"});
  if (std::ranges::find(kinds, spec.kind) != kinds.end()) return spec;
  throw invalid("unknown kind of device '" + spec.kind + "'",
                "choose auto, cpu, cuda, cuda:1, hip or hip:1; 'primus device list' shows the devices");
}

std::string name_of(const DeviceSpec& spec) {
  return spec.kind == kCpu || spec.kind == kAuto ? spec.kind : spec.kind + ":" + std::to_string(spec.ordinal);
}

DeviceSpec choose_device(DeviceSpec spec, std::vector<std::string>* notes) {
  if (spec.kind != kAuto) return spec;
  const std::vector<std::string> installed = installed_plugins();
  for (const char* const kind : {"cuda", "hip"}) {
    if (std::find(installed.begin(), installed.end(), kind) == installed.end()) continue;
    try {
      std::string why;
      if (devices_of(kind, why).empty()) continue;
      spec.kind = kind;
      return spec;
    } catch (const Error& error) {
      if (notes) notes->push_back("device auto skips " + std::string(kind) + ": " + error.what());
    }
  }
  spec.kind = kCpu;
  return spec;
}

// AMD GPUs have no kernels whose order of additions does not depend on the number of tokens.
void check_batch_invariant(const DeviceSpec& spec) {
  if (!spec.batch_invariant || spec.kind == kCpu || spec.kind == "cuda") return;
  throw unsupported("batch_invariant is not supported on " + spec.kind +
                        ": kernels and libraries choose the order of additions by the number of tokens",
                    "choose the device cpu or cuda, or remove batch_invariant");
}

std::unique_ptr<Device> open_device(const DeviceSpec& asked) {
  const DeviceSpec spec = choose_device(asked);
  check_batch_invariant(spec);
  const DevicePlugin& plugin = plugin_of(spec.kind);
  std::string problem;
  const int count = plugin.count(problem);
  if (spec.ordinal >= count) {
    const std::string known = count == 0   ? "there is none: " + problem
                              : count == 1 ? "there is only " + spec.kind + ":0"
                                           : "there are " + std::to_string(count) + ", from " + spec.kind +
                                                 ":0 to " + spec.kind + ":" + std::to_string(count - 1);
    throw invalid("unknown device " + spec.kind + ":" + std::to_string(spec.ordinal) + "; " + known,
                  "'primus device list' shows the devices");
  }
  return plugin.open(spec);
}

std::unique_ptr<Device> measuring_device(const DeviceSpec& asked) {
  const DeviceSpec spec = choose_device(asked);
  check_batch_invariant(spec);
  return plugin_of(spec.kind).measuring(spec);
}

PlannedDevice planned_device(const DeviceProperties& properties, DeviceSpec spec) {
  const std::vector<std::string> installed = installed_plugins();
  PlannedDevice planned;
  spec.kind = properties.kind;
  check_batch_invariant(spec);
  planned.by_cpu_kernels = properties.kind != kCpu &&
                           std::find(installed.begin(), installed.end(), properties.kind) == installed.end();
  spec.kind = planned.by_cpu_kernels ? kCpu : properties.kind;
  spec.ordinal = 0;
  // Uses one thread, because CPU kernels have a workspace per thread. A GPU does not need such a workspace.
  if (planned.by_cpu_kernels) spec.threads = 1;
  std::unique_ptr<Device> source = plugin_of(spec.kind).measuring(spec);
  const KernelTable& kernels = planned.by_cpu_kernels ? planned_kernels() : source->kernels();
  planned.device = std::make_unique<MeasuringDevice>(properties, properties.name, kernels, std::move(source));
  return planned;
}

const DeviceCollectives* collectives_of(const Device& device) {
  return plugin_of(device.properties().kind).collectives;
}

const DeviceTiming* timing_of(const Device& device) { return plugin_of(device.properties().kind).timing; }

std::vector<DeviceListing> list_devices() {
  std::vector<std::string> kinds = installed_plugins();
  kinds.insert(kinds.begin(), std::string(kCpu));
  std::vector<DeviceListing> listings;
  for (const std::string& kind : kinds) {
    DeviceListing listing{.kind = kind, .devices = {}, .problem = {}};
    try {
      listing.devices = devices_of(kind, listing.problem);
    } catch (const Error& error) {
      listing.problem = error.what();
    }
    listings.push_back(std::move(listing));
  }
  return listings;
}

}  // namespace primus::turbo
