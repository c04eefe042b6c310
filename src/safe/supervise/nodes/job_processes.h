// The processes of a supervised job: starting, signalling, sampling and ending them, and writing down what
// they do. Uses /proc.
//
// The job is one child process (`primus train ...`, which starts the ranks) and all of its descendants. While
// an object of this class exists, this process adopts descendants whose parent died (PR_SET_CHILD_SUBREAPER),
// so none is lost. If this process is killed, all of them end, too (GroupGuard, PR_SET_PDEATHSIG).
//
// Not thread-safe. Use it in the program's main thread.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/files/file.h"
#include "comm/rendezvous/socket.h"
#include "launch/direct/group_guard.h"
#include "safe/supervise/observation/hang_watch.h"

namespace primus::supervise {

class JobProcesses {
 public:
  // `mask`: the signals that the job blocks. Throws Error.
  explicit JobProcesses(const sigset_t& mask);
  // Ends the job.
  ~JobProcesses();
  JobProcesses(const JobProcesses&) = delete;
  JobProcesses& operator=(const JobProcesses&) = delete;

  // Starts the job, in a process group of its own and with /dev/null as standard input. `variables`: for its
  // environment, in addition to those of this process, which other threads may read meanwhile. Throws Error.
  void start(const std::vector<std::string>& command,
             const std::map<std::string, std::string>& variables = {});
  // A descriptor that becomes readable when the job's first process has ended; -1: there is no job.
  int ended_fd() const { return ended_.fd(); }
  pid_t pid() const { return pid_; }
  // Sends the signal to the job's first process, which passes it on to its ranks.
  void send(int signal_number) const;
  // Reaps adopted processes that have ended. Without it, a long run would collect them.
  void reap();
  // Kills processes that ranks have started and left behind: the adopted processes of the job and their
  // descendants. Waits up to 2 s for their ends.
  void end_orphans();
  // Kills all processes of the job and waits for them, up to 30 s. Returns the status of the first process as
  // waitpid() does. `remaining`: numbers of processes that did not end, because the kernel waits for a
  // device.
  int end_all(std::vector<pid_t>& remaining);
  // Reaps processes that end_all() could not end and that have ended since. Returns whether none remains.
  bool wait_for_end(std::vector<pid_t>& remaining);

  // All processes of the job.
  std::vector<pid_t> all() const;
  JobSample sample(double now);
  // Returns the rank of a process, from the variable RANK of its environment.
  static std::optional<int> rank_of(pid_t pid);
  // Returns text about each process and thread: state, processor time, what it waits for in the kernel, and
  // its stack if gdb or eu-stack is installed. Takes at most about 30 s.
  std::string describe() const;

 private:
  // Returns whether a child of this process belongs to the job.
  bool is_of_job(pid_t child) const;

  pid_t pid_ = -1;
  comm::Socket ended_;
  sigset_t mask_;
  std::unique_ptr<launch::GroupGuard> guard_;
  Traffic traffic_ = {};
  std::vector<pid_t> own_;  // children of this process that do not belong to the job: the guard
};

// Describes processes that could not be ended, in one sentence, and the next step.
std::string remaining_text(const std::vector<pid_t>& remaining);
inline constexpr const char* kHintForRemaining =
    "restart the machine, or the file server that it waits for; the same command then continues from the "
    "newest checkpoint";

// Returns the exit code for a status of waitpid(): 128 + N if signal N killed the process.
int exit_code_of(int status);

// Number of processes that the kernel has killed because memory was exhausted: in the memory control group of
// this process, otherwise on the machine since its start; nullopt: not known. Other jobs of the machine have
// other groups. `root`: the folder of /proc and /sys, for tests.
std::optional<std::int64_t> memory_kills(const std::string& root = "");

}  // namespace primus::supervise
