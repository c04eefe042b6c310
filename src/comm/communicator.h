// The contract of collective communication: what ranks of one group do together. Implementations: comm/local
// (threads of one process, processes of one host), comm/tcp, comm/nccl (GPUs, by NCCL or RCCL), and
// measuring.h, which has no peers at all.
//
// Every rank of a group holds its own Communicator and makes the same calls in the same order. A call only
// enqueues: the work runs in the order of the stream, and an event recorded behind it marks its completion.
// Work of one communicator runs in the order of its calls, also when those name different streams. Tensors
// are device memory, contiguous, and must stay valid and untouched until the work is over.
//
// In place: `in` and `out` may be the same memory (for reduce_scatter: `out` is this rank's part of `in`; for
// all_gather: `in` is this rank's part of `out`). Any other overlap is not allowed.
//
// Reductions depend on neither timing nor transport: the sum of n ranks is that of the first p (the largest
// power of two below n) plus that of the rest, made alike; bf16 and fp16 are added up in fp32 and rounded
// once. kMean divides the sum by the size (floating types only). Integers wrap around. kMax hands a NaN on.
// Not so on GPUs, where the order is the library's: it depends on the size of the tensor, the number of ranks
// and how the machines are linked. With all of these equal, sums are equal from run to run. bf16 and fp16
// may be rounded at every addition, kMean may divide before it adds, and kMax may drop a NaN. Between two
// ranks there is only one order, and sums of fp32 are as above. Moving data and adding integers is exact
// everywhere.
//
// Errors: calls that break the rules above (types, counts, ranks) are our own bugs and throw
// std::logic_error at once. What goes wrong later (a peer is lost, makes another call, does not come in time)
// aborts the whole job: every waiting rank wakes up and throws an Error with the first cause, and so does
// every later call, on every communicator of the job. On GPUs, ranks that make different calls are noticed
// when one of them waits in vain, at the timeout; if all get what they wait for, data may be wrong instead.
//
// Thread-safety: a communicator belongs to its rank's thread, except abort() and set_timeout(), which any
// thread may call. Destroy it only when the streams have finished its work.
#pragma once

#include <array>
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

// Types that every communicator moves and reduces: fp32, fp64, bf16, fp16, int32, int64, uint8.
bool supports(DType dtype);

// What a group's work runs beside. On a GPU both want multiprocessors, so this decides who gets how many
// (comm/beside.h). On hosts it changes nothing.
enum class Beside : std::uint8_t {
  kNothing,   // or what ends sooner, as beside tokens on their way to experts: ranks wait for the group
  kKernels,   // kernels of any sort: parameters and gradients, and keys and values of context ranks
  kProducts,  // products of matrices, which are cut to its length (engine/tensor_parallel.h)
};

// One of a batch of sends and receives.
struct Transfer {
  bool sends = false;
  int peer = 0;
  Tensor data;

  static Transfer send(const Tensor& from, int to_rank) { return {true, to_rank, from}; }
  static Transfer receive(const Tensor& into, int from_rank) { return {false, from_rank, into}; }
};

// What a rank has asked for so far, by kind. `bytes`: what it sends to other ranks when everybody exchanges
// directly: all_reduce 2 (n - 1) / n of the tensor, reduce_scatter (n - 1) / n of `in`, all_gather n - 1
// times `in`, broadcast n - 1 times the tensor (root only), all_to_all and exchange what goes to others.
struct Traffic {
  struct Line {
    std::int64_t calls = 0;
    double bytes = 0;
  };
  std::array<Line, static_cast<std::size_t>(Kind::kCount)> lines{};

  const Line& operator[](Kind kind) const { return lines[static_cast<std::size_t>(kind)]; }
  double total_bytes() const;
};

