// Links over MPI: messages between each pair of ranks of a group, without a wait inside MPI.
//
// A stream is cut into messages of up to a slot's size. The sender copies into one of its slots and lets MPI
// send it; the receiver has slots waiting and reads in place. MPI may need its sender's help until a message
// is out, so a rank leaves no collective before that (drained): what it waits for next may not be MPI's. A
// byte's place in a slot is its place in the stream modulo the granule, so that elements stay aligned: what
// stands before it is sent, and means nothing.
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
  // `members`: ranks of MPI_COMM_WORLD, whose messages with `tag` are this group's.
  MpiLinks(std::span<const int> members, int tag);
  // Gives up receives; sends that peers do not take within a second keep their memory for ever.
  ~MpiLinks() override;
  MpiLinks(const MpiLinks&) = delete;
  MpiLinks& operator=(const MpiLinks&) = delete;

  std::size_t push(int peer, std::span<const std::byte> data) override;
  bool drained(int peer) override;
  std::span<const std::byte> peek(int peer) override;
  void pop(int peer, std::size_t bytes) override;
  void publish() override;
  std::uint32_t ticket() override { return 0; }  // wait() looks at everything that is under way
  void wait(std::uint32_t ticket, const Interest& interest, std::chrono::milliseconds limit) override;
  void revoke() noexcept override {}

 private:
  static constexpr std::size_t kSlots = 4;

  struct Slot {
    MPI_Request request = MPI_REQUEST_NULL;
    std::unique_ptr<std::byte[]> memory;  // made when it is first used
  };
  // One direction of a pair.
  struct Stream {
    std::array<Slot, kSlots> slots;
    std::size_t current = 0;         // the slot that is written, or read
    std::size_t begin = 0, end = 0;  // of its bytes that wait to be sent, or to be read
    bool open = false;               // there is such a slot
    std::size_t position = 0;        // bytes of the stream before `begin` (reading) or `end` (writing)
  };
  struct Peer {
    int world_rank;
    Stream out, in;
    bool receives = false;  // the slots of `in` wait for messages
    bool full = false;      // the last push() found no room
    std::string lost;       // why nothing more can come or go; empty: it can
  };

  std::byte* memory_of(Slot& slot) const;
  void check(Peer& peer, int code) const;
  // Whether a slot can be written, or a message is there to read.
  bool has_room(Peer& peer);
  bool has_arrived(Peer& peer);
  void send(Peer& peer);
  void receive(Peer& peer, Slot& slot);

  std::vector<Peer> peers_;
  int tag_;
  std::size_t slot_bytes_;
};

}  // namespace primus::comm::mpi
