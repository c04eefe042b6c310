// Writes much data to files from front to back: gathers it into pieces of megabytes, and writes those past
// the page cache (File::write_direct).
//
// A checkpoint of gigabytes in the page cache costs the processor several times what writing it costs: pages
// are taken, filled, written back by threads of the kernel and freed, beside a training step that needs every
// core.
//
// Errors: those of File, thrown by the call that fills a piece, or by flush(); Error(kIo) without memory.
// Thread-safety: one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/files/file.h"
#include "base/system/large_memory.h"

namespace primus {

// What was handed to files, and how much of it went past the page cache.
struct WrittenBytes {
  std::uint64_t all = 0, direct = 0;
};

class PieceWriter {
 public:
  static constexpr std::size_t kPieceBytes = 4U << 20;

  // What follows goes to `file`, which must live until flush() returned.
  void start(File& file);
  // Takes a copy of `data`, which is to be at `offset` of the file. What does not follow the data before it
  // ends a piece.
  void write(std::span<const std::byte> data, std::uint64_t offset);
  // The same without a copy: where the next bytes go, those at `offset` of the file, and how many of them are
  // there. At least one byte of room; valid until the next call.
  std::span<std::byte> room(std::uint64_t offset);
  void advance(std::size_t bytes);
  // Hands everything to the file; durable once File::sync() returned.
  void flush();
  // Since this was made, of all files.
  const WrittenBytes& written() const { return written_; }

 private:
  File* file_ = nullptr;
  LargeMemory buffer_;        // of kPieceBytes
  std::uint64_t offset_ = 0;  // in the file, of what is gathered
  // In the buffer. It begins where the file's offset would lie in a block, so that both are aligned alike.
  std::size_t begin_ = 0, end_ = 0;
  WrittenBytes written_;
};

}  // namespace primus
