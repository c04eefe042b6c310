// Collectives on CPUs. The algorithms here work over every transport that implements Links.
//
// All ranks exchange directly. In a reduction, each rank owns a part of the tensor. The owner receives all
// inputs of this part and adds the inputs in a fixed order. Then the results of all parts are gathered. The
// algorithm moves as many bytes as a ring. Its order of summation depends on neither timing nor the split of
// tensors. The order is specified in comm/communicator.h. Large tensors are processed in blocks, without a
// copy of the entire tensor.
//
// Needs streams of a CPU device (KernelContext is cpu::CpuContext).
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/accumulate.h"
#include "comm/communicator.h"
#include "comm/links.h"
#include "comm/messenger.h"
#include "comm/rank_state.h"

namespace primus::comm {

class HostCommunicator final : public Communicator {
 public:
  // `id`: identifies the group within the job. `members`: its ranks in the job; `rank`: this rank's index in
  // `members`. `factory` makes the links of this group and of groups split off it.
  HostCommunicator(std::string name, std::string id, std::vector<int> members, int rank,
                   std::shared_ptr<LinkFactory> factory, std::shared_ptr<RankState> state,
                   Overlap overlap = Overlap::kNothing);
  ~HostCommunicator() override;

  void abort(const std::string& reason) noexcept override;
  void set_timeout(std::chrono::milliseconds timeout) override;
  RankState& state() { return *state_; }

 private:
  struct Operation {
    Call call;
    Signature signature;
    std::uint64_t sequence, record;
  };
  struct Launch;
  static void kernel(KernelContext& context, const void* arguments);

  void enqueue(Stream& stream, Call call) override;
  std::unique_ptr<Communicator> make_split(std::span<const int> members, int new_rank,
                                           const std::string& name, Overlap overlap) override;
  void run(KernelContext& context, std::uint64_t turn);
  void execute(const Operation& operation);

  void run_all_reduce(const Tensor& in, const Tensor& out, Reduction reduction);
  void run_reduce_scatter(const Tensor& in, const Tensor& out, Reduction reduction);
  void run_all_gather(const Tensor& in, const Tensor& out);
  void run_broadcast(const Tensor& data, int root);
  void run_all_to_all(const Call& call);
  void run_all_to_all_in_place(const Call& call);
  void run_exchange(const Call& call);
  void run_barrier();
  // Writes the reduction of `own` and of the other ranks' inputs to `to`, which may be `own`. Ranks are
  // processed in order. Two adjacent partial sums are merged as soon as they cover equally many ranks, like
  // carries of a binary counter.
  void reduce(const std::byte* own, std::byte* to, std::int64_t count, DType dtype, Reduction reduction);
  // Opens one message to every other rank and one from every other rank.
  void meet_all(DType dtype, std::int64_t count);

  std::string id_;
  std::vector<int> members_;
  std::shared_ptr<LinkFactory> factory_;
  std::shared_ptr<RankState> state_;
  std::unique_ptr<Links> links_;
  Messenger messenger_;
  int recorder_group_;
  // memory of partial sums of any type; its elements are std::int64_t for alignment
  std::vector<std::int64_t> accumulators_;
  std::map<std::string, int> splits_;  // number of splits per group

  std::mutex mutex_;  // guards the fields below; the rank's thread enqueues, the streams' threads run
  std::condition_variable turn_changed_;
  std::map<std::uint64_t, Operation> operations_;  // calls, by the turn at which they run
  // next_turn_: turn of the next enqueued call; turn_: the turn that may run now
  std::uint64_t next_turn_ = 0, turn_ = 0;
  std::uint64_t collectives_ = 0, exchanges_ = 0;
};

}  // namespace primus::comm
