// Starts and watches the ranks of a job on this host: one process per rank, with torchrun's environment (see
// comm/rendezvous/environment.h).
//
// The first rank that fails ends the job. The other ranks have 0.2 s to end because of their lost connection.
// After this time they get SIGTERM, and half a second later SIGKILL. These signals go to all processes in the
// ranks' process groups. All ranks also end if this process dies, even if it is killed.
//
// Signals that ask this process to stop are passed on. After SIGINT, SIGTERM, SIGHUP or SIGQUIT the ranks
// have no deadline, because a step and a checkpoint may take minutes. A second signal ends them immediately.
// If a rank fails after the first signal, the others have the time `grace_after_signal`. Schedulers send a
// signal to the ranks and to this process. So a signal within a second after the first signal counts as the
// same request, except SIGINT. SIGUSR1 is the warning before a time limit: ranks save and stop.
//
// With `restarts`, the death of a rank by a signal does not end the job at once. The other processes destroy
// their models and connections and wait, the rank gets a new process, and the supervisor decides whether all
// ranks continue (rank_channel.h). If a surviving rank is not ready in time, it is killed and also gets a new
// process. If the supervisor decides to end, if a new process ends or is late, or after a signal that asks to
// stop, the job ends as without `restarts`.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/files/file.h"
#include "launch/ranks/rank_channel.h"

namespace primus::launch {

// Name of a variable with the number of a listening socket that this process has inherited for rank 0 of its
// first host: a supervisor of several machines holds the port that it has told the others.
inline constexpr const char* kListenerVariable = "PRIMUS_LAUNCHER_FD";

struct LaunchResult {
  int exit_code = 0;  // exit code of the rank that failed first (128 + signal number if it was killed), or 0
  int failed_rank = -1;   // rank in the job
  std::string failure;    // "rank 3 was killed by signal 9 (Killed)", and the last lines it wrote
  bool reported = false;  // RankRestarts::lost was called with this failure
};

// Restarts of single ranks.
struct RankRestarts {
  Channel* supervisor = nullptr;  // null: the first rank that fails ends the job. Must outlive the launch
  // Called when the living ranks have left the lost start, before the supervisor is asked.
  std::function<void(const LaunchResult& failure)> lost = {};
  std::function<void()> joined = {};  // called when all ranks have been told to join the new start
  std::chrono::milliseconds leave_time = std::chrono::seconds(2);  // for living ranks, to become ready
  std::chrono::milliseconds start_time = std::chrono::minutes(1);  // for new processes, to become ready
};

struct LocalLaunch {
  std::vector<std::string> command;                // the program, looked up in PATH, and its arguments
  std::map<std::string, std::string> environment;  // added to this process's environment
  int ranks = 1;                                   // number of ranks on this host

  // With several hosts: the number of hosts, this host's number, and the address of rank 0. With one host the
  // launcher chooses a free loopback port and a token.
  int hosts = 1, host = 0;
  std::string master_address = {};
  std::uint16_t master_port = 0;
  int listener = -1;  // on host 0: a socket that listens on this port already; -1: none

  // Standard output and error of each rank. Without a file, all ranks' lines are shown with the prefix "[rank
  // 3] ". With a file, lines are appended to the file, and only the first rank's lines are shown, without
  // prefix.
  std::function<Path(int rank)> output_file = {};
  int output = 1, error = 2;  // file descriptors for shown lines
  Path log_file = {};         // shown lines are also appended to this file; empty: no file

  // If false, the command is one process and not a rank. The process gets no rank environment, and its output
  // is shown unchanged.
  bool is_job = true;

  std::chrono::milliseconds patience = std::chrono::milliseconds(200);  // time between a failure and SIGTERM
  std::chrono::milliseconds grace = std::chrono::milliseconds(500);     // time between SIGTERM and SIGKILL
  // Time between a rank's failure and SIGKILL for ranks that were asked to stop, and may be saving.
  std::chrono::milliseconds grace_after_signal = std::chrono::seconds(30);
  // Time between the first signal and a line that says that the ranks are still stopping, and between such
  // lines.
  std::chrono::milliseconds notice_after_signal = std::chrono::seconds(10);
  RankRestarts restarts = {};  // of a job on one host
};

// Runs all ranks to the end. If a rank cannot be started, ends the other ranks and throws Error. Call this
// function from the program's main thread before other threads exist. It blocks signals in this thread, and
// ranks end when the calling thread ends.
LaunchResult run_local(const LocalLaunch& launch);

}  // namespace primus::launch
