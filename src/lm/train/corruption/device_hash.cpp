#include "lm/train/corruption/device_hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cstddef>

namespace primus {
namespace {

constexpr std::int64_t kPiece = std::int64_t{32} << 20;

}  // namespace

DeviceHash::DeviceHash(engine::Rank& rank) : rank_(rank) {
  if (rank.device().properties().host_memory) return;
  stream_ = rank.device().create_stream(StreamKind::kCopy);
  for (Piece& piece : pieces_) {
    piece.memory = PinnedBuffer(rank.device(), kPiece);
    piece.copied = rank.device().create_event();
  }
}

std::uint64_t DeviceHash::of(std::span<const Tensor> tensors) {
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  const auto add = [&](Piece& piece) {
    if (piece.bytes == 0) return;
    piece.copied->synchronize();
    XXH3_64bits_update(&state, piece.memory.data(), static_cast<std::size_t>(piece.bytes));
    piece.bytes = 0;
  };
  std::size_t turn = 0;
  for (const Tensor& tensor : tensors) {
    if (tensor.absent()) continue;
    const auto* const from = static_cast<const std::byte*>(tensor.data);
    if (!stream_) {
      XXH3_64bits_update(&state, from, static_cast<std::size_t>(tensor.bytes()));
      continue;
    }
    for (std::int64_t at = 0; at < tensor.bytes(); at += kPiece) {
      Piece& piece = pieces_[turn];
      add(piece);
      piece.bytes = std::min(kPiece, tensor.bytes() - at);
      stream_->copy_to_host(piece.memory.data(), from + at, piece.bytes);
      stream_->record(*piece.copied);
      turn = 1 - turn;
    }
  }
  // The older piece first.
  add(pieces_[turn]);
  add(pieces_[1 - turn]);
  return XXH3_64bits_digest(&state);
}

void flip_bit(engine::Rank& rank, const Tensor& tensor) {
  if (tensor.absent() || tensor.bytes() == 0) return;
  // A bit of the middle element's high byte, which changes the value by a large factor.
  const std::int64_t element = tensor.elements() / 2;
  const std::int64_t place = element * size_of(tensor.dtype) + size_of(tensor.dtype) - 1;
  auto* const address = static_cast<std::byte*>(tensor.data) + place;
  std::byte value{};
  rank.compute().copy_to_host(&value, address, 1);
  rank.compute().synchronize();
  value ^= std::byte{1};
  rank.compute().copy_to_device(address, &value, 1);
  rank.compute().synchronize();
}

}  // namespace primus
