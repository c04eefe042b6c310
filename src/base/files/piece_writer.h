// Writes large data to files sequentially: gathers data into pieces of megabytes and writes the pieces
// without the page cache (File::write_direct).
//
// Writing gigabytes of checkpoint through the page cache costs several times as much CPU time: the kernel
// allocates, fills, writes back and frees pages. Meanwhile, the training step needs every core.
//
// Errors: the call that completes a piece, or flush(), throws the errors of File. Throws Error(kIo) if memory
// is exhausted. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/files/file.h"
#include "base/system/large_memory.h"

namespace primus {

// Bytes written to files, and how many of them bypassed the page cache.
struct WrittenBytes {
  std::uint64_t all = 0, direct = 0;
};

class PieceWriter {
 public:
  static constexpr std::size_t kPieceBytes = 4U << 20;

  // Selects the file for the next writes. `file` must live until flush() has returned.
  void start(File& file);
  // Copies `data` into the buffer, to be written at `offset` of the file. Data that does not continue the
  // previous data starts a new piece.
  void write(std::span<const std::byte> data, std::uint64_t offset);
  // A write() without a copy: returns a buffer for the bytes at `offset` of the file. The buffer has at least
  // one byte and is valid until the next call. The caller fills bytes of the buffer, and passes the number of
  // filled bytes to advance().
  std::span<std::byte> room(std::uint64_t offset);
  void advance(std::size_t bytes);
  // Writes all gathered data to the file. The data is durable once File::sync() has returned.
  void flush();
  // Returns the bytes written since construction, to all files.
  const WrittenBytes& written() const { return written_; }

 private:
  File* file_ = nullptr;
  LargeMemory buffer_;        // kPieceBytes bytes
  std::uint64_t offset_ = 0;  // file offset of the gathered data
  // The used range of buffer_. The range starts at the file offset modulo the block size, so that memory and
  // file are equally aligned.
  std::size_t begin_ = 0, end_ = 0;
  WrittenBytes written_;
};

}  // namespace primus
