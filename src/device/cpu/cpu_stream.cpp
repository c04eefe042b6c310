#include "device/cpu/cpu_stream.h"

#include <cassert>
#include <cstring>
#include <utility>
#include <vector>

#include "base/system/rank_waits.h"
#include "base/system/threads.h"

namespace primus::cpu {
namespace {

// With fewer bytes, a second core does not make a copy faster.
constexpr std::int64_t kParallelBytes = 1 << 20;

}  // namespace

// ---- Events -------------------------------------------------------------------------------------

std::int64_t CpuEvent::State::record() {
  const std::lock_guard lock(mutex);
  return ++recorded;
}

std::int64_t CpuEvent::State::latest() {
  const std::lock_guard lock(mutex);
  return recorded;
}

void CpuEvent::State::reach(std::int64_t count, const std::exception_ptr& of_stream) {
  {
    const std::lock_guard lock(mutex);
    if (count > reached) {
      reached = count;
      failure = of_stream;
    }
  }
  reached_changed.notify_all();
}

void CpuEvent::State::wait_for(std::int64_t count) {
  std::unique_lock lock(mutex);
  reached_changed.wait(lock, [&] { return reached >= count; });
  if (failure) std::rethrow_exception(failure);
}

bool CpuEvent::reached() const {
  const std::lock_guard lock(state_->mutex);
  return state_->reached >= state_->recorded;
}

void CpuEvent::synchronize() { state_->wait_for(state_->latest()); }

// ---- The inline stream --------------------------------------------------------------------------

void InlineStream::launch(KernelFunction kernel, const void* arguments, std::size_t argument_bytes) {
  assert(argument_bytes <= kMaxArgumentBytes);
  (void)argument_bytes;
  kernel(context_, arguments);
}

void InlineStream::copy_to_device(void* device, const void* host, std::int64_t bytes) {
  copy_on_device(device, host, bytes);
}

void InlineStream::copy_to_host(void* host, const void* device, std::int64_t bytes) {
  copy_on_device(host, device, bytes);
}

void InlineStream::copy_on_device(void* to, const void* from, std::int64_t bytes) {
  context_.pool().parallel_for(bytes, kParallelBytes, [&](std::int64_t begin, std::int64_t end, int) {
    std::memcpy(static_cast<char*>(to) + begin, static_cast<const char*>(from) + begin,
                static_cast<std::size_t>(end - begin));
  });
}

void InlineStream::fill_zero(void* device, std::int64_t bytes) {
  context_.pool().parallel_for(bytes, kParallelBytes, [&](std::int64_t begin, std::int64_t end, int) {
    std::memset(static_cast<char*>(device) + begin, 0, static_cast<std::size_t>(end - begin));
  });
}

void InlineStream::record(Event& event) {
  auto& state = *static_cast<CpuEvent&>(event).state_;
  state.reach(state.record());
}

void InlineStream::wait(Event& event) {
  // A compute stream waits only for collectives and transfers of the rank's other streams.
  const RankWait wait;
  event.synchronize();
}

// ---- The worker stream --------------------------------------------------------------------------

WorkerStream::WorkerStream(int threads, std::ptrdiff_t address_offset)
    : offset_(address_offset),
      pool_(threads),
      context_(pool_, address_offset),
      worker_(start_thread([this] { work(); }, "runs a stream of the device")) {}

WorkerStream::~WorkerStream() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  worker_.join();
}

void WorkerStream::enqueue(std::function<void()> run, bool always) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back({std::move(run), always});
  }
  changed_.notify_all();
}

void WorkerStream::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stop_ || !queue_.empty(); });
    if (queue_.empty()) return;
    Task task = std::move(queue_.front());
    queue_.pop_front();
    if (failure_ && !task.always) {
      // synchronize() waits until the queue is empty, so this call is needed even if the last work was
      // dropped.
      if (queue_.empty()) changed_.notify_all();
      continue;
    }
    busy_ = true;
    lock.unlock();
    std::exception_ptr failure;
    try {
      task.run();
    } catch (...) {
      failure = std::current_exception();
    }
    task.run = nullptr;
    lock.lock();
    busy_ = false;
    if (failure && !failure_) failure_ = failure;
    if (queue_.empty()) changed_.notify_all();
  }
}

void WorkerStream::synchronize() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return queue_.empty() && !busy_; });
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

char* WorkerStream::translate(const void* device_address) const {
  return static_cast<char*>(const_cast<void*>(device_address)) + offset_;
}

void WorkerStream::launch(KernelFunction kernel, const void* arguments, std::size_t argument_bytes) {
  assert(argument_bytes <= kMaxArgumentBytes);
  const auto* bytes = static_cast<const std::byte*>(arguments);
  enqueue([this, kernel, copy = std::vector<std::byte>(bytes, bytes + argument_bytes)] {
    kernel(context_, copy.data());
  });
}

void WorkerStream::copy_to_device(void* device, const void* host, std::int64_t bytes) {
  enqueue([=, this] { std::memcpy(translate(device), host, static_cast<std::size_t>(bytes)); });
}

void WorkerStream::copy_to_host(void* host, const void* device, std::int64_t bytes) {
  enqueue([=, this] { std::memcpy(host, translate(device), static_cast<std::size_t>(bytes)); });
}

void WorkerStream::copy_on_device(void* to, const void* from, std::int64_t bytes) {
  enqueue([=, this] { std::memcpy(translate(to), translate(from), static_cast<std::size_t>(bytes)); });
}

void WorkerStream::fill_zero(void* device, std::int64_t bytes) {
  enqueue([=, this] { std::memset(translate(device), 0, static_cast<std::size_t>(bytes)); });
}

void WorkerStream::record(Event& event) {
  auto state = static_cast<CpuEvent&>(event).state_;
  const std::int64_t count = state->record();
  enqueue(
      [this, state, count] {
        std::exception_ptr failure;
        {
          const std::lock_guard lock(mutex_);
          failure = failure_;
        }
        state->reach(count, failure);
      },
      true);
}

void WorkerStream::wait(Event& event) {
  auto state = static_cast<CpuEvent&>(event).state_;
  const std::int64_t count = state->latest();
  enqueue([state, count] { state->wait_for(count); }, true);
}

}  // namespace primus::cpu
