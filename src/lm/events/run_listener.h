// Who listens to a run's events: files, the live view, detectors. A listener is one file in sinks/ that ends
// with its ListenerEntry; the build lists the entries. What a detector needs besides is in
// detectors/detector.h.
//
// All calls come from the rank's training thread, in the order of events, and must return soon. Listeners
// change nothing that is trained. They fail by throwing: the monitor then names the listener once in the log,
// calls it again for its next event, and lets training and all other listeners go on.
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
  // Throws Error where the event's record could not be written now.
  virtual void on(const RunEvent& event) = 0;
  // Before the first event of a process that trains after step `done`. Throws Error to refuse the run.
  virtual void start(std::int64_t /*done*/) {}
  // What was written outlives a power failure when this returns. Throws Error where it may not.
  virtual void sync() {}
  // Records lost so far.
  virtual std::uint64_t dropped() const { return 0; }
};

struct MonitorOptions {
  std::int64_t resume_iteration = 0;  // the last iteration the loaded checkpoint holds; 0: from the beginning
  int log_interval = 1;               // lines in the log; the metrics file always has every iteration
  int tensorboard_log_interval = 1;
  bool tensorboard = true;
  bool samples = false;                         // samples.jsonl
  std::optional<double> target_eval_loss = {};  // see TrainingMonitor::reached_target()
  std::optional<MlperfOptions> mlperf = {};     // empty: no log of MLPerf's
  RunListener* view = nullptr;                  // of a terminal; must outlive the monitor
  int rank = 0;
};

// The arguments of a listener. The references outlive it.
struct ListenerContext {
  const RunFolder& run;
  const MonitorOptions& options;
  Logger& log;
  Env& env;
};

struct ListenerEntry {
  std::string_view name;  // in messages: "metrics.jsonl cannot be written, training goes on: ..."
  bool every_rank;        // false: rank 0 only
  // Null where the options do not ask for it. Throws Error to refuse the run.
  std::unique_ptr<RunListener> (*make)(const ListenerContext&);
};

// All of them, by name.
std::span<const ListenerEntry* const> listeners();

}  // namespace primus
