// Wake-ups between ranks that share memory: each rank has one word, which its peers increment. A rank sleeps
// on its word with a futex. Doorbells work between threads and between processes. The initial state is all
// zero.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <vector>

#include "comm/links.h"

namespace primus::comm::local {

struct alignas(64) Doorbell {
  std::atomic<std::uint32_t> rings{0};
  std::atomic<std::uint32_t> asleep{0};
  std::atomic<std::uint64_t> wakers{
      0};  // one bit per peer that may wake the sleeper; all peers from number 63 on share the last bit
};

// One rank's view of its group's doorbells.
class Doorbells {
 public:
  // `bells`: one per rank. `spins`: polls before sleeping; 0 if ranks share cores.
  Doorbells(Doorbell* bells, int size, int rank, int spins);

  void touch(int peer) { touched_[static_cast<std::size_t>(peer)] = true; }
  void ring_touched();
  std::uint32_t ticket() const { return bells_[rank_].rings.load(std::memory_order_acquire); }
  void wait(std::uint32_t ticket, const Links::Interest& interest, std::chrono::milliseconds limit);

  // Returns a suitable number of spins for `ranks` ranks on this machine.
  static int spins_for(int ranks);

 private:
  static std::uint64_t bit(int peer) { return std::uint64_t{1} << (peer < 63 ? peer : 63); }

  Doorbell* bells_;
  int rank_, spins_;
  std::vector<char> touched_;
};

// Links whose ranks wake each other with doorbells. A subclass rings the bells of peers that have new bytes
// or new room.
class BellLinks : public Links {
 public:
  void publish() final { bells_.ring_touched(); }
  std::uint32_t ticket() final { return bells_.ticket(); }
  void wait(std::uint32_t ticket, const Interest& interest, std::chrono::milliseconds limit) final {
    bells_.wait(ticket, interest, limit);
  }

 protected:
  // Arguments as for Doorbells.
  BellLinks(Doorbell* bells, int size, int rank, int spins) : bells_(bells, size, rank, spins) {}

  Doorbells bells_;
};

}  // namespace primus::comm::local
