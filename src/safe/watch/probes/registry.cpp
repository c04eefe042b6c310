#include "base/entries.h"
#include "safe/watch/probe.h"

namespace primus::watch {

#include "safe/watch/probes.def"  // generated: kAllProbeEntry

std::span<const ProbeEntry* const> probes() {
  static const auto all = sorted_entries(kAllProbeEntry, &ProbeEntry::name);
  return all;
}

}  // namespace primus::watch
