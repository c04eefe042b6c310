// Supervises a training job on this machine: starts it as a child, watches its events and processes, and
// starts it again from its newest checkpoint after a fault. After the loss of a rank, only this rank gets a
// new process, if the other ranks can continue (rank restart). docs/supervise.md is the page for users.
//
// The decisions are in classes without clock and files: RecoveryPolicy (whether and when to restart),
// HangWatch (whether the job hangs), Attempt (how it ended), TimeAccount (where the time went). This function
// connects them with the operating system. The job itself needs no code for its supervision.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/files/file.h"
#include "lm/events/run_event.h"
#include "safe/supervise/observation/hang_watch.h"
#include "safe/supervise/recovery/recovery_policy.h"

namespace primus::supervise {

struct SupervisedJob {
  std::vector<std::string> command;  // the program and its arguments
  // Returns the command that continues the run from its newest checkpoint, so many seconds after supervise()
  // was called. Used once the run has begun.
  std::function<std::vector<std::string>(double seconds)> restart;
  Path run;            // folder of the run
  Path checkpoints;    // folder of its checkpoints
  std::string module;  // name of the folder in RUN/logs with the ranks' logs
  int ranks = 1;       // on this machine
  // Whether the death of a rank lets the other processes of the job stay (launch/ranks/rank_channel.h).
  bool restarts_ranks = false;
  RecoveryLimits recovery = {};
  HangLimits hang = {};
  // Shows a line to the user. Must not throw.
  std::function<void(const std::string&)> say = {};
  // Reports an event of supervision_news.h to people. May be empty; must not throw or wait.
  std::function<void(const RunEvent&)> tell = {};
};

// Runs the job to its end. Returns its exit code (128 + N if signal N killed it), or 3 if it hung.
//
// SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 are passed on to the job, each once. After a request
// to stop, the job is not restarted. Throws Error if a process cannot be started. Call it from the program's
// main thread before other threads exist.
int supervise(const SupervisedJob& job);

// Waits until no process trains in the folder. Throws Error(kInvalid) after a few seconds.
void wait_for_lock(const Path& run);

}  // namespace primus::supervise
