// Links over ring buffers in shared memory, for ranks that are processes on one host. The sender copies into
// the ring; the receiver reduces or copies directly from it, so there is no second staging copy.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "comm/links.h"
#include "comm/local/doorbell.h"

namespace primus::comm::local {

// The layout of a group's shared region. The initial state is all zero.
struct RingRegion {
  // Returns the bytes of a region for `ranks`. Memory pages of a pair of ranks stay unused if the pair does
  // not communicate.
  static std::size_t bytes(int ranks);
  static std::size_t ring_bytes(int ranks);
};

class RingLinks final : public BellLinks {
 public:
  // `region`: RingRegion::bytes(size) bytes, kept alive by the pointer.
  RingLinks(std::shared_ptr<std::byte> region, int size, int rank, int spins);

  std::size_t push(int peer, std::span<const std::byte> data) override;
  bool drained(int) override { return true; }
  std::span<const std::byte> peek(int peer) override;
  void pop(int peer, std::size_t bytes) override;
  void revoke() noexcept override {}

 private:
  struct Ring;
  Ring& ring(int from, int to) const;

  std::shared_ptr<std::byte> region_;
  int size_, rank_;
  std::size_t capacity_;
};

}  // namespace primus::comm::local
