// The versions of other frameworks that Primus was checked with, and what of them is on this machine. Their
// sources are clones of public repositories at a commit that presets/backends/pins.yaml names.
#pragma once

#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backends/job.h"

namespace primus::backends {

struct Pin {
  std::string framework;  // "megatron"
  std::string name;       // of its folder: "Megatron-LM"
  std::string repository, commit;
  std::vector<std::string> packages, imports;
  std::string purpose;  // what it is for, where it is no engine of experiments
};

// All pins, from the first of `preset_dirs` that has them. Throws Error(kInvalid): none has, or the table is
// damaged.
std::vector<Pin> read_pins(std::span<const Path> preset_dirs);

enum class PinState { kMissing, kReady, kOtherCommit, kNoRepository };

struct PinStatus {
  PinState state = PinState::kMissing;
  std::string commit;    // that is there
  bool changed = false;  // files of the clone were changed
  std::string python;    // with which it would run
  std::vector<std::string> missing_imports;
};

// What is there in `folder`. Runs git and Python, and changes nothing.
PinStatus pin_status(const Pin& pin, const Path& folder, const std::string& python);

using Show = std::function<void(std::string_view line)>;

// Brings the clone in `folder` to the pin's commit. A clone with changed files is left as it is: an
// Error(kInvalid). An interrupted one leaves nothing under the pin's name.
void sync_sources(const Pin& pin, const Path& folder, const Show& show);

// Makes the Python environment NAME.venv in `folder`, and installs the pin's packages with pip.
void sync_environment(const Pin& pin, const Path& folder, const Show& show);

}  // namespace primus::backends
