#include "lm/checkpoint/snapshot_buffer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/checked.h"

namespace primus {
namespace {

constexpr std::uint64_t kAlignment = 64;  // alignment of each tensor

std::uint64_t round_up(std::uint64_t value, std::uint64_t to) {
  return checked_add(value, to - 1, "snapshot size") / to * to;
}

void take(const TensorSource& source, std::uint64_t offset, std::span<std::byte> out) {
  if (source.data != nullptr) {
    std::memcpy(out.data(), static_cast<const std::byte*>(source.data) + offset, out.size());
  } else {
    source.fill(offset, out);
  }
}

}  // namespace

void SnapshotBuffer::reserve(std::uint64_t bytes) {
  if (bytes <= capacity_) return;
  memory_.reset();  // freed before the allocation of the new buffer, to limit the memory use
  capacity_ = 0;
  memory_ = allocate_large(bytes);
  if (!memory_) {
    throw Error(ErrorKind::kIo,
                fmt::format("not enough memory for the copy of a checkpoint: {} bytes", bytes),
                "train with a smaller model, or on a machine with more memory");
  }
  capacity_ = bytes;
}

void SnapshotBuffer::lay_out(std::vector<TensorSource> sources) {
  sources_ = std::move(sources);
  starts_.clear();
  pieces_.clear();
  read_.assign(sources_.size(), 0);
  std::uint64_t at = 0;
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    const std::uint64_t bytes = sources_[i].held_bytes();
    starts_.push_back(at);
    for (std::uint64_t offset = 0; offset < bytes; offset += kPieceBytes) {
      pieces_.push_back(
          {.source = i, .offset = offset, .size = std::min(kPieceBytes, bytes - offset), .at = at + offset});
    }
    at = round_up(checked_add(at, bytes, "snapshot size"), kAlignment);
  }
  reserve(at);
  next_ = 0;
  state_ = State::kLive;
  late_ = judged_ = false;
  done_ = 0;
  error_ = nullptr;
}

void SnapshotBuffer::before_change() {
  {
    const std::lock_guard lock(mutex_);
    if (!judged_) {
      const auto unread =
          std::ranges::count_if(pieces_, [&](const Piece& piece) { return !was_read(piece); });
      late_ = 2 * static_cast<std::size_t>(unread) > pieces_.size();
      judged_ = true;
    }
  }
  copy();
}

bool SnapshotBuffer::was_late() const {
  const std::lock_guard lock(mutex_);
  return late_;
}

bool SnapshotBuffer::was_read(const Piece& piece) const {
  return piece.offset + piece.size <= read_[piece.source];
}

void SnapshotBuffer::copy() {
  {
    std::unique_lock lock(mutex_);
    if (state_ == State::kLive) state_ = State::kCopying;
    changed_.wait(lock, [&] { return !reading_; });
  }
  copy_pieces();
}

void SnapshotBuffer::copy_pieces() {
  std::size_t done_here = 0;
  std::exception_ptr error;
  for (;;) {
    const std::size_t i = next_.fetch_add(1, std::memory_order_relaxed);
    if (i >= pieces_.size()) break;
    const Piece& piece = pieces_[i];
    const TensorSource& source = sources_[piece.source];
    ++done_here;
    if (was_read(piece) && source.order.same()) continue;
    try {
      take(source, piece.offset, {memory_.get() + piece.at, piece.size});
    } catch (...) {
      error = std::current_exception();  // counts the piece as copied, because other threads would otherwise
                                         // wait forever
    }
  }
  std::unique_lock lock(mutex_);
  done_ += done_here;
  if (error != nullptr) error_ = error;
  if (done_ == pieces_.size()) {
    state_ = State::kCopied;
    changed_.notify_all();
  }
  changed_.wait(lock, [&] { return state_ == State::kCopied; });
  if (error_ != nullptr) std::rethrow_exception(error_);
}

void SnapshotBuffer::read(std::size_t source, std::uint64_t offset, std::span<std::byte> out) {
  const auto done = [&](std::uint64_t until) {
    {
      const std::lock_guard lock(mutex_);
      reading_ = false;
      read_[source] = std::max(read_[source], until);
    }
    changed_.notify_all();
  };
  bool live = false;
  {
    const std::lock_guard lock(mutex_);
    live = reading_ = state_ == State::kLive;
  }
  try {
    if (live) {
      take(sources_[source], offset, out);
    } else {
      copy_pieces();  // takes part in the remaining copies, if there are any
      std::memcpy(out.data(), memory_.get() + starts_[source] + offset, out.size());
    }
  } catch (...) {
    done(0);
    throw;
  }
  done(offset + out.size());
}

std::vector<TensorSource> SnapshotBuffer::sources() {
  std::vector<TensorSource> result;
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    TensorSource& source = result.emplace_back(sources_[i]);
    source.data = nullptr;
    source.fill = [this, i](std::uint64_t offset, std::span<std::byte> out) { read(i, offset, out); };
  }
  return result;
}

}  // namespace primus
