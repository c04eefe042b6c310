// Signals that a launcher passes on to what it started.
#pragma once

#include <signal.h>

#include <optional>

#include "comm/rendezvous/socket.h"

namespace primus::launch {

// Signals that ask a program to stop.
inline bool asks_to_stop(int signal) {
  return signal == SIGINT || signal == SIGTERM || signal == SIGHUP || signal == SIGQUIT;
}

// While it lives, SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 are blocked in this thread, and come
// from a descriptor instead. A child has to set its mask back to before(). Throws Error(kIo).
class Signals {
 public:
  Signals();
  ~Signals();
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  int fd() const { return descriptor_.fd(); }  // readable where there is one
  const sigset_t& before() const { return before_; }
  std::optional<int> next();

 private:
  sigset_t before_;
  comm::Socket descriptor_;
};

}  // namespace primus::launch
