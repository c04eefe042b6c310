#include <tuple>

#include "base/entries.h"
#include "cli/command.h"

namespace primus::cli {

#include "cli/commands.def"  // generated: kAllCommandEntry

std::span<const CommandEntry> commands() {
  static const auto all = copies_of(sorted_entries(kAllCommandEntry, [](const CommandEntry& entry) {
    return std::tuple(entry.place.section, entry.place.number, entry.name);
  }));
  return all;
}

}  // namespace primus::cli
