// Listeners to a run's events: files, the live view, detectors. A listener is one file in sinks/ that ends
// with its ListenerEntry; the build lists the entries. For detectors see also detectors/detector.h.
//
// All calls come from the rank's training thread, in the order of events, and must return quickly. Listeners
// do not influence training. They report failures by throwing: the monitor then logs the listener's name
// once, calls it again for its next event, and continues with training and all other listeners.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "base/files/file.h"
#include "base/log.h"
#include "lm/events/mlperf_log.h"
#include "lm/events/run_event.h"
#include "lm/events/run_folder.h"

namespace primus {

class RunListener {
 public:
  virtual ~RunListener() = default;
  // Whether on() is called for events of this kind.
  virtual bool wants(EventKind kind) const = 0;
  // Throws Error if the event's record could not be written now.
  virtual void on(const RunEvent& event) = 0;
  // Called before the first event of a process that trains after step `done`. Throws Error to refuse the run.
  virtual void start(std::int64_t /*done*/) {}
  // Makes everything written so far survive a power failure. Throws Error on failure.
  virtual void sync() {}
  // Number of records lost so far.
  virtual std::uint64_t dropped() const { return 0; }
};

struct MonitorOptions {
  std::int64_t resume_iteration = 0;  // last iteration in the loaded checkpoint; 0: from the beginning
  int log_interval = 1;  // steps between lines in the log; the metrics file always has every iteration
  int tensorboard_log_interval = 1;
  bool tensorboard = true;
  bool samples = false;                         // whether samples.jsonl is written
  std::optional<double> target_eval_loss = {};  // target loss; see TrainingMonitor::reached_target()
  std::optional<MlperfOptions> mlperf = {};     // options of the MLPerf log; empty: no such log
  RunListener* view = nullptr;                  // terminal view; must outlive the monitor
  int rank = 0;
};

// The arguments of a listener. The referenced objects outlive the listener.
struct ListenerContext {
  const RunFolder& run;
  const MonitorOptions& options;
  Logger& log;
  Env& env;
};

struct ListenerEntry {
  std::string_view name;  // name in messages: "metrics.jsonl cannot be written, training continues: ..."
  bool every_rank;        // whether the listener exists on every rank, or only on rank 0
  // Returns null if the options do not request this listener. Throws Error to refuse the run.
  std::unique_ptr<RunListener> (*make)(const ListenerContext&);
};

// All listeners, by name.
std::span<const ListenerEntry* const> listeners();

}  // namespace primus
