// Publishes the events of a rank to all listeners: the event log, the log and the screen, metrics.jsonl,
// TensorBoard, the MLPerf log, and the detectors. Warnings of detectors are published as events, too.
//
// Listeners (run_listener.h) are independent: a listener can neither stop training nor block other listeners.
// If a listener fails, the failure is logged once. Records that the listener cannot buffer are lost. The
// listener is called again for later events. Every rank has a monitor; on ranks other than 0 the event log is
// the only listener.
//
//   TrainingMonitor monitor(run, {.resume_iteration = 400}, log);
//   monitor.begin(facts);
//   monitor.iteration(record);   // after every step
//   monitor.sync(); // before a checkpoint is committed, so that records are durable first
//   monitor.end(ending);
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/log.h"
#include "lm/events/iteration.h"
#include "lm/events/run_ending.h"
#include "lm/events/run_event.h"
#include "lm/events/run_folder.h"
#include "lm/events/run_listener.h"

namespace primus {

class TrainingMonitor {
 public:
  // Creates the listeners. When a run resumes, they first repair their files; throws FileError if that fails.
  // Only the constructor and begin() throw.
  TrainingMonitor(const RunFolder& run, MonitorOptions options, Logger& log, Env& env = Env::posix());

  // Publishes the start of training. Call it after all preparation. Throws Error if the MLPerf log cannot be
  // written.
  void begin(RunFacts facts = {});
  void phase(std::string_view what, std::optional<double> share = {});
  void iteration(const IterationRecord& record);
  void begin_evaluation(std::int64_t iteration, const std::string& data_set);
  void evaluation(const EvaluationRecord& record);
  // Returns whether this evaluation is already recorded. If the run resumes from this iteration, an earlier
  // process may have recorded the evaluation.
  bool evaluated(std::int64_t iteration, const std::string& data_set) const;
  // Returns whether a validation loss at or below the target is recorded for this iteration.
  bool reached_target(std::int64_t iteration) const;
  // Publishes a generated text. Does nothing if MonitorOptions::samples is false.
  void sample(const SampleRecord& record);
  // Returns whether a generated text is already recorded for this iteration. If the run resumes from this
  // iteration, an earlier process may have recorded a text.
  bool sampled(std::int64_t iteration) const { return options_.samples && iteration == last_sample_; }
  void checkpoint(std::int64_t iteration, CheckpointFacts::State state);
  // Publishes a request to stop. `cause`: the source of the request, or the limit that was reached.
  void stop(std::int64_t iteration, const std::string& cause);
  // Publishes a finding that is not a detector's.
  void warn(const RunWarning& warning);
  // Publishes a NaN or infinity that is about to end the run.
  void fault(const NumericsFault& fault);
  // Publishes the end of the run. If the run failed and no fault was published, publishes a fault first.
  void end(const RunEnding& ending);
  // Syncs all records to disk. On failure, logs the error and returns false.
  bool sync();

  // Returns the number of records that listeners have lost so far; 0 in a healthy run.
  std::uint64_t dropped() const;

 private:
  // A listener, and the texts for messages about its failures.
  struct Seat {
    std::string name;
    std::string_view fails, works;
    RunListener* listener = nullptr;
    std::unique_ptr<RunListener> owned = {};
    bool failing = false;
  };

  void add_detectors(const RunFolder& run, Env& env);
  void publish(std::int64_t step, RunEvent::Facts facts, std::string cause = {});
  void deliver(const RunEvent& event);
  // Calls work(). If it throws, logs the failure and returns false. Further failures are not logged until a
  // call succeeds.
  template <class Work>
  bool guard(Seat& seat, Work work);

  MonitorOptions options_;
  Logger& log_;
  std::vector<Seat> seats_;
  std::deque<RunEvent> found_;  // warnings of detectors; they are published after the event that caused them
  std::map<std::pair<std::int64_t, std::string>, double> evaluated_;  // recorded losses by iteration and data
                                                                      // set
  std::int64_t last_sample_ = -1, step_ = 0;
  bool fault_reported_ = false;
};

}  // namespace primus
