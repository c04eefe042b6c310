// Collectives between devices by the vendor's library, NCCL or RCCL: the communicator of GPUs.
//
// Work runs on the given streams, between two events that a watchdog asks for: it fills the flight recorder,
// and names a collective that does not end within the rank's timeout with the ranks that it waits for.
//
// What differs from the contract is said in communicator.h: sums in the library's order, above all.
//
// A group of one rank needs no library. Groups of which wants_copy_engines() says so exchange, and gather
// what is large, by copy engines (peer_copies.h).
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "comm/beside.h"
#include "comm/nccl/handle.h"
#include "comm/nccl/peer_copies.h"
#include "comm/nccl/watchdog.h"

namespace primus::comm::nccl {

// What the communicators of one rank share. Its device outlives it.
struct Context {
  // `collectives`: of the device's plug-in. `library`: null in a job of one rank.
  Context(Device& on, const DeviceCollectives& collectives, std::shared_ptr<const Library> library,
          std::shared_ptr<RankState> state);

  Device& device;
  const int ordinal;
  const DeviceCollectives& collectives;
  const std::shared_ptr<const Library> library;
  const std::shared_ptr<RankState> state;
  Watchdog watchdog;

  // The job's directory, over which the ranks of a group meet: set before the first group of several ranks.
  std::function<void(const std::string& key, const std::string& value)> publish;
  std::function<std::string(const std::string& key)> wait_for;
  std::chrono::milliseconds start_timeout = std::chrono::minutes(5);  // for all ranks of a group to come
  CopyEngines copy_engines = CopyEngines::kAuto;
};

class NcclCommunicator final : public Communicator, private Watched {
 public:
  // `id`: names the group in the whole job. `members`: its ranks of the job; `rank`: this one's place there.
  // Waits for the other members.
  NcclCommunicator(std::string name, std::string id, std::vector<int> members, int rank,
                   std::shared_ptr<Context> context, Beside beside = Beside::kNothing);
  ~NcclCommunicator() override;

  void abort(const std::string& reason) noexcept override;
  void set_timeout(std::chrono::milliseconds timeout) override;
  bool by_copy_engines() const override { return copies_ != nullptr; }
  std::string why_no_copy_engines() const override { return why_no_copies_; }

 private:
  using Clock = std::chrono::steady_clock;
  // A collective that was enqueued and has not been seen to end.
  struct Pending {
    std::uint64_t record = 0;
    bool exchange = false;
    std::vector<int> peers;  // whom it needs, by rank of the group
    std::unique_ptr<Event> begin, end;
    std::optional<Clock::time_point> begun;
  };

  void enqueue(Stream& stream, Call call) override;
  std::unique_ptr<Communicator> make_split(std::span<const int> members, int new_rank,
                                           const std::string& name, Beside beside) override;
  bool poll() noexcept override;
  bool end() noexcept override;

  // Enqueues what the library, or a copy on the device, does for this call.
  void start(Stream& stream, Call& call, const Signature& signature, const Pending& pending, bool recording);
  Result start_in_library(Stream& stream, const Call& call, Comm comm) const;
  Result send_and_receive(Stream& stream, const Call& call, Comm comm) const;
  void copy_own_parts(Stream& stream, const Call& call) const;
  void stage(Stream& stream, Call& call);
  std::unique_ptr<Event> take_event();
  void wait_for_room();
  // `pending` has waited for others for too long: aborts the job, unless they have an excuse.
  void be_late(const Pending& pending, std::chrono::milliseconds waited);
  std::vector<int> peers_of(const Call& call) const;

  const std::string id_;
  const std::vector<int> members_;
  const std::shared_ptr<Context> context_;
  RankState& state_;
  const int recorder_group_;
  std::optional<Handle> handle_;  // none in a group of one rank
  std::unique_ptr<PeerCopies> copies_;
  std::string why_no_copies_;
  bool ended_ = false;       // used by the watchdog alone
  void* barrier_ = nullptr;  // one int32 on the device
  Tensor staging_;           // what an all_to_all in place sends
  std::map<std::string, int> splits_;
  std::uint64_t collectives_ = 0, exchanges_ = 0;
  Stream* last_stream_ = nullptr;  // compared only

  std::mutex mutex_;  // guards what follows, which the watchdog uses as well
  std::deque<Pending> pending_;
  std::vector<std::unique_ptr<Event>> free_events_;
};

}  // namespace primus::comm::nccl
