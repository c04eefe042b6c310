#include "base/files/piece_writer.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace primus {

void PieceWriter::start(File& file) {
  file_ = &file;
  begin_ = end_ = 0;
}

void PieceWriter::write(std::span<const std::byte> data, std::uint64_t offset) {
  while (!data.empty()) {
    const std::span<std::byte> to = room(offset);
    const auto part = data.first(std::min(data.size(), to.size()));
    std::memcpy(to.data(), part.data(), part.size());
    advance(part.size());
    offset += part.size();
    data = data.subspan(part.size());
  }
}

std::span<std::byte> PieceWriter::room(std::uint64_t offset) {
  if (!buffer_) {
    buffer_ = allocate_large(kPieceBytes);
    if (!buffer_) throw Error(ErrorKind::kIo, "no memory for writing files", "free some memory");
  }
  if (offset != offset_ + (end_ - begin_)) flush();
  if (begin_ == end_) {
    offset_ = offset;
    begin_ = end_ = offset % File::kDirectBytes;
  }
  return {buffer_.get() + end_, kPieceBytes - end_};
}

void PieceWriter::advance(std::size_t bytes) {
  end_ += bytes;
  if (end_ == kPieceBytes) flush();
}

void PieceWriter::flush() {
  if (begin_ == end_) return;
  const std::span<const std::byte> piece(buffer_.get() + begin_, end_ - begin_);
  begin_ = end_ = 0;
  written_.direct += file_->write_direct(piece, offset_);
  written_.all += piece.size();
}

}  // namespace primus
