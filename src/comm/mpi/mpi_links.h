// Links over MPI: messages between each pair of ranks of a group, without blocking inside MPI.
//
// A stream is split into messages of up to one slot. The sender copies data to one of its slots, and MPI
// sends this slot. The receiver has posted its own slots and reads the data in place. A send may progress
// only while the sender calls MPI. After a collective, the sender may wait outside of MPI. So a rank finishes
// a collective only after its messages have been sent (drained()). Data begins in a slot at an offset equal
// to its stream position modulo the granule, so that elements stay aligned. The bytes before that offset are
// padding.
#pragma once

#include <mpi.h>

#include <array>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/links.h"

namespace primus::comm::mpi {

class MpiLinks final : public Links {
 public:
  // `members`: ranks in MPI_COMM_WORLD; messages with `tag` belong to this group.
  MpiLinks(std::span<const int> members, int tag);
  // Cancels receives. If peers do not accept a send within a second, the send's memory is not freed.
  ~MpiLinks() override;
  MpiLinks(const MpiLinks&) = delete;
  MpiLinks& operator=(const MpiLinks&) = delete;

  std::size_t push(int peer, std::span<const std::byte> data) override;
  bool drained(int peer) override;
  std::span<const std::byte> peek(int peer) override;
  void pop(int peer, std::size_t bytes) override;
  void publish() override;
  std::uint32_t ticket() override { return 0; }  // wait() polls all pending requests
  void wait(std::uint32_t ticket, const Interest& interest, std::chrono::milliseconds limit) override;
  void revoke() noexcept override {}

 private:
  static constexpr std::size_t kSlots = 4;

  struct Slot {
    MPI_Request request = MPI_REQUEST_NULL;
    std::unique_ptr<std::byte[]> memory;  // allocated at first use
  };
  // One direction between two ranks.
  struct Stream {
    std::array<Slot, kSlots> slots;
    std::size_t current = 0;         // index of the slot being written or read
    std::size_t begin = 0, end = 0;  // the slot's bytes that are not yet sent or read
    bool open = false;               // whether `current` is in use
    std::size_t position = 0;        // stream position of `begin` (reading) or `end` (writing)
  };
  struct Peer {
    int world_rank;
    Stream out, in;
    bool receives = false;  // the slots of `in` are posted for messages
    bool full = false;      // the last push() found no free slot
    std::string lost;       // why the connection failed; empty: it works
  };

  std::byte* memory_of(Slot& slot) const;
  void check(Peer& peer, int code) const;
  // Return whether a slot can be written, and whether a message can be read.
  bool has_room(Peer& peer);
  bool has_arrived(Peer& peer);
  void send(Peer& peer);
  void receive(Peer& peer, Slot& slot);

  std::vector<Peer> peers_;
  int tag_;
  std::size_t slot_bytes_;
};

}  // namespace primus::comm::mpi
