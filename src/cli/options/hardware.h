// --hardware: a plan for a device that need not be here.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/command.h"
#include "config/experiment.h"

namespace primus::cli {

// All profiles of presets/hardware.
std::vector<config::Hardware> known_hardware();

class HardwareOption {
 public:
  void declare(Arguments& arguments);
  bool given() const { return name_.has_value(); }
  // Makes `experiment`, read from `file`, a plan for what --hardware names. Without it PRIMUS_GPU_MODEL
  // counts where no GPU is here and nobody chose a device, and a note says so; where neither is set, a note
  // points at a product that the file's folder is called by. Throws Error(kInvalid) for a name that is
  // unknown.
  void apply(config::Experiment& experiment, const std::string& file, const Console& console) const;
  // Whether the name is right, whatever it is used for.
  void check() const;

 private:
  std::optional<std::string> name_;
};

}  // namespace primus::cli
