#include "comm/local/doorbell.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

#include "device/cpu/cpu_device.h"

namespace primus::comm::local {
namespace {

// The call must not use FUTEX_PRIVATE_FLAG, because processes may share the word.
void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t expected, std::chrono::milliseconds limit) {
  const timespec time{limit.count() / 1000, limit.count() % 1000 * 1'000'000};
  syscall(SYS_futex, &word, FUTEX_WAIT, expected, &time, nullptr, 0);
}

void futex_wake(std::atomic<std::uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace

Doorbells::Doorbells(Doorbell* bells, int size, int rank, int spins)
    : bells_(bells), rank_(rank), spins_(spins), touched_(static_cast<std::size_t>(size)) {}

int Doorbells::spins_for(int ranks) { return ranks <= cpu::available_cores() ? 1000 : 0; }

void Doorbells::ring_touched() {
  for (std::size_t peer = 0; peer < touched_.size(); ++peer) {
    if (!touched_[peer]) continue;
    touched_[peer] = false;
    Doorbell& bell = bells_[peer];
    // Increments `rings` first and then checks for a sleeping rank. wait() first announces that it sleeps and
    // then checks `rings`. So a ring cannot be missed.
    bell.rings.fetch_add(1);
    if (bell.asleep.load() != 0 && (bell.wakers.load() & bit(rank_)) != 0) futex_wake(bell.rings);
  }
}

void Doorbells::wait(std::uint32_t ticket, const Links::Interest& interest, std::chrono::milliseconds limit) {
  Doorbell& bell = bells_[rank_];
  for (int i = 0; i < spins_; ++i) {
    if (bell.rings.load(std::memory_order_acquire) != ticket) return;
    __builtin_ia32_pause();
  }
  // Sleeps now. A loop with sched_yield() would give the core to busy processes for milliseconds.
  std::uint64_t wakers = 0;
  for (const int peer : interest.from) wakers |= bit(peer);
  for (const int peer : interest.to) wakers |= bit(peer);
  bell.wakers.store(wakers);
  bell.asleep.store(1);
  futex_wait(bell.rings, ticket, limit);
  bell.asleep.store(0);
}

}  // namespace primus::comm::local
