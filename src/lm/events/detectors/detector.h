// Detectors report problems that do not stop a run: a growing loss, a gradient spike, slow steps, worsening
// evaluations. A detector is one file in this folder; the file ends with the detector's DetectorEntry. The
// build collects all entries, and each detector becomes a listener (run_listener.h). A detector reads a run's
// records and returns a warning once per episode. The detector warns again only after the run has recovered.
//
// Detectors only read numbers, and their memory is bounded. Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lm/events/iteration.h"

namespace primus {

class Detector {
 public:
  virtual ~Detector() = default;
  // Return a warning whose `detector` is empty. The caller fills in the name of the DetectorEntry.
  virtual std::optional<RunWarning> iteration(const IterationRecord& /*record*/) { return std::nullopt; }
  virtual std::optional<RunWarning> evaluation(const EvaluationRecord& /*record*/) { return std::nullopt; }
};

struct DetectorEntry {
  std::string_view name;  // name of the detector in warnings.jsonl: "loss_growth"
  std::unique_ptr<Detector> (*make)();
};

// Returns all detectors, sorted by name.
std::span<const DetectorEntry* const> detectors();

// Returns the median; for an even number of values, the upper of the two middle values. `values` is not
// empty.
double median_of(std::vector<double> values);

}  // namespace primus
