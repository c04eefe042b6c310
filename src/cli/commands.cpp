#include <algorithm>
#include <vector>

#include "cli/command.h"

namespace primus::cli {

#define ENTRY(entry) extern const CommandEntry entry;
#include "cli/commands.def"  // generated: primus_entry_list
#undef ENTRY

std::span<const CommandEntry> commands() {
  // The entries live in other files: they are ready once main() runs.
#define ENTRY(entry) entry,
  static const std::vector<CommandEntry> all = [] {
    std::vector<CommandEntry> entries = {
#include "cli/commands.def"
    };
    std::ranges::sort(entries, {}, [](const CommandEntry& entry) {
      return std::tuple(entry.place.section, entry.place.number, entry.name);
    });
    return entries;
  }();
#undef ENTRY
  return all;
}

}  // namespace primus::cli
