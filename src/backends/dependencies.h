// The pins: tested versions of other frameworks, and the status of these versions on this machine. Their
// sources are clones of public repositories at the commits in presets/backends/pins.yaml.
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
  std::string name;       // name of its folder: "Megatron-LM"
  std::string repository, commit;
  std::vector<std::string> packages, imports;
  std::string purpose;  // what AMD Primus uses it for; empty: experiments can name this framework
};

// Returns all pins, from the first of `preset_dirs` that has a table. Throws Error(kInvalid) if no folder has
// a table, or if the table is damaged.
std::vector<Pin> read_pins(std::span<const Path> preset_dirs);

enum class PinState { kMissing, kReady, kOtherCommit, kNoRepository };

struct PinStatus {
  PinState state = PinState::kMissing;
  std::string commit;    // commit of the clone
  bool changed = false;  // the clone has modified files
  std::string python;    // the Python with which Primus would run the framework
  std::vector<std::string> missing_imports;
};

// Returns the status of the clone in `folder`. Runs git and Python, without changes to the clone.
PinStatus pin_status(const Pin& pin, const Path& folder, const std::string& python);

using Show = std::function<void(std::string_view line)>;

// Moves the clone in `folder` to the pin's commit. If the clone has modified files, throws Error(kInvalid)
// and changes nothing. An interrupted call leaves no folder with the pin's name.
void sync_sources(const Pin& pin, const Path& folder, const Show& show);

// Makes the Python environment NAME.venv in `folder` and installs the pin's packages with pip.
void sync_environment(const Pin& pin, const Path& folder, const Show& show);

}  // namespace primus::backends
