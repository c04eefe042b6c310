// Sends and receives between GPUs of one host by their copy engines, which leave all multiprocessors to
// kernels: what tensor ranks exchange beside products.
//
// Nothing is staged: the receiver's copy engine reads from where the sender has the data. Of each transfer
// the sender's host posts where that is, in memory that the hosts share; the receiver's host waits for that,
// and enqueues the copy. Two flags of each pair of ranks order the devices: `ready` counts transfers whose
// data the sender's stream has come to, `done` those that were copied. A stream goes on when its copies are
// done and nobody reads from it any more, so that memory may be used again in stream order, and a stuck rank
// holds up its peers inside the call.
//
//   sender's stream    ... data | ready = n |                      | wait done >= n | ...
//   receiver's stream  ...      |    wait ready >= n, copy, done = n                | ...
//
// No order of streams deadlocks: a rank posts and says ready before it waits for anybody in the same call.
//
// Thread-safety: exchange() belongs to the rank's thread; any thread may call release().
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/system/thread_pool.h"
#include "comm/communicator.h"
#include "device/collectives.h"

namespace primus::comm::nccl {

struct Context;

class PeerCopies {
 public:
  // All ranks of a group call it, with a `key` that only they have. They try all that it takes; null: it does
  // not work between some of them, `why` says so, the same on every rank. Throws Error when the job is
  // aborted, or a rank does not come.
  static std::unique_ptr<PeerCopies> open(Context& context, const std::string& key, int size, int rank,
                                          std::string& why);
  // The streams have finished its work. Waits for a moment until peers are through as well.
  ~PeerCopies();
  PeerCopies(const PeerCopies&) = delete;
  PeerCopies& operator=(const PeerCopies&) = delete;

  // As Communicator::exchange(), without what the rank sends to itself. `waiting` is called while the host
  // waits for another rank to post, with the time so far, and may throw; work that was enqueued then is stuck
  // until release().
  using Waiting = FunctionRef<void(std::chrono::milliseconds waited)>;
  void exchange(Stream& stream, std::span<const Transfer> transfers, Waiting waiting);

  // As Communicator::all_gather(), on the same terms.
  void all_gather(Stream& stream, const Tensor& in, const Tensor& out, Waiting waiting);

  // After an abort: lets the stream pass whatever it waits for, with whatever is in memory. Peers that run on
  // may undo that, so it is called again until the work is over.
  void release() noexcept;

 private:
  struct Lane;
  struct Region;
  // What this rank has asked for on the lane to, and on that from, a peer.
  struct Peer {
    std::atomic<std::uint32_t> sent{0}, received{0};
  };

  PeerCopies(Context& context, int size, int rank);
  void meet(const std::string& key);
  // Lets go of others' memory.
  void close() noexcept;
  void map();
  void try_out(void* memory);
  void pass(Stream& stream, Event& event);

  Lane& lane(int from, int to) const;
  // A flag of shared memory, as this device names it.
  void* on_device(const std::atomic<std::uint32_t>& flag) const;
  void post(Lane& lane, std::uint32_t number, const Tensor& data, Waiting waiting);
  const void* find(Lane& lane, int from, std::uint32_t number, std::int64_t bytes, Waiting waiting);

  Context& context_;
  const DevicePeers& device_;
  const int ordinal_, size_, rank_;
  std::shared_ptr<std::byte> shared_;
  std::byte* flags_ = nullptr;  // `shared_` as the device names it; null: not mapped
  std::vector<Peer> peers_;
  std::map<std::pair<int, PeerHandle>, void*> opened_;  // by owner
  const int failures_;
};

}  // namespace primus::comm::nccl
