// Runs a function with a time limit. If the system does not answer (a file system with a dead server, a
// hanging driver), the result is a failure after that time. Thread-safe.
#pragma once

#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "base/error.h"
#include "base/system/threads.h"

namespace primus::preflight {

template <class T>
struct Guarded {
  std::optional<T> value;  // the function's result
  std::string problem;     // without a value: the exception's text, or a text about the missing answer
  bool timed_out = false;  // the time limit has passed and the thread still runs
};

// Runs `work` on a separate thread. At the time limit, this thread is abandoned but may still run. So `work`
// must own all objects that it uses.
template <class T>
Guarded<T> guarded(std::function<T()> work, std::chrono::milliseconds time) {
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    bool done = false;
    Guarded<T> result;
  };
  const auto state = std::make_shared<State>();
  start_thread(
      [state, work = std::move(work)]() mutable {
        Guarded<T> result;
        try {
          result.value = work();
        } catch (const Error& error) {
          result.problem =
              error.hint().empty() ? error.what() : std::string(error.what()) + "; " + error.hint();
        } catch (const std::exception& error) {
          result.problem = error.what();
        }
        work = nullptr;
        const std::lock_guard lock(state->mutex);
        state->result = std::move(result);
        state->done = true;
        state->changed.notify_all();
      },
      "runs a check")
      .detach();
  std::unique_lock lock(state->mutex);
  if (state->changed.wait_for(lock, time, [&] { return state->done; })) return std::move(state->result);
  Guarded<T> late;
  late.timed_out = true;
  late.problem = "no answer within " + std::to_string(time.count() / 1000) + " s";
  return late;
}

}  // namespace primus::preflight
