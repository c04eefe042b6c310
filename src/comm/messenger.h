// Moves the bytes of one collective at a time over the links of a group. Sends proceed whenever there is
// room, even during other waits of the rank. So the order of sends and receives cannot cause a deadlock.
//
// Every message begins with a header that describes the sender's call. The receiver compares the header with
// its own call. So mismatched calls give an immediate error that names both calls. Waiting without progress
// for longer than the rank's timeout aborts the job with a message that names the missing ranks.
//
// Belongs to one communicator. Not thread-safe: used by one thread at a time.
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
  // `members`: the group's ranks in the job; `rank`: this rank's index there. All references must outlive
  // this object.
  Messenger(Links& links, RankState& state, std::vector<int> members, int rank);

  // Starts a collective. Throws if the job was aborted.
  void begin(const Signature& signature, std::uint64_t sequence, std::uint64_t record);
  // Announces a message of `count` elements to, or from, `peer`. Its data follow in any number of parts.
  void open(int peer, DType dtype, std::int64_t count);
  void expect(int peer, DType dtype, std::int64_t count);
  // Queues the next part. `data` must not change until settle() or finish().
  void send(int peer, const void* data, std::int64_t bytes);
  // Queues the receive of the next part. The part has arrived after complete_receives().
  void receive(int peer, void* into, std::int64_t bytes);
  void complete_receives();
  // Waits for the next `bytes` from `peer` and passes them to `use` in pieces, without copying. The size and
  // alignment of each piece are multiples of `granule` bytes.
  void consume(int peer, std::int64_t bytes, std::int64_t granule,
               FunctionRef<void(std::span<const std::byte>)> use);
  // Sends as much queued data as fits, and reports consumed bytes to peers. Call it during long work.
  void progress();
  // Waits until the transport no longer reads the caller's send buffers.
  void settle();
  // Ends the collective: calls settle(), and waits until all messages have ended.
  void finish();

 private:
  struct Header;
  struct Outgoing {
    const std::byte* data;
    std::size_t bytes;
  };
  struct Incoming {
    std::byte* into;  // null: the bytes are padding and are discarded
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
    std::vector<std::byte> arriving;             // the header being received
    std::deque<Expected> expected;               // the expected contents of the next headers
    std::size_t sent = 0, received = 0;  // bytes of the current message queued so far, to compute its padding
  };

  bool push_some(int peer);
  bool push_all();
  bool read_some(int peer);
  void pad_outgoing(int peer);
  void pad_incoming(int peer);
  void check_header(int peer);
  // Waits until bytes from a rank in `from` have arrived or queued data can be sent. The caller then checks
  // which of the two has happened.
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
  int noted_ = -1;  // the peer that the flight recorder shows in `waiting_for`
  std::optional<std::chrono::steady_clock::time_point> waiting_since_;
};

}  // namespace primus::comm
