#include "base/entries.h"
#include "lm/events/run_listener.h"

namespace primus {

#include "lm/events/listeners.def"  // generated: kAllListenerEntry

std::span<const ListenerEntry* const> listeners() {
  static const auto all = sorted_entries(kAllListenerEntry, &ListenerEntry::name);
  return all;
}

}  // namespace primus
