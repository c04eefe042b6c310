// Helpers for tests of long runs, which last until the test ends them.
#pragma once

#include <chrono>
#include <string>
#include <thread>
#include <vector>

namespace primus::test {

inline const std::vector<std::string> kLong = {"train_iters=100000", "save_interval=100000"};

// Waits for `condition`. Returns false after a limit that is long enough for a busy machine.
template <class Condition>
bool wait_until(const Condition& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace primus::test
