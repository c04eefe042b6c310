// Starting threads where the system may refuse: limits on threads and memory are the user's to change, so a
// refusal is an Error that says so, and no thread is left behind.
#pragma once

#include <functional>
#include <string_view>
#include <thread>
#include <vector>

namespace primus {

// A thread that runs body(). Error(kInvalid) where the system starts no more: "cannot start a thread that
// <purpose>: Resource temporarily unavailable".
std::thread start_thread(std::function<void()> body, std::string_view purpose);

// Threads that end together; the destructor waits for them. Thread-safety: one owner.
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
