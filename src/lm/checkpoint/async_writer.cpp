// AsyncWriter: saves in a background thread.
#include <sys/resource.h>

#include <utility>

#include "base/system/threads.h"
#include "lm/checkpoint/checkpoint.h"

namespace primus {

AsyncWriter::AsyncWriter(Path root, SaveOptions options, Env& env)
    : root_(std::move(root), options, env), thread_(start_thread([this] { run(); }, "saves checkpoints")) {}

AsyncWriter::~AsyncWriter() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void AsyncWriter::save(Snapshot snapshot, Sources sources) {
  wait();
  if (sources != Sources::kStable) {
    // Copies the tensors before this step's optimizer update in two cases: the tensors are in device memory,
    // or the previous save was late. A save is late if most of its data was still unread when the update
    // began.
    copy_first_ = sources == Sources::kOnDevice || buffer_.was_late();
    std::vector<TensorSource> all = snapshot.model;
    all.insert(all.end(), snapshot.optimizer.begin(), snapshot.optimizer.end());
    buffer_.lay_out(std::move(all));
  }
  {
    const std::lock_guard lock(mutex_);
    pending_ = std::move(snapshot);
    sources_ = sources;
    busy_ = true;
  }
  changed_.notify_all();
}

void AsyncWriter::wait_copied() {
  {
    std::unique_lock lock(mutex_);
    if (!busy_) return;
    if (sources_ == Sources::kStable) {
      changed_.wait(lock, [&] { return !busy_; });
      return;
    }
  }
  try {
    buffer_.before_change();
  } catch (...) {
    // The thread that reads the missing data gets the error and reports it. If no thread reads the data any
    // more, the copy is not needed.
  }
}

void AsyncWriter::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !busy_; });
  throw_pending();
}

void AsyncWriter::check() {
  const std::lock_guard lock(mutex_);
  throw_pending();
}

void AsyncWriter::throw_pending() {
  if (error_ != nullptr) std::rethrow_exception(std::exchange(error_, nullptr));
}

std::optional<std::int64_t> AsyncWriter::last_saved() const {
  const std::lock_guard lock(mutex_);
  return last_saved_;
}

WrittenBytes AsyncWriter::last_written() const {
  const std::lock_guard lock(mutex_);
  return last_written_;
}

void AsyncWriter::run() {
  // The writer thread has a lower priority than the training threads, so it runs while they are idle.
  // wait_copied() copies the data even if this thread does not run.
  constexpr int kNice = 10;
  // Sets the niceness of this thread only (Linux). Ignores a failure, which affects only speed.
  ::setpriority(PRIO_PROCESS, 0, kNice);
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stop_ || pending_; });
    if (!pending_) return;
    Snapshot snapshot = std::move(*pending_);
    pending_.reset();
    const bool live = sources_ != Sources::kStable;
    lock.unlock();
    std::exception_ptr error;
    try {
      if (live) {
        if (copy_first_) buffer_.copy();
        auto sources = buffer_.sources();
        const auto middle = sources.begin() + static_cast<std::ptrdiff_t>(snapshot.model.size());
        snapshot.optimizer.assign(std::make_move_iterator(middle), std::make_move_iterator(sources.end()));
        sources.erase(middle, sources.end());
        snapshot.model = std::move(sources);
      }
      root_.save(snapshot);
    } catch (...) {
      error = std::current_exception();
    }
    snapshot = {};
    lock.lock();
    error_ = error;
    last_saved_ = root_.last_saved();
    last_written_ = root_.last_written();
    busy_ = false;
    changed_.notify_all();
  }
}

}  // namespace primus
