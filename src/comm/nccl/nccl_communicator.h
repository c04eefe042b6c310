// Collectives between GPUs by the vendor's library, NCCL or RCCL.
//
// Work runs on the given streams, between two events that a watchdog polls. The watchdog fills the flight
// recorder. If a collective does not end within the rank's timeout, the watchdog aborts the job and names the
// missing ranks.
//
// communicator.h lists the differences from CPU communicators. The most important difference: the library
// chooses the order of sums.
//
// A group of one rank needs no library. If wants_copy_engines() is true for a group, copy engines run the
// group's exchange() and large all_gather() calls (peer_copies.h).
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

#include "comm/nccl/handle.h"
#include "comm/nccl/peer_copies.h"
#include "comm/nccl/row_counter.h"
#include "comm/nccl/watchdog.h"
#include "comm/overlap.h"

namespace primus::comm::nccl {

// State shared by the communicators of one rank. The device must outlive this state.
struct Context {
  // `collectives`: from the device's plug-in. `library`: null in a job of one rank.
  Context(Device& on, const DeviceCollectives& collectives, std::shared_ptr<const Library> library,
          std::shared_ptr<RankState> state);

  Device& device;
  const int ordinal;
  const DeviceCollectives& collectives;
  const std::shared_ptr<const Library> library;
  const std::shared_ptr<RankState> state;
  Watchdog watchdog;

  // The job's key-value directory, through which the ranks of a group find each other. Set before the first
  // group of several ranks.
  std::function<void(const std::string& key, const std::string& value)> publish;
  std::function<std::string(const std::string& key)> wait_for;
  std::chrono::milliseconds start_timeout = std::chrono::minutes(5);  // limit for a group's ranks to arrive
  CopyEngines copy_engines = CopyEngines::kAuto;
  CountedRows counted_rows = CountedRows::kAuto;  // equal on all ranks
};

class NcclCommunicator final : public Communicator, private Watched {
 public:
  // `id`: identifies the group within the job. `members`: its ranks in the job; `rank`: this rank's index
  // there. Waits for the other members.
  NcclCommunicator(std::string name, std::string id, std::vector<int> members, int rank,
                   std::shared_ptr<Context> context, Overlap overlap = Overlap::kNothing);
  ~NcclCommunicator() override;

  void count_rows(Stream& stream, const Tensor& send_counts, const Tensor& receive_counts,
                  std::uint64_t number) override;
  void abort(const std::string& reason) noexcept override;
  void set_timeout(std::chrono::milliseconds timeout) override;
  bool by_copy_engines() const override { return copies_ != nullptr; }
  std::string why_no_copy_engines() const override { return why_no_copies_; }
  std::string prepare_rows() override;

 private:
  using Clock = std::chrono::steady_clock;
  // An enqueued collective whose end was not yet observed.
  struct Pending {
    std::uint64_t record = 0;
    bool exchange = false;
    std::vector<int> peers;  // ranks of the group that the collective waits for
    std::unique_ptr<Event> begin, end;
    std::optional<Clock::time_point> begun;
  };

  void prepare(Stream& stream, Call& call) override;
  std::int64_t unsent() const override;
  void enqueue(Stream& stream, Call call) override;
  std::unique_ptr<Communicator> make_split(std::span<const int> members, int new_rank,
                                           const std::string& name, Overlap overlap) override;
  bool poll() noexcept override;
  bool release() noexcept override;
  void end() noexcept override;

  // Enqueues this call's work: calls of the library or copies on the device.
  void start(Stream& stream, Call& call, const Signature& signature, const Pending& pending, bool recording);
  Result start_in_library(Stream& stream, const Call& call, Comm comm) const;
  Result send_and_receive(Stream& stream, const Call& call, Comm comm) const;
  void copy_own_parts(Stream& stream, const Call& call) const;
  void stage(Stream& stream, Call& call);
  // Returns whether all_to_all_rows() on this stream sends only the counted rows.
  bool counts_rows(Stream& stream);
  // Chooses at the first call how all_to_all_rows() sends rows. All ranks make the same choice. Throws Error
  // if CountedRows::kDirect is not possible.
  void choose_rows();
  std::unique_ptr<Event> take_event();
  void wait_for_room();
  // Called when `pending` has waited too long for other ranks: aborts the job, except if these ranks are busy
  // with an activity (excused() in rank_state.h).
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
  struct Rows {
    bool chosen = false;
    std::unique_ptr<PeerCopies> direct;  // null: the library sends the rows; changed with mutex_ locked
    std::string why_not_direct;          // "" also if nothing else was asked for
  };
  Rows rows_;                // how all_to_all_rows() sends rows
  void* barrier_ = nullptr;  // one int32 on the device
  RowCounter row_counter_;
  Tensor staging_;  // send buffer of an in-place all_to_all
  std::map<std::string, int> splits_;
  std::uint64_t collectives_ = 0, exchanges_ = 0;
  Stream* last_stream_ = nullptr;  // used only for comparison

  mutable std::mutex mutex_;  // guards the fields below, which the watchdog also uses
  std::deque<Pending> pending_;
  std::vector<std::unique_ptr<Event>> free_events_;
};

}  // namespace primus::comm::nccl
