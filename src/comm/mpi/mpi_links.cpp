#include "comm/mpi/mpi_links.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>
#include <thread>

namespace primus::comm::mpi {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

// kGroupBytes: total size of a group's slots. kMin, kMax: limits for the size of one slot.
constexpr std::size_t kGroupBytes = 32 << 20, kMin = 16 << 10, kMax = 256 << 10;

bool finished() {
  int done = 0;
  MPI_Finalized(&done);
  return done != 0;
}

}  // namespace

MpiLinks::MpiLinks(std::span<const int> members, int tag)
    : tag_(tag),
      slot_bytes_(std::clamp(kGroupBytes / (2 * kSlots * members.size()) / kGranule * kGranule, kMin, kMax)) {
  for (const int member : members) peers_.push_back({.world_rank = member, .out = {}, .in = {}, .lost = {}});
}

MpiLinks::~MpiLinks() {
  if (finished()) return;
  const Clock::time_point end = Clock::now() + 1s;
  const auto settle = [&](Slot& slot) {
    int done = 0;
    for (;;) {
      if (MPI_Test(&slot.request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || done) break;
      if (Clock::now() > end) break;
      std::this_thread::sleep_for(100us);
    }
    if (!done) static_cast<void>(slot.memory.release());  // not freed, because MPI may still use it
  };
  for (Peer& peer : peers_) {
    for (Slot& slot : peer.in.slots) {
      if (slot.request == MPI_REQUEST_NULL) continue;
      MPI_Cancel(&slot.request);
      settle(slot);
    }
    for (Slot& slot : peer.out.slots) {
      if (slot.request != MPI_REQUEST_NULL) settle(slot);
    }
  }
}

std::byte* MpiLinks::memory_of(Slot& slot) const {
  // Slots are aligned for any element type; new[] of bytes would align only to 16.
  if (!slot.memory) slot.memory = std::make_unique_for_overwrite<std::byte[]>(slot_bytes_ + kGranule);
  const auto address = reinterpret_cast<std::uintptr_t>(slot.memory.get());
  return slot.memory.get() + (kGranule - address % kGranule) % kGranule;
}

void MpiLinks::check(Peer& peer, int code) const {
  if (code == MPI_SUCCESS || !peer.lost.empty()) return;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  peer.lost.assign(text, static_cast<std::size_t>(length));
}

// ---- Sending ------------------------------------------------------------------------------------

bool MpiLinks::has_room(Peer& peer) {
  Stream& out = peer.out;
  if (!peer.lost.empty()) return false;
  if (out.open) return true;
  int done = 1;
  Slot& slot = out.slots[out.current];
  if (slot.request != MPI_REQUEST_NULL) check(peer, MPI_Test(&slot.request, &done, MPI_STATUS_IGNORE));
  if (!done || !peer.lost.empty()) return false;
  out.open = true;
  out.begin = out.end = out.position % kGranule;
  return true;
}

void MpiLinks::send(Peer& peer) {
  Stream& out = peer.out;
  Slot& slot = out.slots[out.current];
  check(peer, MPI_Isend(memory_of(slot), static_cast<int>(out.end), MPI_BYTE, peer.world_rank, tag_,
                        MPI_COMM_WORLD, &slot.request));
  out.open = false;
  out.current = (out.current + 1) % kSlots;
}

std::size_t MpiLinks::push(int peer, std::span<const std::byte> data) {
  Peer& p = peers_[static_cast<std::size_t>(peer)];
  if (data.empty()) return 0;
  p.full = !has_room(p);
  if (p.full) return 0;
  Stream& out = p.out;
  std::size_t n = std::min(data.size(), slot_bytes_ - out.end);
  if (n < data.size()) n -= n % kGranule;
  if (n > 0) {
    std::memcpy(memory_of(out.slots[out.current]) + out.end, data.data(), n);
    out.end += n;
    out.position += n;
  }
  // Send a full slot now, so that the next call finds a free slot.
  if (out.end + kGranule > slot_bytes_) send(p);
  return n;
}

bool MpiLinks::drained(int peer) {
  Peer& p = peers_[static_cast<std::size_t>(peer)];
  if (p.out.open && p.out.end > p.out.begin) return false;  // data not yet passed to MPI
  for (Slot& slot : p.out.slots) {
    if (slot.request == MPI_REQUEST_NULL) continue;
    int done = 0;
    check(p, MPI_Test(&slot.request, &done, MPI_STATUS_IGNORE));
    if (!done) return false;
  }
  return true;
}

void MpiLinks::publish() {
  for (Peer& peer : peers_) {
    if (peer.out.open && peer.out.end > peer.out.begin && peer.lost.empty()) send(peer);
  }
}

// ---- Receiving ----------------------------------------------------------------------------------

void MpiLinks::receive(Peer& peer, Slot& slot) {
  check(peer, MPI_Irecv(memory_of(slot), static_cast<int>(slot_bytes_), MPI_BYTE, peer.world_rank, tag_,
                        MPI_COMM_WORLD, &slot.request));
}

bool MpiLinks::has_arrived(Peer& peer) {
  Stream& in = peer.in;
  if (in.open) return true;
  if (!peer.receives) {
    peer.receives = true;
    for (Slot& slot : in.slots) receive(peer, slot);
  }
  if (!peer.lost.empty()) return false;
  int done = 0, bytes = 0;
  MPI_Status status;
  check(peer, MPI_Test(&in.slots[in.current].request, &done, &status));
  if (!done || !peer.lost.empty()) return false;
  MPI_Get_count(&status, MPI_BYTE, &bytes);
  in.open = true;
  in.begin = in.position % kGranule;
  in.end = static_cast<std::size_t>(bytes);
  return true;
}

std::span<const std::byte> MpiLinks::peek(int peer) {
  Peer& p = peers_[static_cast<std::size_t>(peer)];
  if (!has_arrived(p)) return {};
  return {memory_of(p.in.slots[p.in.current]) + p.in.begin, p.in.end - p.in.begin};
}

void MpiLinks::pop(int peer, std::size_t bytes) {
  Peer& p = peers_[static_cast<std::size_t>(peer)];
  Stream& in = p.in;
  in.begin += bytes;
  in.position += bytes;
  if (in.begin < in.end) return;
  in.open = false;
  receive(p, in.slots[in.current]);
  in.current = (in.current + 1) % kSlots;
}

// MPI has no wait with a timeout, so this function polls. Polling also lets MPI progress its messages.
void MpiLinks::wait(std::uint32_t, const Interest& interest, std::chrono::milliseconds limit) {
  const Clock::time_point begin = Clock::now();
  constexpr auto kPatience = 50us, kPause = 20us;
  for (;;) {
    for (const int peer : interest.from) {
      if (has_arrived(peers_[static_cast<std::size_t>(peer)])) return;
    }
    for (const int peer : interest.to) {
      Peer& p = peers_[static_cast<std::size_t>(peer)];
      if (p.full ? has_room(p) : drained(peer)) return;
    }
    for (const std::vector<int>* list : {&interest.from, &interest.to}) {
      for (const int peer : *list) {
        const std::string& lost = peers_[static_cast<std::size_t>(peer)].lost;
        if (!lost.empty()) throw PeerLost{peer, lost};
      }
    }
    const auto waited = Clock::now() - begin;
    if (waited >= limit) return;
    // Sleeps, because another rank on this host may need the core to send the data that this rank waits for.
    if (waited > kPatience) std::this_thread::sleep_for(kPause);
  }
}

}  // namespace primus::comm::mpi
