// The trace that a rank writes of some steps of its training run (keys profile, profile_step_start,
// profile_step_end, profile_ranks): kernels, copies, communication, the schedule's work and what the host
// does, as a Chrome trace in the run's folder, traces/steps-A-B/rank-N.json.
//
// The ranks' files have one time axis, by the clocks of their hosts, and each rank is a process in them. A
// file is replaced by rename, so it is a whole one whenever the run ends. A is the first step that is traced:
// a run that goes on within the window writes beside what it wrote before. What is computed stays the same. A
// trace that cannot be written is said once in the log, and stops nothing.
//
// One thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/files/file.h"
#include "base/log.h"
#include "config/trainer_config.h"
#include "device/device.h"
#include "turbo/devices/trace_recorder.h"

namespace primus {

class RunTrace {
 public:
  struct Options {
    Path folder = {};  // RunFolder::traces()
    int rank = 0;
    int world = 1;
    std::int64_t origin_us = 0;  // of the job: microseconds of the system's clock
    std::string facts = {};      // more fields of the object "primus" of the file
  };
  // Whether the experiment asks `rank` for a trace.
  static bool wanted(const config::TrainerConfig& config, int rank);

  RunTrace(const config::TrainerConfig& config, Options options, Logger& log);
  // Writes what there is.
  ~RunTrace();
  RunTrace(const RunTrace&) = delete;
  RunTrace& operator=(const RunTrace&) = delete;

  // The device for the rank to train on. Keeps the device's description for the trace.
  std::unique_ptr<Device> watch(std::unique_ptr<Device> device);

  // With `steps` done: whether the trace begins or ends here. No kernel may be on its
  // way when turn() is called.
  bool turns(std::int64_t steps) const;
  void turn(std::int64_t steps);
  // Between two steps of the trace: writes a part of what there is so far, now and then.
  void step_done(std::int64_t steps);
  // The run is over: ends a trace that is not over.
  void finish(std::int64_t steps);

  // What the host does while this lives. Null: nobody writes it down.
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

  std::int64_t start_, end_;  // steps done when the trace begins and ends
  Options options_;
  Logger& log_;
  std::shared_ptr<turbo::TraceRecorder> recorder_ = std::make_shared<turbo::TraceRecorder>();
  std::string device_;
  Path file_;
  double origin_ = 0;                   // of the steady clock
  std::int64_t first_ = 0, last_ = 0;   // steps of the trace, by their numbers in the log
  bool failed_ = false, full_ = false;  // which is said once
};

}  // namespace primus
