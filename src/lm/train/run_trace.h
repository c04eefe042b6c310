// Writes a rank's trace of some training steps (keys profile, profile_step_start, profile_step_end,
// profile_ranks): kernels, copies, communication, pipeline schedule and host work. The file is a Chrome trace
// in traces/steps-A-B/rank-N.json of the run's folder.
//
// The files of all ranks share one time axis, which is based on the clocks of the hosts. A trace viewer shows
// each rank as a process. A file is replaced by rename. The file is therefore always complete, even if the
// run ends early. A is the first traced step; a run that resumes between A and B therefore writes a new
// folder. Tracing does not change results. Training continues if a trace cannot be written; the failure is
// logged once.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

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
  // Returns whether the experiment requests a trace of rank `rank`.
  static bool wanted(const config::TrainerConfig& config, int rank);
  // Returns a warning for each rank of profile_ranks that a job of `world` ranks does not have.
  static std::vector<std::string> absent_ranks(const config::TrainerConfig& config, int world);

  RunTrace(const config::TrainerConfig& config, Options options, Logger& log);
  // Writes what was traced so far.
  ~RunTrace();
  RunTrace(const RunTrace&) = delete;
  RunTrace& operator=(const RunTrace&) = delete;

  // Wraps the device that the rank trains on, and keeps its description for the trace.
  std::unique_ptr<Device> watch(std::unique_ptr<Device> device);

  // turns() returns whether the trace begins or ends after `steps` completed steps. If so, turn() begins or
  // ends the trace. No kernel may be running during turn().
  bool turns(std::int64_t steps) const;
  void turn(std::int64_t steps);
  // Call this function after each step. After 1, 2, 4, 8, ... steps, the function writes the trace so far.
  void step_done(std::int64_t steps);
  // Ends the trace if it is still recording at the end of the run.
  void finish(std::int64_t steps);

  // Records host work from the construction to the destruction of this object. Does nothing if the trace is
  // null.
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
  bool failed_ = false, full_ = false;  // whether a failed write, or a full trace, was already logged
};

}  // namespace primus
