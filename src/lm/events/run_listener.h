// Listeners to a run's events: files, the live view, detectors. A listener is one file in sinks/; the file
// ends with the listener's ListenerEntry, and the build collects all entries. For detectors see also
// detectors/detector.h.
//
// All calls come from the rank's training thread, in the order of events, and must return quickly. Listeners
// do not influence training. A listener reports a failure by throwing. The monitor then logs the listener's
// name once, and calls the listener again for later events; training and the other listeners continue.
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
  // Returns whether on() is to be called for events of this kind.
  virtual bool wants(EventKind kind) const = 0;
  // Handles an event. Throws Error if the event's record could not be written now.
  virtual void on(const RunEvent& event) = 0;
  // Called before the first event. `done` is the last step of the loaded checkpoint, 0 for a new run. Throws
  // Error to refuse the run.
  virtual void start(std::int64_t /*done*/) {}
  // Syncs all written records to disk, so that they survive a power failure. Throws Error on failure.
  virtual void sync() {}
  // Returns the number of records lost so far.
  virtual std::uint64_t dropped() const { return 0; }
};

struct MonitorOptions {
  std::int64_t resume_iteration = 0;  // last iteration in the loaded checkpoint; 0 if the run starts from the
                                      // beginning
  int log_interval = 1;  // number of steps between lines in the log; metrics.jsonl has every iteration
  int tensorboard_log_interval = 1;
  bool tensorboard = true;
  bool samples = false;                         // whether samples.jsonl is written
  std::optional<double> target_eval_loss = {};  // target of the evaluation loss; see
                                                // TrainingMonitor::reached_target()
  std::optional<MlperfOptions> mlperf = {};     // options of the MLPerf log; nullopt: the log is not written
  RunListener* view = nullptr;                  // view on the terminal; must outlive the monitor
  RunListener* alerts = nullptr;                // sends alerts; must outlive the monitor; null: no alerts
  int rank = 0;
};

// Arguments for the construction of a listener. The referenced objects outlive the listener.
struct ListenerContext {
  const RunFolder& run;
  const MonitorOptions& options;
  Logger& log;
  Env& env;
};

struct ListenerEntry {
  std::string_view name;  // name of the listener in messages: "metrics.jsonl cannot be written, training
                          // continues: ..."
  bool every_rank;        // true: the listener exists on every rank; false: only on rank 0
  // Creates the listener. Returns null if the options do not request it. Throws Error to refuse the run.
  std::unique_ptr<RunListener> (*make)(const ListenerContext&);
};

// Returns all listeners, sorted by name.
std::span<const ListenerEntry* const> listeners();

}  // namespace primus
