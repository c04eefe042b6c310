// One rank's byte streams to and from every other rank of a group: what the collectives are made of
// (collectives.h). A transport implements this and nothing else.
//
// Nothing here blocks except wait() and revoke(). Used by one thread at a time.
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
  // What a rank waits for. Wakes up when a byte arrives from one of `from`, or one of `to` makes room.
  struct Interest {
    std::vector<int> from, to;
  };

  virtual ~Links() = default;

  // Hands bytes to the stream to `peer`: returns how many were taken, 0 when there is no room. Short of all,
  // that is a multiple of kGranule. Until drained(), taken bytes may still be read from the caller's memory.
  virtual std::size_t push(int peer, std::span<const std::byte> data) = 0;
  virtual bool drained(int peer) = 0;

  // Bytes that have come from `peer`, none or any number; valid until pop(), which must follow a peek() that
  // returned some, with how many of them were used (0 is fine).
  virtual std::span<const std::byte> peek(int peer) = 0;
  virtual void pop(int peer, std::size_t bytes) = 0;

  // Lets peers know of what push() and pop() did since the last call.
  virtual void publish() = 0;
  // A ticket is taken before looking for something to do; wait() returns at once when something has happened
  // since, and after `limit` at the latest. Throws PeerLost when a peer of `interest` is gone.
  virtual std::uint32_t ticket() = 0;
  virtual void wait(std::uint32_t ticket, const Interest& interest, std::chrono::milliseconds limit) = 0;

  // After a failure: returns when no peer reads this rank's memory any more, and none will again.
  virtual void revoke() noexcept = 0;

  static constexpr std::size_t kGranule = 64;
};

// The stream to or from a rank (of the group) has ended.
struct PeerLost {
  int peer;
  std::string reason;
};

// Makes the links of groups. `members`: ranks of the job, in the group's order; `rank`: this one's place
// there; `id`: names the group in the whole job, equal for its members. Waits for the other members.
class LinkFactory {
 public:
  virtual ~LinkFactory() = default;
  virtual std::unique_ptr<Links> make(const std::string& id, std::span<const int> members, int rank) = 0;
};

}  // namespace primus::comm
