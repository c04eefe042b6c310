// Settings given on the command line.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "config/value.h"

namespace primus::config {

// Command-line settings sorted by what they change. Both are maps.
struct Overrides {
  Value experiment;  // top-level keys and modules.<name>.{framework,config,model}; the module is named "*"
                     // when the argument did not name it
  Value trainer;     // trainer keys
  // The modules whose overrides were named in full, modules.NAME.overrides.KEY, and where.
  std::vector<std::pair<std::string, Origin>> modules = {};
  // Settings that are given more than once with different values, as sentences: the last counts.
  std::vector<std::string> notes = {};
};

// Reads key=value, --key value, --key=value and --flag. A key is a trainer key, a top-level key of the
// experiment, framework, config or model, or a dotted path such as modules.pre_trainer.overrides.lr; '-' in
// it stands for '_'. Only a boolean key may stand without a value. Later arguments win. Throws Error.
Overrides parse_overrides(std::span<const std::string> arguments);

}  // namespace primus::config
