// Signals that a launcher passes on to its processes.
#pragma once

#include <signal.h>

#include <optional>

#include "comm/rendezvous/socket.h"

namespace primus::launch {

// Signals that ask a program to stop.
inline bool asks_to_stop(int signal) {
  return signal == SIGINT || signal == SIGTERM || signal == SIGHUP || signal == SIGQUIT;
}

// Returns whether a signal such as SIGSTOP has stopped the process. Reads /proc.
bool is_stopped(pid_t process);

// During the lifetime of this object, SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 are blocked in
// this thread, but not a SIGHUP that is ignored (nohup). A descriptor provides these signals instead.
// Children must restore the signal mask that before() returns. Throws Error(kIo).
class Signals {
 public:
  Signals();
  ~Signals();
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  int fd() const { return descriptor_.fd(); }  // becomes readable when a signal is pending
  const sigset_t& before() const { return before_; }
  std::optional<int> next();

 private:
  sigset_t before_;
  comm::Socket descriptor_;
};

}  // namespace primus::launch
