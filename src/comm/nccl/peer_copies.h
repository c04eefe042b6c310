// Sends and receives between GPUs of one host by copy engines, which leave all multiprocessors to kernels.
// Tensor ranks use them for exchanges that overlap GEMMs.
//
// There is no staging buffer: the receiver's copy engine reads directly from the sender's buffer. For each
// transfer, the sender's host thread posts the buffer's address in shared host memory. The receiver's host
// thread waits for this address and enqueues the copy. Two flags per pair of ranks order the devices: `ready`
// counts transfers whose data is ready on the sender's stream, `done` counts finished copies. A stream
// continues after its own copies and after the peers' reads of its buffers. So memory can be reused in stream
// order, and a stuck rank blocks its peers inside the call.
//
//   sender's stream    ... data | ready = n |                      | wait done >= n | ...
//   receiver's stream  ...      |    wait ready >= n, copy, done = n                | ...
//
// The order of streams cannot cause a deadlock, because a rank posts and sets `ready` before it waits for any
// peer of the same call.
//
// move_rows() works the other way round: the receiver posts the rows' destination, and the sender's kernel
// writes them there, because only the sender's device knows their number. Here `ready` says that this memory
// may be overwritten, and `done` that all rows have arrived.
//
// Thread-safety: exchange(), all_gather() and move_rows() belong to the rank's thread; any thread may
// call release() and unsent().
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
  enum class Use { kExchange, kRows };  // kRows: for move_rows()

  // Collective: all ranks of the group call it with a `key` unique to the group. It tests all requirements of
  // `use`; kRows needs DevicePeers::copy_rows. If copies between any two ranks do not work, returns null on
  // every rank, with the same `why`. Throws Error if the job is aborted or a rank does not arrive.
  static std::unique_ptr<PeerCopies> open(Context& context, const std::string& key, int size, int rank,
                                          std::string& why, Use use = Use::kExchange);
  // Destroy this object only after the streams have finished its work. Waits briefly until the peers have
  // finished too.
  ~PeerCopies();
  PeerCopies(const PeerCopies&) = delete;
  PeerCopies& operator=(const PeerCopies&) = delete;

  // Runs Communicator::exchange(), except for a rank's sends to itself. While the host waits for another
  // rank's post, it calls `waiting` with the elapsed time. If `waiting` throws, enqueued work waits until
  // release().
  using Waiting = FunctionRef<void(std::chrono::milliseconds waited)>;
  void exchange(Stream& stream, std::span<const Transfer> transfers, Waiting waiting);

  // Runs Communicator::all_gather(). Calls `waiting` as exchange() does.
  void all_gather(Stream& stream, const Tensor& in, const Tensor& out, Waiting waiting);

  // Runs Communicator::all_to_all_rows(), including the rank's rows for itself, without a wait for the
  // counts. Calls `waiting` as exchange() does.
  void move_rows(Stream& stream, const Call& call, Waiting waiting);
  // Returns by how many bytes complete parts for other ranks exceed the rows that move_rows() has sent so
  // far.
  std::int64_t unsent() const;

  // After an abort: unblocks the stream's waits; the data in memory is undefined afterwards. Running peers
  // may overwrite the flags again, so call release() repeatedly until the work has ended.
  void release() noexcept;

 private:
  struct Lane;
  struct Region;
  // Numbers of the last transfers requested to and from a peer.
  struct Peer {
    std::atomic<std::uint32_t> sent{0}, received{0};
  };

  PeerCopies(Context& context, int size, int rank);
  void meet(const std::string& key);
  // Unmaps the other ranks' memory.
  void close() noexcept;
  void map();
  void try_out(void* memory, Use use);
  void pass(Stream& stream, Event& event);

  Lane& lane(int from, int to) const;
  // Returns the device address of a flag in shared memory.
  void* on_device(const void* flag) const;
  void post(Lane& lane, std::uint32_t number, const Tensor& data, Waiting waiting);
  void* find(Lane& lane, int from, std::uint32_t number, std::int64_t bytes, Waiting waiting);

  Context& context_;
  const DevicePeers& device_;
  const int ordinal_, size_, rank_;
  std::shared_ptr<std::byte> shared_;
  std::byte* flags_ = nullptr;  // device address of `shared_`; null: not mapped
  std::vector<Peer> peers_;
  std::map<std::pair<int, PeerHandle>, void*> opened_;  // mapped memory, by owning rank and handle
  std::atomic<std::int64_t> complete_{0};  // bytes of complete parts for other ranks in move_rows()
  const int failures_;
};

}  // namespace primus::comm::nccl
