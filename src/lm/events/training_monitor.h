// The stream of a rank's events, to all who listen: the event log, the log and the screen, metrics.jsonl,
// TensorBoard, the log of an MLPerf run, and the detectors, whose warnings are events again.
//
// Listeners (run_listener.h) are independent. None can stop training or keep another from its events: one
// that fails is named once in the log, loses what it cannot hold, and is called again with its next event.
// Every rank has a monitor; ranks other than 0 have an event log only.
//
//   TrainingMonitor monitor(run, {.resume_iteration = 400}, log);
//   monitor.begin(facts);
//   monitor.iteration(record);   // after every step
//   monitor.sync();              // before a checkpoint is committed: records are as durable as it is
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
  // Makes the listeners, which repair their files for the resumed iteration; throws FileError when one
  // cannot. Besides it only begin() throws.
  TrainingMonitor(const RunFolder& run, MonitorOptions options, Logger& log, Env& env = Env::posix());

  // Everything before the first step is done. Throws Error where MLPerf's log cannot be written.
  void begin(RunFacts facts = {});
  void phase(std::string_view what, std::optional<double> share = {});
  void iteration(const IterationRecord& record);
  void begin_evaluation(std::int64_t iteration, const std::string& data_set);
  void evaluation(const EvaluationRecord& record);
  // Whether this evaluation has been recorded; of the iteration that the run resumes from, also by an earlier
  // process.
  bool evaluated(std::int64_t iteration, const std::string& data_set) const;
  // Whether the recorded loss on validation data at this iteration is the target or less.
  bool reached_target(std::int64_t iteration) const;
  // With MonitorOptions::samples.
  void sample(const SampleRecord& record);
  // Whether a text of this iteration has been recorded; of the iteration that the run resumes from, also by
  // an earlier process.
  bool sampled(std::int64_t iteration) const { return options_.samples && iteration == last_sample_; }
  void checkpoint(std::int64_t iteration, CheckpointFacts::State state);
  // `cause`: who asked, or which limit was reached.
  void stop(std::int64_t iteration, const std::string& cause);
  // A number that is none, which is about to end the run.
  void fault(const NumericsFault& fault);
  // The run ends here. A failed one has a fault before it, unless that was published.
  void end(const RunEnding& ending);
  // False when records may not survive a power failure (said in the log, too).
  bool sync();

  // Records lost by listeners so far: 0 in a healthy run.
  std::uint64_t dropped() const;

 private:
  // A listener, and how its failures are told.
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
  // Calls work(); says in the log that the listener fails, once until it works again. False: it failed.
  template <class Work>
  bool guard(Seat& seat, Work work);

  MonitorOptions options_;
  Logger& log_;
  std::vector<Seat> seats_;
  std::deque<RunEvent> found_;  // warnings of detectors, published after the event that they are about
  std::map<std::pair<std::int64_t, std::string>, double> evaluated_;  // losses
  std::int64_t last_sample_ = -1, step_ = 0;
  bool fault_told_ = false;
};

}  // namespace primus
