#include "cli/train/stop_signal.h"

#include <csignal>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <string>

#include "base/system/child_groups.h"

namespace primus::cli {
namespace {

std::atomic<bool> stop_requested{false};
static_assert(std::atomic<bool>::is_always_lock_free);

std::atomic<std::int64_t> requested_at{0};  // nanoseconds of the monotonic clock
static_assert(std::atomic<std::int64_t>::is_always_lock_free);

std::atomic<int> first_signal{0};

std::atomic<bool> second_ends{true};

// Nanoseconds in which two signals count as one request: wrappers such as timeout(1) signal the process and
// then its group.
constexpr std::int64_t kSameRequest = 100'000'000;

// Sets the flag. A second signal, of any kind, ends the process with the default action.
extern "C" void request_stop(int signal_number) {
  timespec clock{};
  clock_gettime(CLOCK_MONOTONIC, &clock);
  const std::int64_t now = clock.tv_sec * std::int64_t{1'000'000'000} + clock.tv_nsec;
  std::int64_t first = 0;
  if (requested_at.compare_exchange_strong(first, now)) first = now;
  int none = 0;
  first_signal.compare_exchange_strong(none, signal_number);
  stop_requested.store(true, std::memory_order_relaxed);
  if (now - first < kSameRequest || !second_ends.load(std::memory_order_relaxed)) return;
  kill_child_groups();
  std::signal(signal_number, SIG_DFL);
  raise(signal_number);
}

}  // namespace

const std::atomic<bool>& catch_stop_signals(SecondSignal second) {
  second_ends.store(second == SecondSignal::kEnds, std::memory_order_relaxed);
  struct sigaction action = {};
  action.sa_handler = request_stop;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  sigaction(SIGUSR1, &action, nullptr);
  struct sigaction hangup = {};
  if (sigaction(SIGHUP, nullptr, &hangup) == 0 && hangup.sa_handler != SIG_IGN) {
    sigaction(SIGHUP, &action, nullptr);
  }
  std::signal(SIGPIPE, SIG_IGN);
  return stop_requested;
}

std::string stop_signal_name() {
  const int number = first_signal.load();
  const char* const name = number == 0 ? nullptr : ::sigabbrev_np(number);
  return name ? "SIG" + std::string(name) : std::string();
}

}  // namespace primus::cli
