// Probes of a machine during training. A probe is one file in probes/; the file ends with the probe's
// ProbeEntry, and the build collects all entries. A probe reads some files or a driver's library, compares
// them with its earlier readings, and reports findings.
//
// A probe belongs to one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lm/events/rank_health.h"
#include "safe/preflight/machine.h"
#include "safe/watch/gpu_reading.h"

namespace primus::watch {

struct ProbeContext {
  std::shared_ptr<const preflight::Machine> machine;
  RankPlace place;
  std::string nvml = kNvml;  // the file of NVML
};

// The result of one look of a probe.
struct Findings {
  std::uint32_t symptoms = 0;             // present conditions that make a rank slow: bits of Symptom
  std::vector<RunWarning> warnings = {};  // new findings; `iteration` and `rank` are not set

  void set(Symptom symptom) { symptoms |= static_cast<std::uint32_t>(symptom); }
};

class Probe {
 public:
  virtual ~Probe() = default;
  // Reads the machine at time `now` (seconds of a monotonic clock). May throw; the probe is then not used any
  // more.
  virtual void look(double now, Findings& found) = 0;
};

struct ProbeEntry {
  std::string_view name;
  bool every_rank;  // false: only the first rank of a host looks
  // Returns null if the machine has nothing to look at.
  std::unique_ptr<Probe> (*make)(const ProbeContext&);
};

// Returns all probes, sorted by name.
std::span<const ProbeEntry* const> probes();

}  // namespace primus::watch
