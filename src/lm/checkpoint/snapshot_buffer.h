// The tensor data that this rank saves, as it was at the start of the save. Until the tensors change, the
// data is read from the tensors themselves; afterwards it is read from a copy in host memory.
//
// Nothing is copied if all data is read before the tensors change. The first save reserves the address space
// of the copy, and later saves reuse this space; memory pages are allocated only when data is copied.
//
// Errors: Error (kIo) if memory is insufficient. Thread-safety: lay_out() must not run during reads or
// copies. After lay_out(), one thread may read, and any number of threads may call copy() at once and share
// the work.
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
  // Number of bytes copied at a time: small enough to divide the work evenly between threads, large enough
  // for full copy speed.
  static constexpr std::uint64_t kPieceBytes = 4U << 20;

  // Plans the snapshot of `sources`. The tensors of `sources` must not change until copy() returns.
  void lay_out(std::vector<TensorSource> sources);
  // Copies the data that was not read yet. Several threads may call copy() at once and share the work. Throws
  // the error of a source's `fill`.
  void copy();
  // Must be called before each change of the tensors. The first call records how many bytes have been read,
  // and copies the remaining bytes.
  void before_change();
  // Returns whether less than half of the tensors' bytes had been read when the tensors first changed.
  bool was_late() const;
  // Returns the sources of lay_out(), with their contents at the time of lay_out(). Each tensor must be read
  // once from start to end; a tensor whose element order in the file differs may be read twice. Valid until
  // the next lay_out().
  std::vector<TensorSource> sources();

 private:
  enum class State {
    kLive,     // reads come from the tensors
    kCopying,  // the unread data is being copied; reads wait
    kCopied,   // the unread data is in the buffer
  };
  struct Piece {
    std::size_t source;
    std::uint64_t offset, size;  // offset and size within the source
    std::uint64_t at;            // offset of the copy in the buffer
  };
  void reserve(std::uint64_t bytes);
  void read(std::size_t source, std::uint64_t offset, std::span<std::byte> out);
  void copy_pieces();
  bool was_read(const Piece& piece) const;

  LargeMemory memory_;
  std::uint64_t capacity_ = 0;
  std::vector<TensorSource> sources_;
  std::vector<std::uint64_t> starts_;  // offset in the buffer at which each source starts
  std::vector<Piece> pieces_;
  std::atomic<std::size_t> next_{0};
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // The following members are guarded by mutex_:
  State state_ = State::kLive;
  bool reading_ = false;  // whether the writer is reading a tensor in place
  bool late_ = false;     // the result of was_late()
  bool judged_ = false;   // whether late_ has its final value
  // Number of bytes read of each source. Copying threads read these numbers without the lock, because the
  // numbers do not change during copies.
  std::vector<std::uint64_t> read_;
  std::size_t done_ = 0;  // number of copied pieces
  std::exception_ptr error_;
};

}  // namespace primus
