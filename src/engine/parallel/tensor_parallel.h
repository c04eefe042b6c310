// Products of tensor-parallel layers, overlapped with the collectives before and after them.
//
//   gathered_linear:  h [T/n, in] --gather--> [T, in] · partᵀ -> [T, out/n]
//   scattered_linear: x [T, in/n] · partᵀ --scatter (sum)--> [T/n, out]
//
// In gathered_linear, a rank multiplies its own rows while the rows of other ranks arrive. In
// scattered_linear, a rank computes the rows for other ranks before its own rows. If a GPU's collectives
// library uses multiprocessors, the overlapped product leaves some multiprocessors free for it
// (comm/overlap.h). This product has only as many rows as the collective's duration allows. The product of
// the other rows uses all multiprocessors. If copy engines make the transfers, products always use all
// multiprocessors, and rows are multiplied rank by rank as they arrive. The results equal those of
// gather_tokens(), linear() and scatter_tokens(). Sums over ranks are computed in fp32 and rounded once.
//
// Not thread-safe; one per rank. All ranks of the group make the same calls in the same order.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/operators/operators.h"
#include "engine/parallel/parallel_operators.h"
#include "engine/runtime/rank.h"

namespace primus::engine {

class TensorParallel {
 public:
  struct Options {
    // Minimum number of gathered or scattered bytes for overlap. For smaller transfers, split products and
    // waits between streams cost more than overlap saves.
    std::int64_t min_bytes = std::int64_t{8} << 20;
    // FLOPs of an overlapped product per byte that a rank receives. On an H100, the remaining multiprocessors
    // reach 570 TFLOP/s, and the transfer reaches 210 GB/s. Rows are rounded to multiples of rows_multiple,
    // for complete tiles.
    double flops_per_byte = 2700;
    std::int64_t rows_multiple = 128;
    bool overlap = true;

    // Returns how many of a product's `rows` rows, with `flops_of_row` each, overlap a collective of `bytes`.
    std::int64_t overlapped_rows(std::int64_t rows, double flops_of_row, std::int64_t bytes) const;
  };

  // The rank's mesh must have tensor ranks. `rank` must outlive this object.
  TensorParallel(Rank& rank, const Options& options);

  comm::Communicator& group() { return group_; }
  const Options& options() const { return options_; }
  // Returns whether to overlap when this many bytes are gathered or scattered; false if overlap is off.
  bool worthwhile(std::int64_t bytes) const;
  // Returns whether copy engines make the transfers, so that overlapped products may use all multiprocessors.
  bool by_copy_engines() const { return group_.by_copy_engines(); }

  // The following functions are for the operators. Each transfer begins after the work enqueued on the
  // compute stream up to now, and overlaps the work enqueued later.
  //
  // With copy engines, gather() copies only the other ranks' rows to `all`, because products read this rank's
  // rows from `own`. complete() also copies this rank's rows to `all`.
  void gather(const Tensor& own, const Tensor& all);
  void complete(const Tensor& own, const Tensor& all);
  void exchange(std::span<const comm::Transfer> transfers);
  // Makes the compute stream wait for all transfers begun by these functions.
  void wait();
  // After a gather by copy engines: waits only for the rows of rank (rank + distance) mod ranks of the group.
  void wait_for_rows(int distance);

 private:
  void follow_compute();

  Rank& rank_;
  comm::Communicator& group_;
  Options options_;
  // A separate stream: transfers of data-parallel shards use the rank's communication stream, and must not
  // delay these transfers.
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Event> computed_, arrived_;
  std::vector<std::unique_ptr<Event>> rows_arrived_;  // index: distance - 1
};

// gathered_linear() returns linear(gather_tokens(x, group), weight), and scattered_linear() returns
// scatter_tokens(linear(x, weight), group). With `overlap`, communication overlaps products. Without
// `overlap`, or for small transfers, the separate operators run.
Value gathered_linear(const Value& x, Parameter& weight, comm::Communicator* group, TensorParallel* overlap);
Value scattered_linear(const Value& x, Parameter& weight, comm::Communicator* group, TensorParallel* overlap);

}  // namespace primus::engine
