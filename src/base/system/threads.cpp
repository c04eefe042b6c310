#include "base/system/threads.h"

#include <string>
#include <system_error>
#include <utility>

#include "base/error.h"

namespace primus {

std::thread start_thread(std::function<void()> body, std::string_view purpose) {
  try {
    return std::thread(std::move(body));
  } catch (const std::system_error& error) {
    throw invalid("cannot start a thread that " + std::string(purpose) + ": " + error.code().message(),
                  "the system allows no more threads or memory: use fewer threads, or raise the limits "
                  "('ulimit -u' limits processes and threads; 'ulimit -v' limits memory in KiB, and each "
                  "thread takes the stack of 'ulimit -s')");
  }
}

void ThreadGroup::start(std::function<void()> body, std::string_view purpose) {
  // Reserves first, so that push_back cannot fail once the thread has started.
  threads_.reserve(threads_.size() + 1);
  threads_.push_back(start_thread(std::move(body), purpose));
}

void ThreadGroup::join() {
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

}  // namespace primus
