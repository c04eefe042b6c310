// --hardware: plans for a device that this machine need not have.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/command.h"
#include "config/experiment.h"

namespace primus::cli {

// Returns all profiles in presets/hardware.
std::vector<config::Hardware> known_hardware();

class HardwareOption {
 public:
  void declare(Arguments& arguments);
  bool given() const { return name_.has_value(); }
  // Changes `experiment`, read from `file`, into a plan for the device of --hardware. Without --hardware,
  // PRIMUS_GPU_MODEL applies if this machine has no GPU and no device was chosen; a note reports this. If
  // neither is set and the file's folder is named after a product, a note suggests that product. Throws
  // Error(kInvalid) for an unknown name, and for a device on the command line that contradicts --hardware.
  void apply(config::Experiment& experiment, const std::string& file, const Console& console) const;
  // Throws if the name is unknown.
  void check() const;

 private:
  std::optional<std::string> name_;
};

}  // namespace primus::cli
