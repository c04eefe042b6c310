// Settings from the command line.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "config/value.h"

namespace primus::config {

// Command-line settings, separated by what they change. Both values are maps.
struct Overrides {
  Value experiment;  // top-level keys and modules.<name>.{framework,config,model}; <name> is "*" if the
                     // argument names no module
  Value trainer;     // trainer keys
  // Names and origins of the modules that arguments name, as in modules.NAME.overrides.KEY.
  std::vector<std::pair<std::string, Origin>> modules = {};
  // Sentences about settings that were given more than once with different values; the last one counts.
  std::vector<std::string> notes = {};
};

// Reads key=value, --key value, --key=value and --flag. A key is a trainer key, a top-level key of the
// experiment, framework, config or model, or a dotted path such as modules.pre_trainer.overrides.lr; '-' in a
// key means '_'. Only boolean keys may omit the value. Later arguments win. Throws Error.
Overrides parse_overrides(std::span<const std::string> arguments);

}  // namespace primus::config
