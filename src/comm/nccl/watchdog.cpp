#include "comm/nccl/watchdog.h"

#include <algorithm>

#include "base/system/threads.h"

namespace primus::comm::nccl {
namespace {

using namespace std::chrono_literals;

// Polling interval: short compared with any timeout, long compared with the cost of a poll.
constexpr auto kInterval = 5ms;

}  // namespace

Watchdog::Watchdog(std::shared_ptr<RankState> state) : state_(std::move(state)) {
  thread_ = start_thread([this] { watch(); }, "watches the collectives of a rank");
  subscription_ = state_->abort->subscribe([this](const std::string&, ErrorKind) { wake(); });
}

Watchdog::~Watchdog() {
  subscription_.reset();
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Watchdog::add(Watched& watched) {
  const std::lock_guard lock(watched_mutex_);
  watched_.push_back(&watched);
}

void Watchdog::remove(Watched& watched) noexcept {
  const std::lock_guard lock(watched_mutex_);
  std::erase(watched_, &watched);
  std::erase(ended_, &watched);
}

void Watchdog::wake() {
  {
    const std::lock_guard lock(mutex_);
    if (woken_) return;
    woken_ = true;
  }
  changed_.notify_all();
}

void Watchdog::watch() {
  for (;;) {
    bool busy = false;
    {
      const std::lock_guard lock(watched_mutex_);
      for (Watched* const watched : watched_) busy = watched->poll() || busy;
      if (state_->abort->aborted()) {
        // Communicators that are added later start no work, because the job is aborted.
        busy = false;
        for (Watched* const watched : watched_) {
          if (std::find(ended_.begin(), ended_.end(), watched) != ended_.end()) continue;
          if (watched->end()) {
            busy = true;
          } else {
            ended_.push_back(watched);
          }
        }
      }
    }
    std::unique_lock lock(mutex_);
    if (busy) {
      changed_.wait_for(lock, kInterval, [&] { return stop_; });
    } else {
      changed_.wait(lock, [&] { return woken_ || stop_; });
    }
    if (stop_) return;
    woken_ = false;
  }
}

}  // namespace primus::comm::nccl
