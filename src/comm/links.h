// One rank's byte streams to and from every other rank of a group. CPU collectives are built on these streams
// (host_communicator.h, messenger.h). Each transport implements this interface.
//
// Only wait() and revoke() block. Not thread-safe: used by one thread at a time.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace primus::comm {

class Links {
 public:
  // Peers to wait for: wait() returns when a peer in `from` has sent bytes, or when a peer in `to` has room
  // again.
  struct Interest {
    std::vector<int> from, to;
  };

  virtual ~Links() = default;

  // Appends bytes to the stream to `peer` and returns how many were accepted; 0 if there is no room. A
  // partial count is a multiple of kGranule. Accepted bytes may still be in the caller's memory, which must
  // not change until drained() is true.
  virtual std::size_t push(int peer, std::span<const std::byte> data) = 0;
  virtual bool drained(int peer) = 0;

  // Returns bytes that have arrived from `peer`, possibly none. They are valid until pop(). After peek() has
  // returned bytes, the caller must call pop() with the number of bytes that it has used (0 is allowed).
  virtual std::span<const std::byte> peek(int peer) = 0;
  virtual void pop(int peer, std::size_t bytes) = 0;

  // Makes the effects of push() and pop() since the last call visible to peers.
  virtual void publish() = 0;
  // Call ticket() before looking for work. wait() returns immediately if an event has happened since that
  // ticket, and after `limit` at the latest. Throws PeerLost if a peer of `interest` is lost.
  virtual std::uint32_t ticket() = 0;
  virtual void wait(std::uint32_t ticket, const Interest& interest, std::chrono::milliseconds limit) = 0;

  // Called after a failure. Returns once no peer reads this rank's memory or will read it later.
  virtual void revoke() noexcept = 0;

  static constexpr std::size_t kGranule = 64;
};

// Thrown when the stream to or from a rank (of the group) has ended.
struct PeerLost {
  int peer;
  std::string reason;
};

// Makes the links of groups. `members`: ranks in the job, in the group's order; `rank`: this rank's index in
// `members`; `id`: identifies the group within the job, equal on all members. Waits for the other members.
class LinkFactory {
 public:
  virtual ~LinkFactory() = default;
  virtual std::unique_ptr<Links> make(const std::string& id, std::span<const int> members, int rank) = 0;
};

}  // namespace primus::comm
