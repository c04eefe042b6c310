#include "comm/local/ring_links.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

namespace primus::comm::local {
namespace {

constexpr std::size_t kPage = 4096, kPiece = 256 << 10;

std::size_t bells_bytes(int ranks) {
  return (sizeof(Doorbell) * static_cast<std::size_t>(ranks) + kPage - 1) / kPage * kPage;
}

}  // namespace

struct RingLinks::Ring {
  alignas(64) std::atomic<std::uint64_t> tail;  // bytes written, by the sender
  alignas(64) std::atomic<std::uint64_t> head;  // bytes read, by the receiver
  std::byte* data() { return reinterpret_cast<std::byte*>(this) + kPage; }
};

// Rings are larger than the inner caches, so that the sender's core writes data back before the receiver
// reads it. A read from another core's cache would be slower.
std::size_t RingRegion::ring_bytes(int ranks) {
  return std::clamp(std::bit_floor((std::size_t{8} << 20) / static_cast<std::size_t>(ranks)),
                    std::size_t{16} << 10, std::size_t{4} << 20);
}

std::size_t RingRegion::bytes(int ranks) {
  const auto n = static_cast<std::size_t>(ranks);
  return bells_bytes(ranks) + n * n * (kPage + ring_bytes(ranks));
}

RingLinks::RingLinks(std::shared_ptr<std::byte> region, int size, int rank, int spins)
    : BellLinks(reinterpret_cast<Doorbell*>(region.get()), size, rank, spins),
      region_(std::move(region)),
      size_(size),
      rank_(rank),
      capacity_(RingRegion::ring_bytes(size)) {}

RingLinks::Ring& RingLinks::ring(int from, int to) const {
  const std::size_t index =
      static_cast<std::size_t>(from) * static_cast<std::size_t>(size_) + static_cast<std::size_t>(to);
  return *reinterpret_cast<Ring*>(region_.get() + bells_bytes(size_) + index * (kPage + capacity_));
}

std::size_t RingLinks::push(int peer, std::span<const std::byte> data) {
  Ring& r = ring(rank_, peer);
  const std::uint64_t tail = r.tail.load(std::memory_order_relaxed);
  const std::size_t room =
      capacity_ - static_cast<std::size_t>(tail - r.head.load(std::memory_order_acquire));
  // Copies a small piece at a time, so that the peer can start reading early.
  std::size_t n = std::min({data.size(), kPiece, capacity_ / 4});
  if (n > room) n = room / kGranule * kGranule;
  if (n == 0) return 0;
  const std::size_t at = static_cast<std::size_t>(tail) % capacity_;
  const std::size_t first = std::min(n, capacity_ - at);
  std::memcpy(r.data() + at, data.data(), first);
  std::memcpy(r.data(), data.data() + first, n - first);
  r.tail.store(tail + n, std::memory_order_release);
  bells_.touch(peer);
  return n;
}

std::span<const std::byte> RingLinks::peek(int peer) {
  Ring& r = ring(peer, rank_);
  const std::uint64_t head = r.head.load(std::memory_order_relaxed);
  const auto there = static_cast<std::size_t>(r.tail.load(std::memory_order_acquire) - head);
  const std::size_t at = static_cast<std::size_t>(head) % capacity_;
  return {r.data() + at, std::min(there, capacity_ - at)};
}

void RingLinks::pop(int peer, std::size_t bytes) {
  Ring& r = ring(peer, rank_);
  r.head.store(r.head.load(std::memory_order_relaxed) + bytes, std::memory_order_release);
  bells_.touch(peer);
}

}  // namespace primus::comm::local
