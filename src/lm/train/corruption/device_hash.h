// Hashes of tensors in device memory, to compare their bits. Internal to lm/train.
//
// The bytes are copied to the host and hashed there (XXH3), so no device needs a kernel for it. The copy of
// one piece overlaps with the hash of the piece before. Not thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "device/device.h"
#include "engine/runtime/rank.h"
#include "tensor/tensor.h"

namespace primus {

class DeviceHash {
 public:
  // `rank` must have memory and outlive this object. Takes two pieces of pinned memory of 32 MiB if the
  // device has its own memory.
  explicit DeviceHash(engine::Rank& rank);
  // Returns the hash of the bytes of all tensors, in order. Absent tensors count as empty. All work that
  // writes the tensors must be done (Rank::synchronize). Blocks.
  std::uint64_t of(std::span<const Tensor> tensors);

 private:
  struct Piece {
    PinnedBuffer memory;
    std::unique_ptr<Event> copied;
    std::int64_t bytes = 0;  // of the copy in flight
  };

  engine::Rank& rank_;
  std::unique_ptr<Stream> stream_;  // null: tensors are in host memory
  std::array<Piece, 2> pieces_;
};

// Inverts one bit of a byte of device memory, to test that the checks find it. Blocks.
void flip_bit(engine::Rank& rank, const Tensor& tensor);

}  // namespace primus
