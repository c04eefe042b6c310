#include "cli/options/hardware.h"

#include <fmt/format.h>

#include <cstdlib>
#include <vector>

#include "base/error.h"
#include "config/loading/inherit.h"
#include "config/trainer_config.h"
#include "turbo/devices/devices.h"

namespace primus::cli {
namespace {

constexpr const char* kGpuModelVariable = "PRIMUS_GPU_MODEL";

void plan_for(config::Experiment& experiment, config::Hardware hardware) {
  experiment.trainer->device = hardware.device;
  if (hardware.device == "cpu") return;  // the CPU of this machine
  if (!hardware.can_be_planned()) {
    throw invalid(fmt::format("{} lacks memory_gib, peak_bf16_tflops or peak_memory_gbs, which a plan needs",
                              hardware.file),
                  "docs/parallelism.md has an example of such a file");
  }
  experiment.hardware = std::make_shared<const config::Hardware>(std::move(hardware));
}

// Refuses a device on the command line that contradicts --hardware. For such a device in the file, prints a
// note.
void compare_device(const config::Experiment& experiment, const std::string& name,
                    const config::Hardware& hardware, const Console& console) {
  const auto& device = experiment.trainer->device;
  const config::Layer layer = experiment.provenance_of("device").layer;
  const std::string kind = device.substr(0, device.find(':'));
  if (layer < config::Layer::kOverrides || kind == "auto" || kind == hardware.device) return;
  if (layer == config::Layer::kCommandLine) {
    throw invalid(
        fmt::format("--hardware {} plans for device {}, but device is {}", name, hardware.device, device),
        "remove --hardware or device");
  }
  console.note(fmt::format("note: --hardware {} plans for device {}; device: {} ({}) is not used", name,
                           hardware.device, device, experiment.provenance_of("device").describe()));
}

}  // namespace

std::vector<config::Hardware> known_hardware() {
  return config::read_hardware(
      config::default_preset_dirs([](const std::string& name) -> std::optional<std::string> {
        const char* const value = std::getenv(name.c_str());
        return value ? std::optional<std::string>(value) : std::nullopt;
      }));
}

void HardwareOption::declare(Arguments& arguments) {
  arguments.option("--hardware", "NAME", &name_,
                   "with --dry-run: plan for this device, even if the machine does not have it: mi300x, h100 "
                   "and others of presets/hardware, or a YAML file like those");
}

void HardwareOption::check() const {
  if (name_) config::hardware_named(known_hardware(), *name_);
}

void HardwareOption::apply(config::Experiment& experiment, const std::string& file,
                           const Console& console) const {
  if (name_) {
    config::Hardware hardware = config::hardware_named(known_hardware(), *name_);
    compare_device(experiment, *name_, hardware, console);
    return plan_for(experiment, std::move(hardware));
  }
  const bool here = turbo::choose_device({}).kind != "cpu";
  if (here || experiment.provenance.contains("device")) return;
  const char* const model = std::getenv(kGpuModelVariable);
  if (model && *model) {
    try {
      plan_for(experiment, config::hardware_named(known_hardware(), model));
      console.note(fmt::format("note: planned for the {} that {} names; --hardware chooses another device",
                               model, kGpuModelVariable));
    } catch (const Error& error) {
      throw invalid(
          fmt::format("{}: {}", kGpuModelVariable, error.what()),
          fmt::format("correct or unset {}, or plan for this machine with device=cpu", kGpuModelVariable));
    }
    return;
  }
  if (const auto meant = config::hardware_of_path(known_hardware(), file)) {
    console.note(
        fmt::format("note: planned for this machine, but the experiment is in a folder for the {}: "
                    "--hardware {} plans for that device",
                    meant->name, meant->short_name));
  }
}

}  // namespace primus::cli
