// How ranks that share memory wake each other: one word per rank that its peers count up, and a futex to
// sleep on. Works between threads and between processes; all zero is the initial state.
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
      0};  // bit of each peer that may wake the sleeper; the last bit: any other
};

// One rank's view of the doorbells of its group.
class Doorbells {
 public:
  // `bells` has one per rank. `spins`: how often to look before sleeping; 0 where ranks share cores.
  Doorbells(Doorbell* bells, int size, int rank, int spins);

  void touch(int peer) { touched_[static_cast<std::size_t>(peer)] = true; }
  void ring_touched();
  std::uint32_t ticket() const { return bells_[rank_].rings.load(std::memory_order_acquire); }
  void wait(std::uint32_t ticket, const Links::Interest& interest, std::chrono::milliseconds limit);

  // Spins that suit `ranks` of this machine.
  static int spins_for(int ranks);

 private:
  static std::uint64_t bit(int peer) { return std::uint64_t{1} << (peer < 63 ? peer : 63); }

  Doorbell* bells_;
  int rank_, spins_;
  std::vector<char> touched_;
};

}  // namespace primus::comm::local
