#include <algorithm>
#include <array>

#include "lm/events/run_listener.h"

namespace primus {

#define ENTRY(entry) extern const ListenerEntry entry;
#include "lm/events/listeners.def"  // generated: primus_entry_list
#undef ENTRY

std::span<const ListenerEntry* const> listeners() {
  static const auto all = [] {
    std::array list{
#define ENTRY(entry) &entry,
#include "lm/events/listeners.def"
#undef ENTRY
    };
    std::sort(list.begin(), list.end(),
              [](const ListenerEntry* a, const ListenerEntry* b) { return a->name < b->name; });
    return list;
  }();
  return all;
}

}  // namespace primus
