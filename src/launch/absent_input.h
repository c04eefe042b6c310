// A file that a command's setting names and that is not there.
#pragma once

#include <string>

#include "base/files/file.h"

namespace primus::launch {

struct AbsentInput {
  std::string key;  // "load"
  Path path;
  std::string origin;  // "command line": where the setting has its value from
};

}  // namespace primus::launch
