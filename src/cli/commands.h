// The entries of commands.def. The file of a command includes this to define its own.
#pragma once

#include "cli/command.h"

namespace primus::cli {

#define COMMAND(entry) extern const CommandEntry entry;
#include "cli/commands.def"
#undef COMMAND

}  // namespace primus::cli
