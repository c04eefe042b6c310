// Describes a missing input file that a setting of a command names.
#pragma once

#include <string>

#include "base/files/file.h"

namespace primus::launch {

struct AbsentInput {
  std::string key;  // "load"
  Path path;
  std::string origin;  // "command line": the source of the setting
};

}  // namespace primus::launch
