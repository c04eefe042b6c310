#include "cli/stop_signal.h"

#include <csignal>

namespace primus::cli {
namespace {

std::atomic<bool> stop_requested{false};
static_assert(std::atomic<bool>::is_always_lock_free);

// The second one, whichever it is, ends the process as if nobody had listened.
extern "C" void request_stop(int signal_number) {
  if (!stop_requested.exchange(true, std::memory_order_relaxed)) return;
  std::signal(signal_number, SIG_DFL);
  raise(signal_number);
}

}  // namespace

const std::atomic<bool>& catch_stop_signals() {
  struct sigaction action = {};
  action.sa_handler = request_stop;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  return stop_requested;
}

}  // namespace primus::cli
