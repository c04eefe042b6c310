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
  ender_ = start_thread([this] { end_all(); }, "ends the collectives of a rank");
  try {
    thread_ = start_thread([this] { watch(); }, "watches the collectives of a rank");
  } catch (...) {
    stop_ender();
    throw;
  }
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
  stop_ender();
}

void Watchdog::stop_ender() {
  {
    const std::lock_guard lock(watched_mutex_);
    ender_stops_ = true;
  }
  end_now_.notify_all();
  ender_.join();
}

void Watchdog::add(Watched& watched) {
  const std::lock_guard lock(watched_mutex_);
  watched_.push_back(&watched);
  ended_.reserve(watched_.size());  // end_all() may not fail
}

void Watchdog::remove(Watched& watched) noexcept {
  std::unique_lock lock(watched_mutex_);
  // While end() of the object runs, the watchdog still calls its release().
  ended_one_.wait(lock, [&] { return ending_ != &watched; });
  std::erase(watched_, &watched);
  std::erase(ended_, &watched);
}

void Watchdog::end_all() noexcept {
  std::unique_lock lock(watched_mutex_);
  for (;;) {
    end_now_.wait(lock, [&] { return ends_ || ender_stops_; });
    if (ender_stops_) return;
    const auto next = std::ranges::find_if(
        watched_, [&](Watched* one) { return std::ranges::find(ended_, one) == ended_.end(); });
    if (next == watched_.end()) {
      ends_ = false;
      continue;
    }
    ending_ = *next;
    ended_.push_back(ending_);
    lock.unlock();
    ending_->end();
    lock.lock();
    ending_ = nullptr;
    ended_one_.notify_all();
  }
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
        for (Watched* const watched : watched_) busy = watched->release() || busy;
        if (ended_.size() < watched_.size()) {
          ends_ = true;
          end_now_.notify_all();
        }
        busy = busy || ends_;
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
