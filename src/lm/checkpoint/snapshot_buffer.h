// This rank's part of a checkpoint's tensors, with their contents at the start of the save. Until the tensors
// change, data is read from them in place; afterwards it is read from a copy in host memory.
//
// Nothing is copied if everything is read before the tensors change. The copy's address space is reserved by
// the first save and reused by later saves; pages are allocated when data is copied.
//
// Errors: Error (kIo) if memory is insufficient. Thread-safety: lay_out() must not run during reads or
// copies. Afterwards, one thread may read, and any number of threads may call copy() at once and share the
// work.
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
  // Bytes copied at a time: small enough to share work evenly, large enough to stream.
  static constexpr std::uint64_t kPieceBytes = 4U << 20;

  // Plans the snapshot of `sources`. Their tensors must not change until copy() returns.
  void lay_out(std::vector<TensorSource> sources);
  // Copies the unread rest, together with other threads that call copy(). Throws the error of a
  // source's `fill`.
  void copy();
  // Call it before each change of the tensors. The first call records how much of the tensors has been read,
  // and copies the rest.
  void before_change();
  // Whether less than half of the tensors' bytes had been read when they first changed.
  bool was_late() const;
  // Returns the sources of lay_out(), with their contents at that time. Each tensor must be read once from
  // start to end; a tensor with another order in the file may be read again. Valid until the next lay_out().
  std::vector<TensorSource> sources();

 private:
  enum class State {
    kLive,     // tensors are read in place
    kCopying,  // the rest is being copied; reads wait
    kCopied,   // the unread rest is in the buffer
  };
  struct Piece {
    std::size_t source;
    std::uint64_t offset, size;  // offset and size within the source
    std::uint64_t at;            // offset within the buffer
  };
  void reserve(std::uint64_t bytes);
  void read(std::size_t source, std::uint64_t offset, std::span<std::byte> out);
  void copy_pieces();
  bool was_read(const Piece& piece) const;

  LargeMemory memory_;
  std::uint64_t capacity_ = 0;
  std::vector<TensorSource> sources_;
  std::vector<std::uint64_t> starts_;  // start of each source in the buffer
  std::vector<Piece> pieces_;
  std::atomic<std::size_t> next_{0};
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_:
  State state_ = State::kLive;
  bool reading_ = false;  // the writer reads a tensor in place
  bool late_ = false;     // see was_late()
  bool judged_ = false;   // late_ has its final value
  // Bytes read of each source. Constant during copies, which read it without the lock.
  std::vector<std::uint64_t> read_;
  std::size_t done_ = 0;  // number of copied pieces
  std::exception_ptr error_;
};

}  // namespace primus
