#include "lm/checkpoint/snapshot_buffer.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "base/checked.h"

namespace primus {
namespace {

constexpr std::uint64_t kAlignment = 64;       // of each tensor
constexpr std::uint64_t kHugePage = 2U << 20;  // of the whole: fewer page faults at the first save

std::uint64_t round_up(std::uint64_t value, std::uint64_t to) {
  return checked_add(value, to - 1, "snapshot size") / to * to;
}

}  // namespace

void SnapshotBuffer::Free::operator()(std::byte* memory) const { std::free(memory); }

void SnapshotBuffer::reserve(std::uint64_t bytes) {
  if (bytes <= capacity_) return;
  memory_.reset();  // first, so that the old and the new are never held together
  capacity_ = 0;
  const std::uint64_t size = round_up(bytes, kHugePage);
  memory_.reset(static_cast<std::byte*>(std::aligned_alloc(kHugePage, size)));
  if (memory_ == nullptr) {
    throw Error(ErrorKind::kIo, fmt::format("no memory for the copy of a checkpoint: {} bytes", size),
                "train with a smaller model, or on a machine with more memory");
  }
  ::madvise(memory_.get(), size, MADV_HUGEPAGE);  // advice: small pages do as well
  capacity_ = size;
}

void SnapshotBuffer::lay_out(std::vector<TensorSource> sources) {
  sources_ = std::move(sources);
  starts_.clear();
  chunks_.clear();
  std::uint64_t at = 0;
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    const std::uint64_t bytes = sources_[i].held_bytes();
    starts_.push_back(at);
    for (std::uint64_t offset = 0; offset < bytes; offset += kChunkBytes) {
      chunks_.push_back(
          {.source = i, .offset = offset, .size = std::min(kChunkBytes, bytes - offset), .at = at + offset});
    }
    at = round_up(checked_add(at, bytes, "snapshot size"), kAlignment);
  }
  reserve(at);
  next_ = 0;
  done_ = 0;
  error_ = nullptr;
}

void SnapshotBuffer::copy() {
  std::size_t copied_here = 0;
  std::exception_ptr error;
  for (;;) {
    const std::size_t i = next_.fetch_add(1, std::memory_order_relaxed);
    if (i >= chunks_.size()) break;
    const Chunk& chunk = chunks_[i];
    const TensorSource& source = sources_[chunk.source];
    ++copied_here;
    try {
      if (source.data != nullptr) {
        std::memcpy(memory_.get() + chunk.at, static_cast<const std::byte*>(source.data) + chunk.offset,
                    chunk.size);
      } else {
        source.fill(chunk.offset, {memory_.get() + chunk.at, chunk.size});
      }
    } catch (...) {
      error = std::current_exception();  // the chunk counts as copied, or others would wait for ever
    }
  }
  std::unique_lock lock(mutex_);
  done_ += copied_here;
  if (error != nullptr) error_ = error;
  if (done_ == chunks_.size()) all_copied_.notify_all();
  all_copied_.wait(lock, [&] { return done_ == chunks_.size(); });
  if (error_ != nullptr) std::rethrow_exception(error_);
}

std::vector<TensorSource> SnapshotBuffer::copied() const {
  std::vector<TensorSource> result;
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    TensorSource& copy = result.emplace_back(sources_[i]);
    copy.data = memory_.get() + starts_[i];
    copy.fill = {};
  }
  return result;
}

}  // namespace primus
