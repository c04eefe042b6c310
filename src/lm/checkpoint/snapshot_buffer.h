// What this rank holds of a checkpoint's tensors, as it was when the save began: read from where the tensors
// lie while they stay as they are, and from a copy in host memory afterwards.
//
// A save that is read before the tensors change copies nothing. The copy's memory is asked for at the first
// save and reused by all later ones; its pages are taken when something is copied.
//
// Errors: Error (kIo) when there is not enough memory. Thread-safety: lay_out() while nobody reads or copies.
// Then one thread may read, and any number may call copy() at once and share the work.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <span>
#include <vector>

#include "base/system/large_memory.h"
#include "lm/checkpoint/safetensors.h"

namespace primus {

class SnapshotBuffer {
 public:
  // Bytes copied at a time: small enough that a helper soon finds work, large enough to stream.
  static constexpr std::uint64_t kPieceBytes = 4U << 20;

  // Plans the snapshot of `sources`, whose tensors must stay unchanged until copy() returned.
  void lay_out(std::vector<TensorSource> sources);
  // Copies what is still to be read, by this thread or others. Throws what a source's `fill` threw.
  void copy();
  // Call it whenever the tensors are about to change: the first call notes how much of them was read by then,
  // and copies the rest.
  void before_change();
  // Whether less than half of the tensors was read when they first changed.
  bool was_late() const;
  // The sources given to lay_out(), as they were then. Each tensor is read once from front to back, one whose
  // order in the file is another also again. Valid until the next lay_out().
  std::vector<TensorSource> sources();

 private:
  enum class State {
    kLive,     // tensors are read from where they lie
    kCopying,  // nobody reads
    kCopied,   // what was not read yet is in the buffer
  };
  struct Piece {
    std::size_t source;
    std::uint64_t offset, size;  // within the source
    std::uint64_t at;            // within the buffer
  };
  void reserve(std::uint64_t bytes);
  void read(std::size_t source, std::uint64_t offset, std::span<std::byte> out);
  void copy_pieces();
  bool was_read(const Piece& piece) const;

  LargeMemory memory_;
  std::uint64_t capacity_ = 0;
  std::vector<TensorSource> sources_;
  std::vector<std::uint64_t> starts_;  // of each source in the buffer
  std::vector<Piece> pieces_;
  std::atomic<std::size_t> next_{0};
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_:
  State state_ = State::kLive;
  bool reading_ = false;  // from where the tensors lie
  bool late_ = false;     // see was_late()
  bool judged_ = false;   // late_ is known
  // Bytes of each source. Stays as it is while copies are made, who read it without the lock.
  std::vector<std::uint64_t> read_;
  std::size_t done_ = 0;  // pieces
  std::exception_ptr error_;
};

}  // namespace primus
