// Host memory that holds a copy of what this rank holds of a checkpoint's tensors while it is written:
// allocated at the first save, reused by all later ones.
//
// Errors: Error (kIo) when there is not enough memory. Thread-safety: lay_out() while nobody copies; then any
// number of threads may call copy() at once and share the work.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "lm/checkpoint/safetensors.h"

namespace primus {

class SnapshotBuffer {
 public:
  // Bytes copied at a time: small enough that a helper soon finds work, large enough to stream.
  static constexpr std::uint64_t kChunkBytes = 4U << 20;

  // Plans the copy of `sources`, whose tensors must stay unchanged until copy() returned.
  void lay_out(std::vector<TensorSource> sources);
  // Copies until all is copied, by this thread or others. Throws what a source's `fill` threw.
  void copy();
  // The sources given to lay_out(), reading from this buffer instead. Valid until the next lay_out().
  std::vector<TensorSource> copied() const;
  std::uint64_t capacity() const { return capacity_; }

 private:
  struct Chunk {
    std::size_t source;
    std::uint64_t offset, size;  // within the source
    std::uint64_t at;            // within the buffer
  };
  struct Free {
    void operator()(std::byte* memory) const;
  };
  void reserve(std::uint64_t bytes);

  std::unique_ptr<std::byte, Free> memory_;
  std::uint64_t capacity_ = 0;
  std::vector<TensorSource> sources_;
  std::vector<std::uint64_t> starts_;  // of each source in the buffer
  std::vector<Chunk> chunks_;
  std::atomic<std::size_t> next_{0};
  std::mutex mutex_;
  std::condition_variable all_copied_;
  std::size_t done_ = 0;  // chunks, guarded by mutex_
  std::exception_ptr error_;
};

}  // namespace primus
