// What goes wrong in a run without stopping it: a loss that grows, a gradient spike, slow steps, evaluations
// that get worse. A detector is one file here, which ends with its DetectorEntry; the build lists the
// entries, and makes a listener of each (run_listener.h). It sees the records of a run and returns a warning
// when it finds something new: once for each episode, and again only after the run has recovered.
//
// Detectors see figures only, change nothing, and keep a bounded state. One thread at a time.
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
  virtual std::optional<RunWarning> iteration(const IterationRecord& /*record*/) { return std::nullopt; }
  virtual std::optional<RunWarning> evaluation(const EvaluationRecord& /*record*/) { return std::nullopt; }
};

struct DetectorEntry {
  std::string_view name;  // in warnings.jsonl: "loss_growth"
  std::unique_ptr<Detector> (*make)();
};

// All of them, by name.
std::span<const DetectorEntry* const> detectors();

// The middle value; of an even number the upper one of both. `values` is not empty.
double median_of(std::vector<double> values);

}  // namespace primus
