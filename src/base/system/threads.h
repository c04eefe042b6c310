// Starts threads. If the system refuses a thread, throws an Error, because the user can change the limits of
// threads and memory. If a thread of a group cannot be started, the threads of the group that were started
// before are joined.
#pragma once

#include <functional>
#include <string_view>
#include <thread>
#include <vector>

namespace primus {

// Starts a thread that runs body(). Throws Error(kInvalid) if the system refuses: "cannot start a thread that
// <purpose>: Resource temporarily unavailable".
std::thread start_thread(std::function<void()> body, std::string_view purpose);

// A group of threads that the destructor joins. Thread-safety: one owner.
class ThreadGroup {
 public:
  ThreadGroup() = default;
  ~ThreadGroup() { join(); }
  ThreadGroup(const ThreadGroup&) = delete;
  ThreadGroup& operator=(const ThreadGroup&) = delete;

  void start(std::function<void()> body, std::string_view purpose);
  void join();
  std::size_t size() const { return threads_.size(); }

 private:
  std::vector<std::thread> threads_;
};

}  // namespace primus
