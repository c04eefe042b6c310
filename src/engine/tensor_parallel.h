// Products of ranks that share layers, with the collectives that feed and follow them beside the products.
//
//   gathered_linear:  h [T/n, in] --gather--> [T, in] · partᵀ -> [T, out/n]
//   scattered_linear: x [T, in/n] · partᵀ --scatter (sum)--> [T/n, out]
//
// A rank multiplies its own rows while the others' arrive, and what the others are to get before what is its
// own. Where a GPU's library of collectives takes multiprocessors, the product beside one leaves it some
// (comm/beside.h), so it is cut to about the collective's length, and the rest has them all. Where copy
// engines do the work, products have all multiprocessors all the time, and rows are multiplied rank by rank
// as they arrive. What is computed is the same as with gather_tokens(), linear() and scatter_tokens(); sums
// over ranks are made in fp32 and rounded once.
//
// Not thread-safe; one per rank. All ranks of the group make the same calls in the same order.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/operators.h"
#include "engine/parallel_operators.h"
#include "engine/rank.h"

namespace primus::engine {

class TensorParallel {
 public:
  struct Options {
    // The least that is worth parting: the whole of what is gathered or scattered. Below, products in pieces
    // and waiting between streams cost more than they hide.
    std::int64_t least_bytes = std::int64_t{8} << 20;
    // Of a product beside a collective, for each byte that a rank gets, and in whole tiles of rows: an
    // H100's 570 TFLOP/s of the multiprocessors that are left against 210 GB/s.
    double flops_per_byte = 2700;
    std::int64_t rows_multiple = 128;
    bool overlap = true;

    // Of `rows` rows of a product, each of so many FLOPs, those that go beside a collective of `bytes`.
    std::int64_t rows_beside(std::int64_t rows, double flops_of_row, std::int64_t bytes) const;
  };

  // The rank's mesh has tensor ranks; `rank` must outlive this.
  TensorParallel(Rank& rank, const Options& options);

  comm::Communicator& group() { return group_; }
  const Options& options() const { return options_; }
  // Of what is gathered or scattered; false: never.
  bool worthwhile(std::int64_t bytes) const;
  // Whether products beside a collective need not make room for it.
  bool by_copy_engines() const { return group_.by_copy_engines(); }

  // For the operators. Each begins once what is enqueued on the compute stream so far is over, and runs
  // beside what comes after.
  //
  // Copy engines bring the other ranks' rows only, which is all that a product needs whose own rows are at
  // hand; complete() adds those.
  void gather(const Tensor& own, const Tensor& all);
  void complete(const Tensor& own, const Tensor& all);
  void exchange(std::span<const comm::Transfer> transfers);
  // The compute stream waits for all of them.
  void wait();
  // Or, after a gather by copy engines, for the rows of the rank `distance` behind this one, in a ring.
  void wait_for_rows(int distance);

 private:
  void follow_compute();

  Rank& rank_;
  comm::Communicator& group_;
  Options options_;
  // A stream of its own: what is sharded over data ranks travels on the rank's, and must not hold this up.
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Event> computed_, arrived_;
  std::vector<std::unique_ptr<Event>> rows_arrived_;  // by distance - 1
};

// linear(gather_tokens(x, group), weight), and scatter_tokens(linear(x, weight), group). `beside` null, or
// not worthwhile: just these.
Value gathered_linear(const Value& x, Parameter& weight, comm::Communicator* group, TensorParallel* beside);
Value scattered_linear(const Value& x, Parameter& weight, comm::Communicator* group, TensorParallel* beside);

}  // namespace primus::engine
