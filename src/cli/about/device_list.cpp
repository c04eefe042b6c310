#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/text/json_text.h"
#include "cli/command.h"
#include "turbo/devices/devices.h"

namespace primus::cli {
namespace {

class DeviceList final : public Command {
 public:
  void declare(Arguments& arguments) override { arguments.flag("--json", json_, "print JSON"); }

  int run(Console& console) override {
    const std::vector<turbo::DeviceListing> listings = turbo::list_devices();
    const std::string chosen = turbo::name_of(turbo::choose_device({}));
    if (json_) {
      nlohmann::json all{{"auto", chosen}, {"kinds", nlohmann::json::array()}};
      for (const turbo::DeviceListing& listing : listings) {
        nlohmann::json devices = nlohmann::json::array();
        for (const DeviceProperties& device : listing.devices)
          devices.push_back({{"device", name_of(device)}, {"name", device.name}, {"memory", device.memory}});
        all["kinds"].push_back(
            {{"kind", listing.kind}, {"devices", std::move(devices)}, {"problem", listing.problem}});
      }
      console.write(json_text(all, -1) + "\n");
      return 0;
    }
    constexpr double kGiB = 1 << 30;
    for (const turbo::DeviceListing& listing : listings) {
      for (const DeviceProperties& device : listing.devices) {
        console.print(fmt::format("{:<8}  {}, {:.1f} GiB\n", name_of(device), device.name,
                                  static_cast<double>(device.memory) / kGiB));
      }
      if (listing.devices.empty())
        console.print(fmt::format("{:<8}  none: {}\n", listing.kind, listing.problem));
    }
    console.print(fmt::format("auto      takes {}\n", chosen));
    return 0;
  }

 private:
  static std::string name_of(const DeviceProperties& device) {
    return turbo::name_of({.kind = device.kind, .ordinal = device.ordinal});
  }

  bool json_ = false;
};

}  // namespace

extern const CommandEntry kDeviceList{
    "device list",
    "Lists the devices that can compute here",
    "Primus always has the CPU. Other kinds of devices are plug-ins, libprimus_<kind>.so. Primus searches "
    "them next to the program and in ../lib/primus; if PRIMUS_PLUGIN_PATH is set, it searches only the "
    "folders named there. If an installed plug-in finds no device, the list shows the reason.",
    "primus device list\n"
    "primus device list --json",
    make_command<DeviceList>,
    {Section::kMachine, 4}};

}  // namespace primus::cli
