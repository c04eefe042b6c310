// Publishes a rank's events to all listeners: the event log, the log and the screen, metrics.jsonl,
// TensorBoard, the MLPerf log, and the detectors. Warnings of detectors are also published as events.
//
// Listeners (run_listener.h) are independent. A listener cannot stop training or block other listeners. A
// listener that fails is logged once, loses the records that it cannot buffer, and is called again for its
// next event. Every rank has a monitor; ranks other than 0 have only an event log.
//
//   TrainingMonitor monitor(run, {.resume_iteration = 400}, log);
//   monitor.begin(facts);
//   monitor.iteration(record);   // after every step
//   monitor.sync();              // before a checkpoint is committed, so that records are as durable
//   monitor.end(ending);
//
// One thread at a time.
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
  // Creates the listeners, which repair their files for the resumed iteration. Throws FileError if a listener
  // cannot repair its file. After that, only begin() throws.
  TrainingMonitor(const RunFolder& run, MonitorOptions options, Logger& log, Env& env = Env::posix());

  // Publishes the start of training, after all preparation. Throws Error if the MLPerf log cannot be written.
  void begin(RunFacts facts = {});
  void phase(std::string_view what, std::optional<double> share = {});
  void iteration(const IterationRecord& record);
  void begin_evaluation(std::int64_t iteration, const std::string& data_set);
  void evaluation(const EvaluationRecord& record);
  // Whether this evaluation has been recorded; at the iteration that the run resumes from, an earlier process
  // may have recorded it.
  bool evaluated(std::int64_t iteration, const std::string& data_set) const;
  // Whether the recorded validation loss at this iteration is at or below the target.
  bool reached_target(std::int64_t iteration) const;
  // Does nothing without MonitorOptions::samples.
  void sample(const SampleRecord& record);
  // Whether a text of this iteration has been recorded; at the iteration that the run resumes from, an
  // earlier process may have recorded it.
  bool sampled(std::int64_t iteration) const { return options_.samples && iteration == last_sample_; }
  void checkpoint(std::int64_t iteration, CheckpointFacts::State state);
  // `cause`: who asked for the stop, or which limit was reached.
  void stop(std::int64_t iteration, const std::string& cause);
  // Publishes a NaN or infinity that is about to end the run.
  void fault(const NumericsFault& fault);
  // Publishes the end of the run. For a failed run, publishes a fault first, unless a fault was already
  // published.
  void end(const RunEnding& ending);
  // If records may not survive a power failure, logs this and returns false.
  bool sync();

  // Number of records that listeners have lost so far; 0 in a healthy run.
  std::uint64_t dropped() const;

 private:
  // A listener, and the words that report its failures.
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
  // Calls work(). If work() throws, returns false and logs the failure. The failure is logged only once until
  // the listener works again.
  template <class Work>
  bool guard(Seat& seat, Work work);

  MonitorOptions options_;
  Logger& log_;
  std::vector<Seat> seats_;
  std::deque<RunEvent> found_;  // warnings of detectors, to be published after the event that caused them
  std::map<std::pair<std::int64_t, std::string>, double> evaluated_;  // losses by iteration and data set
  std::int64_t last_sample_ = -1, step_ = 0;
  bool fault_reported_ = false;
};

}  // namespace primus
