// All that a run reports, to all who listen: the log and the screen, metrics.jsonl, TensorBoard, the log of
// an MLPerf run, and the detectors, whose warnings go into the log and into warnings.jsonl.
//
// The sinks are independent. None can stop training or keep another from writing: one that fails is named
// once in the log, loses what it cannot hold, and is tried again with the next iteration. Only rank 0 (or the
// last rank, which holds the loss) has a monitor.
//
//   TrainingMonitor monitor(run, {.resume_iteration = 400}, log);
//   monitor.iteration(record);   // after every step
//   monitor.sync();              // before a checkpoint is committed: the metrics are then as durable as it
//   is
//
// One thread at a time.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.h"
#include "lm/events/detectors/detector.h"
#include "lm/events/event_file.h"
#include "lm/events/iteration.h"
#include "lm/events/metrics_file.h"
#include "lm/events/mlperf_log.h"
#include "lm/events/run_folder.h"
#include "lm/events/run_observer.h"

namespace primus {

struct MonitorOptions {
  std::int64_t resume_iteration = 0;  // the last iteration the loaded checkpoint holds; 0: from the beginning
  int log_interval = 1;               // lines in the log; the metrics file always has every iteration
  int tensorboard_log_interval = 1;
  bool tensorboard = true;
  bool samples = false;                         // samples.jsonl
  std::optional<double> target_eval_loss = {};  // see reached_target()
  std::optional<MlperfOptions> mlperf = {};     // empty: no log of MLPerf's
  RunObserver* observer = nullptr;              // who else watches; must outlive the monitor
};

class TrainingMonitor {
 public:
  // Repairs the metrics files for the resumed iteration; throws FileError when it cannot. Beside it only
  // begin() throws, and begin_evaluation() where it stands for it.
  TrainingMonitor(const RunFolder& run, MonitorOptions options, Logger& log, Env& env = Env::posix());

  // Training begins: everything before the first step is done. Throws Error where MLPerf's log cannot be
  // written.
  void begin();
  void iteration(const IterationRecord& record);
  // A run that has nothing to do but to evaluate begins with it.
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
  bool sampled(std::int64_t iteration) const { return samples_ && iteration == last_sample_; }
  // The run ends here.
  void end();
  // False when the metrics may not survive a power failure (said in the log, too).
  bool sync();

  // Records lost by sinks so far: 0 in a healthy run.
  std::uint64_t dropped() const;

 private:
  // Says in the log that a sink fails, once until it works again.
  void report(bool& failing, bool worked, std::string_view name, MetricsFile& file);
  void report(bool& failing, bool worked, std::string_view name, const std::string& error);
  void report_mlperf(bool worked);
  void warn(const std::vector<RunWarning>& found);
  void write_events(std::int64_t step, std::span<const Scalar> scalars);

  MonitorOptions options_;
  Logger& log_;
  MetricsFile metrics_, evaluations_, warnings_;
  Detectors detectors_;
  std::map<std::pair<std::int64_t, std::string>, double> evaluated_;  // losses
  std::optional<MetricsFile> samples_;
  std::int64_t last_sample_ = -1;
  std::optional<EventFile> events_;  // empty: off
  std::optional<MlperfLog> mlperf_;
  bool metrics_failing_ = false, evaluations_failing_ = false, samples_failing_ = false,
       warnings_failing_ = false, events_failing_ = false, mlperf_failing_ = false;
};

}  // namespace primus
