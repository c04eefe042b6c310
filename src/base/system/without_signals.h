// Blocks signals of a thread. New threads inherit the mask of the thread that starts them, and most signals
// are for a program's main thread.
#pragma once

#include <signal.h>

namespace primus {

// Blocks all signals of the calling thread while the object exists. Thread-safety: an object belongs to the
// thread that made it.
class WithoutSignals {
 public:
  WithoutSignals() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~WithoutSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  WithoutSignals(const WithoutSignals&) = delete;
  WithoutSignals& operator=(const WithoutSignals&) = delete;

 private:
  sigset_t before_{};
};

}  // namespace primus
