// Stops a run: asks its ranks to save and end, by a signal, Slurm or Kubernetes. The run's newest start
// records where it runs (lm/events/run_job.h). Not thread-safe.
#pragma once

#include <optional>
#include <string>

#include "lm/events/run_job.h"
#include "safe/jobs/scheduler.h"

namespace primus::jobs {

class StopRequest {
 public:
  // Finds the job of the run in folder `target`, or the job that 'primus jobs' calls `target`. Throws Error:
  // kInvalid if the run does not run, or runs where this machine cannot reach it; kDependency if the
  // scheduler's tool is missing; kIo if the tool fails.
  StopRequest(const std::string& target, const Tools& tools);

  // Asks the job to save and end; with `now`, ends it without saving. Asks each start of a run only once, and
  // records this in RUN/.stop, with whether it was to end without saving. Returns what was done, in one
  // sentence. Throws Error.
  std::string send(bool now);
  static constexpr const char* kRequestFile = ".stop";
  // Returns whether all processes of the run that this machine can see have ended.
  bool has_ended() const;
  // Folder of the run; empty if the target is a job.
  const Path& run() const { return run_; }

 private:
  void find_local(const std::string& name);
  bool find_waiting(const std::string& name);
  bool was_sent() const;
  std::string ask(bool now) const;
  std::string end_machines() const;

  const Tools& tools_;
  Path run_;
  RunJob job_;
  double started_ = 0;  // time of the start that is stopped, in seconds since 1970
  std::optional<ScheduledJob> scheduled_;
};

// Returns the process that a signal to stop the run must reach, if the run runs on this machine: the recorded
// process while it is the one that was recorded, or else the holder of the run's lock.
std::optional<ProcessIdentity> local_process(const Path& run, const std::optional<RunJob>& job);

}  // namespace primus::jobs