// A checked call, as implementations see it.
struct Call {
  Kind kind = Kind::kBarrier;
  Reduction reduction = Reduction::kSum;
  int root = 0;
  Tensor in, out;
  std::vector<std::int64_t> send_counts, receive_counts;  // all_to_all: one per rank, in elements
  Tensor send_rows, receive_rows;  // all_to_all_rows: how many of each part; the counts above are whole parts
  std::vector<Transfer> transfers;  // exchange
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  const std::string& name() const { return name_; }  // of the group, for messages: "world", "dp"
  Beside beside() const { return beside_; }

  // out = the reduction of every rank's `in`. Same shape everywhere.
  void all_reduce(Stream& stream, const Tensor& in, const Tensor& out, Reduction reduction);
  // `in` is size() parts of out.elements(), in rank order; out = the reduction of this rank's parts.
  void reduce_scatter(Stream& stream, const Tensor& in, const Tensor& out, Reduction reduction);
  // `out` is size() parts of in.elements(): every rank's `in`, in rank order.
  void all_gather(Stream& stream, const Tensor& in, const Tensor& out);
  // Every rank's `data` becomes root's.
  void broadcast(Stream& stream, const Tensor& data, int root);
  // The first send_counts[0] elements of `in` go to rank 0, the next send_counts[1] to rank 1, and so on;
  // `out` is filled likewise, from receive_counts. What one rank sends to another must be what that one
  // expects. In place, both counts must be equal.
  void all_to_all(Stream& stream, const Tensor& in, std::span<const std::int64_t> send_counts,
                  const Tensor& out, std::span<const std::int64_t> receive_counts);
  // The same where only the devices know how much: `in` and `out` are size() parts of rows, [size() * rows,
  // width], and of part p of `in` the first send_counts[p] rows go to rank p, to the front of this rank's
  // part of `out` there. Counts: [size()] int32 in device memory, read when the call runs; no host waits for
  // them. What lies behind the counted rows in `out` is anything. Not in place. Hosts send the counted rows
  // alone. Libraries of vendors want to know how much when they are called, so they send whole parts; that is
  // also what traffic() counts.
  void all_to_all_rows(Stream& stream, const Tensor& in, const Tensor& send_counts, const Tensor& out,
                       const Tensor& receive_counts);
  // All of the batch at once: no order of sends and receives deadlocks. Between two ranks, sends and receives
  // match in the order of the calls and of the batch, in count and type. Only ranks that are named take part;
  // a rank may send to itself.
  void exchange(Stream& stream, std::span<const Transfer> transfers);
  // No rank's stream goes on before every rank's stream has come here.
  void barrier(Stream& stream);

  // The communicator of some of this group's ranks, in the order of `members`: member i has rank i there. The
  // members call it, all with the same arguments; other ranks do not. The host waits for the members.
  std::unique_ptr<Communicator> split(std::span<const int> members, const std::string& name,
                                      Beside beside = Beside::kNothing);

  // Ends the job's communication: wakes everybody up. The first reason given anywhere is the one reported.
  virtual void abort(const std::string& reason) noexcept = 0;
  // How long work may wait for other ranks without any progress before the job is aborted.
  virtual void set_timeout(std::chrono::milliseconds timeout) = 0;

  // Whether exchange() takes no multiprocessor of a device: copy engines move the data.
  virtual bool by_copy_engines() const { return false; }
  // Why not, where somebody asked for them: a sentence without its full stop. Else empty.
  virtual std::string why_no_copy_engines() const { return {}; }

  const Traffic& traffic() const { return traffic_; }

 protected:
  Communicator(std::string name, int rank, int size, Beside beside = Beside::kNothing);

 private:
  virtual void enqueue(Stream& stream, Call call) = 0;
  // `members` holds `rank` of this group at [new_rank]; checked.
  virtual std::unique_ptr<Communicator> make_split(std::span<const int> members, int new_rank,
                                                   const std::string& name, Beside beside) = 0;
  void submit(Stream& stream, Call call, double bytes);

  std::string name_;
  int rank_, size_;
  Beside beside_;
  Traffic traffic_;
};

}  // namespace primus::comm
