// Starts the ranks of a job on this host: one process each, with the environment of torchrun (see
// comm/rendezvous/environment.h), and watches over them.
//
// The first rank that fails ends all: the others have 0.2 s to end by themselves, as those do that
// wait for it, then get SIGTERM, and SIGKILL half a second later. Whatever they started in their process
// groups ends with them, and all end when this process does, however it dies.
//
// Signals that ask this process to stop are passed on. After SIGINT, SIGTERM, SIGHUP and SIGQUIT the ranks
// have `grace_after_signal`; another one ends them at once. Schedulers signal twice, each process and its
// starter, so what comes within a second of the first counts as the same request, but for SIGINT. SIGUSR1 is
// the warning before a time limit: ranks save and stop, in their own time.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/files/file.h"

namespace primus::launch {

struct LocalLaunch {
  std::vector<std::string> command;                // the program, looked up in PATH, and its arguments
  std::map<std::string, std::string> environment;  // besides this process's own
  int ranks = 1;                                   // on this host

  // Several hosts: this one's number, and where rank 0 listens. With one host the launcher chooses a free
  // port of the loopback, and a token.
  int hosts = 1, host = 0;
  std::string master_address = {};
  std::uint16_t master_port = 0;

  // Standard output and error of each rank: shown with "[rank 3] " in front of each line; or, where a file is
  // named, appended to that file, and only the first rank's shown, as it is.
  std::function<Path(int rank)> output_file = {};
  int output = 1, error = 2;  // descriptors where it is shown
  Path log_file = {};         // what is shown is appended to this file, too; empty: to none

  // False: one process that is no rank. It gets no rank's environment, and its output is shown as it is.
  bool is_job = true;

  std::chrono::milliseconds patience = std::chrono::milliseconds(200);  // between a failure and SIGTERM
  std::chrono::milliseconds grace = std::chrono::milliseconds(500);     // between SIGTERM and SIGKILL
  // The same after a signal that was passed on: ranks may be saving.
  std::chrono::milliseconds grace_after_signal = std::chrono::seconds(30);
};

struct LaunchResult {
  int exit_code = 0;     // of the rank that failed first (128 + the signal that killed it), or 0
  int failed_rank = -1;  // of the job
  std::string failure;   // "rank 3 was killed by signal 9 (Killed)", and the last lines it wrote
};

// Runs all to the end. Throws Error when they cannot be started; then none runs. Call it from the program's
// main thread, before other threads exist: signals are blocked meanwhile, and ranks end with the calling
// thread.
LaunchResult run_local(const LocalLaunch& launch);

}  // namespace primus::launch
