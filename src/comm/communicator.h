// The contract of collective communication among the ranks of a group. Implementations: comm/local (threads
// of one process, processes of one host), comm/tcp, comm/nccl (GPUs, by NCCL or RCCL), and measuring.h
// (counts calls, without peers).
//
// Every rank of a group holds its own Communicator and makes the same calls in the same order. A call only
// enqueues work. The work runs in stream order. An event recorded after the call marks the end of the work.
// Work of one communicator runs in call order, even when the calls use different streams. Tensors are
// contiguous device memory. They must stay valid and unchanged until the work has finished.
//
// In place: `in` and `out` may be the same memory (for reduce_scatter: `out` is this rank's part of `in`; for
// all_gather: `in` is this rank's part of `out`). Any other overlap is not allowed.
//
// Reductions on CPUs depend on neither timing nor transport. Let p be the largest power of two below n. The
// sum over n ranks is the sum over the first p ranks plus the sum over the remaining ranks. Both partial sums
// are computed recursively by this rule. bf16 and fp16 are accumulated in fp32 and rounded once. kMean
// divides the sum by the size (floating types only). Integers wrap around. kMax propagates NaN.
//
// On GPUs, the vendor's library chooses the order. This order depends on the tensor size, the number of ranks
// and the machine's topology. Runs that agree in all three compute equal sums. bf16 and fp16 may be rounded
// at every addition, kMean may divide before it adds, and kMax may drop a NaN. A sum over two ranks has only
// one order, so sums of two ranks have the same bits as on CPUs. Data movement and integer addition are exact
// everywhere. With set_ordered_sums(), the engine exchanges and adds some sums itself, in the order of CPUs.
//
// Errors: calls that break the rules above (types, counts, ranks) are bugs in this program and throw
// std::logic_error immediately. A later failure aborts the whole job: a peer is lost, makes a different call,
// or is late. Then every waiting rank wakes up and throws an Error with the first cause. Later calls on all
// communicators of the job throw the same Error. On GPUs, mismatched calls are detected only by the timeout
// of a waiting rank. Mismatched calls with equal numbers of bytes are not detected, and give wrong data.
//
// Thread-safety: a communicator belongs to its rank's thread, except abort() and set_timeout(), which any
// thread may call. Destroy it only after the streams have finished its work.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "device/device.h"
#include "tensor/tensor.h"

namespace primus::comm {

enum class Reduction : std::uint8_t { kSum, kMax, kMean };

enum class Kind : std::uint8_t {
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kBroadcast,
  kAllToAll,
  kExchange,  // a batch of sends and receives
  kBarrier,
  kCount
};
std::string_view name_of(Kind kind);            // "all_reduce"
std::string_view name_of(Reduction reduction);  // "sum"

// Returns whether communicators can move and reduce this type: fp32, fp64, bf16, fp16, int32, int64 or uint8.
bool supports(DType dtype);

// The kernels that a group's collectives overlap. On a GPU, this setting divides the multiprocessors between
// kernels and collectives (comm/overlap.h). The setting has no effect on CPUs.
enum class Overlap : std::uint8_t {
  kNothing,  // no kernels, or kernels that end before the collective does (expert all-to-all)
  // any kernels; for collectives of parameters, gradients, and the keys and values of context ranks
  kKernels,
  kProducts,  // GEMMs that are divided to match the collective's length (engine/parallel/tensor_parallel.h)
};

// One send or receive of a batch.
struct Transfer {
  bool sends = false;
  int peer = 0;
  Tensor data;

  static Transfer send(const Tensor& from, int to_rank) { return {true, to_rank, from}; }
  static Transfer receive(const Tensor& into, int from_rank) { return {false, from_rank, into}; }
};

// The calls this rank has made, by kind. `bytes`: bytes that this rank sends to other ranks, assuming that
// all ranks exchange directly. all_reduce: 2 (n - 1) / n of the tensor; reduce_scatter: (n - 1) / n of `in`;
// all_gather: n - 1 times `in`; broadcast: n - 1 times the tensor (root only); all_to_all and exchange: the
// parts for other ranks; all_to_all_rows: the counted rows for other ranks, once the call has read the
// counts.
struct Traffic {
  struct Line {
    std::int64_t calls = 0;
    double bytes = 0;
  };
  std::array<Line, static_cast<std::size_t>(Kind::kCount)> lines{};

  const Line& operator[](Kind kind) const { return lines[static_cast<std::size_t>(kind)]; }
  double total_bytes() const;
};

// Identifies the contents of the counts of all_to_all_rows(). Calls of a communicator that pass the same
// number must have the same counts.
struct RowCounts {
  std::uint64_t number = 0;  // 0: the counts are not identified
  bool back = false;         // the rows return: what these counts send, the numbered counts receive
};

// A validated call, as passed to implementations.
struct Call {
  Kind kind = Kind::kBarrier;
  Reduction reduction = Reduction::kSum;
  int root = 0;
  Tensor in, out;
  // for all_to_all only: elements sent to, and received from, each rank
  std::vector<std::int64_t> send_counts, receive_counts;
  // For all_to_all_rows only: the number of rows used in each part. For this call, send_counts and
  // receive_counts hold the sizes of full parts.
  Tensor send_rows, receive_rows;
  RowCounts row_counts;
  std::int64_t unsent = 0;          // the bytes of rows for other ranks that prepare() found to be unused
  std::vector<Transfer> transfers;  // exchange
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  const std::string& name() const { return name_; }  // the group's name, for messages: "world", "dp"
  Overlap overlap() const { return overlap_; }

