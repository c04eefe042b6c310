#include "cli/commands.h"

#include <array>

namespace primus::cli {

std::span<const CommandEntry> commands() {
  // The entries live in other files: they are ready once main() runs.
#define COMMAND(entry) entry,
  static const std::array all = {
#include "cli/commands.def"
  };
#undef COMMAND
  return all;
}

}  // namespace primus::cli
