// Writes a rank's trace of some training steps (keys profile, profile_step_start, profile_step_end,
// profile_ranks): kernels, copies, communication, schedule and host work, as a Chrome trace in
// traces/steps-A-B/rank-N.json of the run's folder.
//
// All ranks' files share one time axis, based on their hosts' clocks; in the traces each rank is shown as a
// process. A file is replaced by rename, so the file is complete whenever the run ends. A is the first traced
// step, so a run that resumes within the window writes a new folder next to the earlier one. Tracing does not
// change results. If a trace cannot be written, the log reports it once, and training continues.
//
// One thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/files/file.h"
#include "base/log.h"
#include "device/device.h"
#include "turbo/devices/trace_recorder.h"

namespace primus::config {
struct TrainerConfig;
}

namespace primus {

class RunTrace {
 public:
  struct Options {
    Path folder = {};  // folder of the trace (RunFolder::traces())
    int rank = 0;
    int world = 1;
    std::int64_t origin_us = 0;  // start of the job in microseconds of the system clock
    std::string facts = {};      // additional fields of the file's object "primus"
  };
  // Whether the experiment requests a trace from `rank`.
  static bool wanted(const config::TrainerConfig& config, int rank);

  RunTrace(const config::TrainerConfig& config, Options options, Logger& log);
  // Writes the trace so far.
  ~RunTrace();
  RunTrace(const RunTrace&) = delete;
  RunTrace& operator=(const RunTrace&) = delete;

  // Wraps the device that the rank trains on, and keeps its description for the trace.
  std::unique_ptr<Device> watch(std::unique_ptr<Device> device);

  // turns() returns whether the trace begins or ends after `steps` completed steps. turn() begins or ends it;
  // no kernel may be in flight then.
  bool turns(std::int64_t steps) const;
  void turn(std::int64_t steps);
  // Call it after each step. Writes the trace so far after 1, 2, 4, 8, ... steps.
  void step_done(std::int64_t steps);
  // Ends a trace that is still recording when the run ends.
  void finish(std::int64_t steps);

  // Records host work that lasts as long as this object. With a null trace it does nothing.
  class HostWork {
   public:
    HostWork(RunTrace* trace, std::string_view what, std::int64_t number = -1);
    ~HostWork();
    HostWork(const HostWork&) = delete;
    HostWork& operator=(const HostWork&) = delete;

   private:
    turbo::TraceRecorder* recorder_ = nullptr;
    turbo::TraceRecorder::Span* span_ = nullptr;
  };

 private:
  void write(bool complete);

  std::int64_t start_, end_;  // numbers of completed steps at which the trace begins and ends
  Options options_;
  Logger& log_;
  std::shared_ptr<turbo::TraceRecorder> recorder_ = std::make_shared<turbo::TraceRecorder>();
  std::string device_;
  Path file_;
  double origin_ = 0;                   // start of the time axis, in seconds of the steady clock
  std::int64_t first_ = 0, last_ = 0;   // first and last step of the trace, as numbered in the log
  bool failed_ = false, full_ = false;  // failures that were already logged
};

}  // namespace primus