  // out = the reduction of every rank's `in`. Shapes are equal on all ranks.
  void all_reduce(Stream& stream, const Tensor& in, const Tensor& out, Reduction reduction);
  // `in` has size() parts of out.elements() elements each, in rank order. out = the reduction over all ranks
  // of part number rank() of `in`.
  void reduce_scatter(Stream& stream, const Tensor& in, const Tensor& out, Reduction reduction);
  // `out` has size() parts of in.elements() elements each: every rank's `in`, in rank order.
  void all_gather(Stream& stream, const Tensor& in, const Tensor& out);
  // Copies root's `data` to every rank's `data`.
  void broadcast(Stream& stream, const Tensor& data, int root);
  // Sends the first send_counts[0] elements of `in` to rank 0, the next send_counts[1] elements to rank 1,
  // and so on. The first receive_counts[0] elements of `out` come from rank 0, and so on. A rank's send count
  // for a peer must equal the peer's receive count for the rank. In place, send_counts and receive_counts
  // must be equal.
  void all_to_all(Stream& stream, const Tensor& in, std::span<const std::int64_t> send_counts,
                  const Tensor& out, std::span<const std::int64_t> receive_counts);
  // all_to_all() with counts that are known only on the device. `in` and `out` are size() parts of rows,
  // [size() * rows, width]. The first send_counts[p] rows of part p of `in` go to rank p, to the start of
  // this rank's part in that rank's `out`. Counts: [size()] int32 in device memory, read when the call runs.
  // Other rows of `out` are undefined. Not in place. Only the counted rows are sent.
  //
  // CPU communicators need no host sync, and neither do GPUs of one host whose kernels write rows directly
  // (CountedRows). Vendor libraries need the sizes when they are called, so on GPUs the host waits in this
  // call until the counts have arrived from the device. The host does not wait if an earlier call had the
  // same `counts`, and hardly if count_rows() was called with enough work of the device in between. While the
  // stream records a graph, GPUs send complete parts.
  void all_to_all_rows(Stream& stream, const Tensor& in, const Tensor& send_counts, const Tensor& out,
                       const Tensor& receive_counts, RowCounts counts = {});
  // Chooses how all_to_all_rows() sends rows, which the first call does otherwise. Collective. Returns the
  // choice as a sentence without its full stop; "" if there is nothing to choose.
  virtual std::string prepare_rows() { return {}; }
  // Returns a number above 0 for RowCounts that this communicator has not returned before.
  std::uint64_t new_row_number() { return ++row_numbers_; }
  // Starts to copy counts to the host, for later all_to_all_rows() calls with this number above 0. Call it
  // after the stream's work that writes the counts, also if a plan is computed again. No effect on CPUs.
  virtual void count_rows(Stream& /*stream*/, const Tensor& /*send_counts*/, const Tensor& /*receive_counts*/,
                          std::uint64_t /*number*/) {}
  // Runs all transfers of the batch concurrently, so their order cannot cause a deadlock. Between two ranks,
  // sends are matched with receives in the order of calls and of the batch. Matching transfers must have
  // equal counts and types. Ranks that no transfer names need not call exchange(). A rank may send to itself.
  void exchange(Stream& stream, std::span<const Transfer> transfers);
  // The stream waits until every rank's stream has reached this point.
  void barrier(Stream& stream);

  // Creates a communicator for some of this group's ranks: members[i] becomes rank i. Only the members call
  // it, all with the same arguments. Blocks the host until all members have called it.
  std::unique_ptr<Communicator> split(std::span<const int> members, const std::string& name,
                                      Overlap overlap = Overlap::kNothing);

  // Ends the job's communication and wakes up all waiting ranks. The first reason given on any rank is
  // reported.
  virtual void abort(const std::string& reason) noexcept = 0;
  // Sets the maximum time that work may wait for other ranks without progress. After this time, the job is
  // aborted.
  virtual void set_timeout(std::chrono::milliseconds timeout) = 0;

  // Requests that forward passes add this group's sums in an order that does not depend on an element's
  // position (engine/parallel/ordered_sums.h). Groups that are split off later inherit the request. Needed
  // for batch-invariant GPUs. Reductions of this class do not change.
  void set_ordered_sums(bool ordered) { ordered_sums_ = ordered; }
  bool ordered_sums() const { return ordered_sums_; }

  // Returns whether exchange() moves data by copy engines, which leaves all multiprocessors free.
  virtual bool by_copy_engines() const { return false; }
  // If copy engines were requested but are not used, returns the reason as a sentence without its full stop;
  // else "".
  virtual std::string why_no_copy_engines() const { return {}; }

  Traffic traffic() const;

 protected:
  Communicator(std::string name, int rank, int size, Overlap overlap = Overlap::kNothing);
  // Corrects traffic() when an all_to_all_rows() reads its counts after enqueue(). `bytes`: the part of the
  // rows for other ranks that is not sent. Any thread may call it.
  void count_unsent(std::int64_t bytes) { unsent_ += bytes; }
  // Returns the bytes that traffic() subtracts.
  virtual std::int64_t unsent() const { return unsent_; }

 private:
  // Called before enqueue(): a communicator that needs the row counts on the host waits for them here.
  virtual void prepare(Stream& /*stream*/, Call& /*call*/) {}
  virtual void enqueue(Stream& stream, Call call) = 0;
  // Called by split() with valid arguments. `new_rank` is the index of this rank in `members`.
  virtual std::unique_ptr<Communicator> make_split(std::span<const int> members, int new_rank,
                                                   const std::string& name, Overlap overlap) = 0;
  void submit(Stream& stream, Call call, double bytes);

  std::string name_;
  int rank_, size_;
  Overlap overlap_;
  bool ordered_sums_ = false;
  Traffic traffic_;  // with complete parts for all_to_all_rows()
  std::uint64_t row_numbers_ = 0;
  std::atomic<std::int64_t> unsent_{0};  // bytes in `traffic_` that were not sent
};

}  // namespace primus::comm
