// Moves the bytes of one collective at a time over the links of a group: sends go out whenever there is room,
// also while the rank waits for something else, so that no order of sends and receives deadlocks.
//
// Every message begins with a header that says what its sender called. The receiver compares: ranks that call
// different things find out at once, by name. Waiting without any progress for longer than the rank's timeout
// aborts the job with a message that names who is missing.
//
// Belongs to one communicator; one thread at a time.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/system/thread_pool.h"
#include "comm/links.h"
#include "comm/rank_state.h"

namespace primus::comm {

class Messenger {
 public:
  // `members`: the group's ranks of the job; `rank`: this one's place there. All references outlive this.
  Messenger(Links& links, RankState& state, std::vector<int> members, int rank);

  // Starts a collective. Throws when the job was aborted.
  void begin(const Signature& signature, std::uint64_t sequence, std::uint64_t record);
  // Announces a message to, or from, `peer`: `count` elements. Its data follow in any number of parts.
  void open(int peer, DType dtype, std::int64_t count);
  void expect(int peer, DType dtype, std::int64_t count);
  // Queues the next part. `data` must stay as it is until settle() or finish().
  void send(int peer, const void* data, std::int64_t bytes);
  // Queues the next part to come; it is there after complete_receives().
  void receive(int peer, void* into, std::int64_t bytes);
  void complete_receives();
  // Waits for the next `bytes` from `peer` and hands them over piece by piece, without copying: each piece
  // has a multiple of `granule` bytes, aligned to it.
  void consume(int peer, std::int64_t bytes, std::int64_t granule,
               FunctionRef<void(std::span<const std::byte>)> use);
  // Sends what there is room for, and lets peers know of what was taken: for long work between waits.
  void progress();
  // Waits until everything sent is out of the caller's memory.
  void settle();
  // Ends the collective: settles, and waits for the ends of messages.
  void finish();

 private:
  struct Header;
  struct Outgoing {
    const std::byte* data;
    std::size_t bytes;
  };
  struct Incoming {
    std::byte* into;  // null: padding, thrown away
    std::size_t bytes;
    bool header;
  };
  struct Expected {
    DType dtype;
    std::int64_t count;
  };
  struct Peer {
    std::deque<Outgoing> outgoing;
    std::deque<Incoming> incoming;
    std::deque<std::vector<std::byte>> headers;  // being sent
    std::vector<std::byte> arriving;             // the header that comes in
    std::deque<Expected> expected;               // what the headers to come should say
    std::size_t sent = 0, received = 0;          // bytes of the current message, queued; for the padding
  };

  bool push_some(int peer);
  bool push_all();
  bool take_some(int peer);
  void pad_outgoing(int peer);
  void pad_incoming(int peer);
  void check_header(int peer);
  // One round of waiting: for bytes from `from`, and room for whatever is still to be sent.
  void block(std::uint32_t ticket, std::vector<int> from);
  void moved() { waiting_since_.reset(); }
  void late(const std::vector<int>& peers, std::chrono::milliseconds waited);
  [[noreturn]] void fail(const std::string& reason);
  void note_waiting(int peer);

  Links& links_;
  RankState& state_;
  std::vector<int> members_;
  int rank_;
  std::vector<Peer> peers_;
  Signature signature_;
  std::uint64_t sequence_ = 0, record_ = 0;
  int noted_ = -1;  // peer that the flight recorder says this rank waits for
  std::optional<std::chrono::steady_clock::time_point> waiting_since_;
};

}  // namespace primus::comm
