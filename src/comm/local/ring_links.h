// Links over rings of bytes in memory that all ranks of the group have mapped: processes of one host. One
// copy in, and none out: the receiver reduces, or copies to its place, straight from the ring.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "comm/links.h"
#include "comm/local/doorbell.h"

namespace primus::comm::local {

// The layout of the shared region of a group; all zero is the initial state.
struct RingRegion {
  // Bytes that a region for `ranks` takes. Pages of pairs that never talk are never touched.
  static std::size_t bytes(int ranks);
  static std::size_t ring_bytes(int ranks);
};

class RingLinks final : public Links {
 public:
  // `region`: RingRegion::bytes(size), kept alive by the pointer.
  RingLinks(std::shared_ptr<std::byte> region, int size, int rank, int spins);

  std::size_t push(int peer, std::span<const std::byte> data) override;
  bool drained(int) override { return true; }
  std::span<const std::byte> peek(int peer) override;
  void pop(int peer, std::size_t bytes) override;
  void publish() override { bells_.ring_touched(); }
  std::uint32_t ticket() override { return bells_.ticket(); }
  void wait(std::uint32_t ticket, const Interest& interest, std::chrono::milliseconds limit) override {
    bells_.wait(ticket, interest, limit);
  }
  void revoke() noexcept override {}

 private:
  struct Ring;
  Ring& ring(int from, int to) const;

  std::shared_ptr<std::byte> region_;
  int size_, rank_;
  std::size_t capacity_;
  Doorbells bells_;
};

}  // namespace primus::comm::local
