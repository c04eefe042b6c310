#include "engine/parallel/tensor_parallel.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <vector>

#include "base/check.h"
#include "comm/overlap.h"
#include "engine/operators/low_rank.h"
#include "tensor/scratch_tensor.h"
#include "turbo/elementwise/elementwise.h"
#include "turbo/linear/linear.h"

namespace primus::engine {

TensorParallel::TensorParallel(Rank& rank, const Options& options)
    : rank_(rank),
      group_(*rank.mesh().tensor()),
      options_(options),
      stream_(rank.device().create_stream(StreamKind::kCommunication)),
      computed_(rank.device().create_event()),
      arrived_(rank.device().create_event()) {
  for (int distance = 1; by_copy_engines() && distance < group_.size(); ++distance)
    rows_arrived_.push_back(rank.device().create_event());
}

bool TensorParallel::worthwhile(std::int64_t bytes) const {
  return options_.overlap && bytes >= options_.min_bytes && group_.size() <= turbo::Add::kMaxRanks;
}

void TensorParallel::follow_compute() {
  rank_.compute().record(*computed_);
  stream_->wait(*computed_);
}

void TensorParallel::gather(const Tensor& own, const Tensor& all) {
  follow_compute();
  if (by_copy_engines()) {
    const std::int64_t rows = own.shape[0];
    const int ranks = group_.size(), rank = group_.rank();
    for (int distance = 1; distance < ranks; ++distance) {
      const int from = (rank + distance) % ranks, to = (rank + ranks - distance) % ranks;
      group_.exchange(*stream_,
                      std::array{comm::Transfer::send(own, to),
                                 comm::Transfer::receive(all.slice(from * rows, (from + 1) * rows), from)});
      stream_->record(*rows_arrived_[static_cast<std::size_t>(distance - 1)]);
    }
  } else {
    group_.all_gather(*stream_, own, all);
  }
  stream_->record(*arrived_);
}

void TensorParallel::complete(const Tensor& own, const Tensor& all) {
  if (!by_copy_engines() || rank_.measuring()) return;
  const std::int64_t rows = own.shape[0];
  const Tensor place = all.slice(group_.rank() * rows, (group_.rank() + 1) * rows);
  rank_.compute().copy_on_device(place.data, own.data, own.bytes());
}

std::int64_t TensorParallel::Options::overlapped_rows(std::int64_t rows, double flops_of_row,
                                                      std::int64_t bytes) const {
  const double wanted =
      std::min(flops_per_byte * static_cast<double>(bytes) / flops_of_row, static_cast<double>(rows));
  const auto whole = static_cast<std::int64_t>(std::ceil(wanted));
  const std::int64_t rounded = (whole + rows_multiple - 1) / rows_multiple * rows_multiple;
  // A small remainder is not worth a separate product.
  return rows - rounded < rows / 4 ? rows : rounded;
}

void TensorParallel::exchange(std::span<const comm::Transfer> transfers) {
  follow_compute();
  group_.exchange(*stream_, transfers);
  stream_->record(*arrived_);
}

void TensorParallel::wait() { rank_.compute().wait(*arrived_); }

void TensorParallel::wait_for_rows(int distance) {
  rank_.compute().wait(*rows_arrived_[static_cast<std::size_t>(distance - 1)]);
}

namespace {

using turbo::Gemm;
using turbo::GemmRole;
using turbo::launch;

struct Attributes {
  TensorParallel* overlap;
};

TensorParallel& overlap_of(const OperatorCall& op) { return *op.attributes<Attributes>().overlap; }

// Rows [begin, end) of all tokens.
struct Rows {
  std::int64_t begin, end;
  Tensor of(const Tensor& all) const { return all.slice(begin, end); }
};

// Returns the rows that `rank` owns.
Rows rows_of(const Tensor& all, const comm::Communicator& group, int rank) {
  const std::int64_t each = all.shape[0] / group.size();
  return {rank * each, (rank + 1) * each};
}

// `spared`: see Gemm.
void multiply(OperatorCall& op, GemmRole role, const Tensor& a, const Tensor& b, const Tensor& c,
              bool accumulate = false, int spared = 0) {
  launch(op.context(), Gemm{.role = role,
                            .a = a,
                            .b = b,
                            .c = c,
                            .accumulate = accumulate,
                            .spared = std::max(spared, op.context().spared),
                            .workspace = {}});
}

// Computes c, the product of rows `a` and the weight, while a collective transfers `bytes` to this rank.
void multiply_overlapped(OperatorCall& op, GemmRole role, const Tensor& a, const Tensor& c,
                         std::int64_t bytes, bool accumulate = false) {
  if (overlap_of(op).by_copy_engines()) return multiply(op, role, a, op.weight(), c, accumulate);
  const std::int64_t rows = c.shape[0];
  const double flops_of_row = 2.0 * static_cast<double>(a.shape[1] * c.shape[1]);
  const std::int64_t overlap = overlap_of(op).options().overlapped_rows(rows, flops_of_row, bytes);
  multiply(op, role, a.slice(0, overlap), op.weight(), c.slice(0, overlap), accumulate,
           comm::kOverlapProcessors);
  if (overlap == rows) return;
  multiply(op, role, a.slice(overlap, rows), op.weight(), c.slice(overlap, rows), accumulate);
}

// Multiplies all rows of `a` while the rows of other ranks arrive. `own` are this rank's rows.
void multiply_arriving(OperatorCall& op, GemmRole role, const Tensor& own, const Tensor& a, const Tensor& c,
                       bool accumulate = false) {
  TensorParallel& overlap = overlap_of(op);
  const Rows mine = rows_of(a, overlap.group(), overlap.group().rank());
  multiply_overlapped(op, role, own, mine.of(c), a.bytes() - own.bytes(), accumulate);
  if (overlap.by_copy_engines()) {
    const int ranks = overlap.group().size();
    for (int distance = 1; distance < ranks; ++distance) {
      overlap.wait_for_rows(distance);
      const Rows theirs = rows_of(a, overlap.group(), (overlap.group().rank() + distance) % ranks);
      multiply(op, role, theirs.of(a), op.weight(), theirs.of(c), accumulate);
    }
    return overlap.wait();
  }
  overlap.wait();
  for (const Rows others : {Rows{0, mine.begin}, Rows{mine.end, a.shape[0]}}) {
    if (others.begin < others.end) multiply(op, role, others.of(a), op.weight(), others.of(c), accumulate);
  }
}

// Multiplies `a` by the weight, and sums the products over ranks: `all` receives this rank's products, `own`
// this rank's rows of the sum. Rows for other ranks are computed first and sent during the other products.
// `overlapped_before`: bytes of a collective already in flight; 0: none.
void multiply_and_scatter(OperatorCall& op, GemmRole role, const Tensor& a, const Tensor& all,
                          const Tensor& own, std::int64_t overlapped_before) {
  TensorParallel& overlap = overlap_of(op);
  comm::Communicator& group = overlap.group();
  const int ranks = group.size(), rank = group.rank();
  const std::int64_t rows = own.shape[0];
  const ScratchTensor arriving(op.context().scratch, all.dtype, {(ranks - 1) * rows, all.shape[1]});
  for (int i = 1; i < ranks; ++i) {
    const int to = (rank + i) % ranks, from = (rank + ranks - i) % ranks;
    const Rows of_peer = rows_of(all, group, to);
    // The first product overlaps the earlier collective. Each later product overlaps the transfer of the
    // previous part.
    const std::int64_t bytes = i > 1 ? own.bytes() : overlapped_before;
    if (bytes > 0) {
      multiply_overlapped(op, role, of_peer.of(a), of_peer.of(all), bytes);
    } else {
      multiply(op, role, of_peer.of(a), op.weight(), of_peer.of(all));
    }
    const Tensor part = arriving.get().slice((i - 1) * rows, i * rows);
    const std::array transfers{comm::Transfer::send(of_peer.of(all), to),
                               comm::Transfer::receive(part, from)};
    overlap.exchange(transfers);
  }
  const Rows mine = rows_of(all, group, rank);
  multiply_overlapped(op, role, mine.of(a), mine.of(all), own.bytes());
  overlap.wait();
  launch(op.context(),
         turbo::Add{.a = mine.of(all), .b = arriving.get(), .out = own, .ranks = ranks, .rank = rank});
}

void weight_gradient(OperatorCall& op, const Tensor& d_y, const Tensor& x) {
  const auto [d_weight, accumulate] = op.d_weight();
  multiply(op, GemmRole::kWeightGradient, d_y, x, d_weight, accumulate);
}

// --- gathered_linear: also outputs all rows of x. If the call is replayed, the weight gradient uses these
// rows.

struct Gathered {
  enum In : InputName { kX };
  enum Out : OutputName { kY, kAllX };
};

template <bool kKept>
void gathered_forward(OperatorCall& op) {
  overlap_of(op).gather(op.in(Gathered::kX), op.out(Gathered::kAllX));
  multiply_arriving(op, GemmRole::kForward, op.in(Gathered::kX), op.out(Gathered::kAllX),
                    op.out(Gathered::kY));
  if (kKept) overlap_of(op).complete(op.in(Gathered::kX), op.out(Gathered::kAllX));
}

template <bool kKept>
void gathered_backward_input(OperatorCall& op) {
  TensorParallel& overlap = overlap_of(op);
  const Tensor d_y = op.d_out(Gathered::kY);
  const Shape all{d_y.shape[0], op.in_shape(Gathered::kX)[1]};
  const bool both = op.weight_gradient_now();
  std::optional<ScratchTensor> gathered;
  std::int64_t arriving = 0;
  if (both && !kKept) {
    gathered.emplace(op.context().scratch, d_y.dtype, all);
    const Tensor own = op.in(Gathered::kX);
    overlap.gather(own, gathered->get());
    arriving = gathered->get().bytes() - own.bytes();
  }
  if (op.needs_d_in(Gathered::kX)) {
    const ScratchTensor d_all(op.context().scratch, d_y.dtype, all);
    const OperatorCall::Target d_x = op.fresh_d_in(Gathered::kX);
    multiply_and_scatter(op, GemmRole::kInputGradient, d_y, d_all.get(), d_x.out, arriving);
    add_previous(op, d_x);
  } else if (gathered) {
    overlap.wait();
  }
  if (!both) return;
  if (gathered) overlap.complete(op.in(Gathered::kX), gathered->get());
  weight_gradient(op, d_y, kKept ? op.out(Gathered::kAllX) : gathered->get());
  op.weight_gradient_done();
}

template <bool kKept>
void gathered_backward_weight(OperatorCall& op) {
  const Tensor d_y = op.d_out(Gathered::kY);
  if constexpr (kKept) return weight_gradient(op, d_y, op.out(Gathered::kAllX));
  TensorParallel& overlap = overlap_of(op);
  const ScratchTensor gathered(op.context().scratch, d_y.dtype, {d_y.shape[0], op.in_shape(Gathered::kX)[1]});
  const Tensor own = op.in(Gathered::kX);
  overlap.gather(own, gathered.get());
  overlap.wait();
  overlap.complete(own, gathered.get());
  weight_gradient(op, d_y, gathered.get());
}

template <bool kKept>
constexpr Operator kGathered{.name = "gathered_linear",
                             .operator_class = OperatorClass::kLinear,
                             .forward = gathered_forward<kKept>,
                             .backward_input = gathered_backward_input<kKept>,
                             .backward_weight = gathered_backward_weight<kKept>,
                             .for_weight = kKept ? saves(Gathered::kAllX) : saves(Gathered::kX)};

// --- scattered_linear: outputs this rank's rows of the sum, and this rank's products for all rows. The
// gathered gradient of the first output becomes the gradient of the second output.

struct Scattered {
  enum In : InputName { kX };
  enum Out : OutputName { kY, kProducts };
};

void scattered_forward(OperatorCall& op) {
  multiply_and_scatter(op, GemmRole::kForward, op.in(Scattered::kX), op.out(Scattered::kProducts),
                       op.out(Scattered::kY), 0);
}

void scattered_backward_input(OperatorCall& op) {
  TensorParallel& overlap = overlap_of(op);
  const Tensor d_y = op.d_out(Scattered::kY), d_all = op.complete_d_out(Scattered::kProducts);
  overlap.gather(d_y, d_all);
  if (!op.needs_d_in(Scattered::kX)) {
    overlap.wait();
    return overlap.complete(d_y, d_all);
  }
  const OperatorCall::Target d_x = op.d_in(Scattered::kX);
  const bool in_place = !d_x.previous.absent() && d_x.previous.data == d_x.out.data;
  multiply_arriving(op, GemmRole::kInputGradient, d_y, d_all, d_x.out, in_place);
  if (!in_place) add_previous(op, d_x);
  overlap.complete(d_y, d_all);
}

void scattered_backward_weight(OperatorCall& op) {
  // No input gradient was needed, so the gather has not run yet.
  if (op.d_out(Scattered::kProducts).absent()) {
    TensorParallel& overlap = overlap_of(op);
    const Tensor d_y = op.d_out(Scattered::kY), d_all = op.complete_d_out(Scattered::kProducts);
    overlap.gather(d_y, d_all);
    overlap.wait();
    overlap.complete(d_y, d_all);
  }
  weight_gradient(op, op.d_out(Scattered::kProducts), op.in(Scattered::kX));
}

// Recompute policies treat this operator like scatter_tokens(), which has the same output.
constexpr Operator kScattered{.name = "scattered_linear",
                              .operator_class = OperatorClass::kCommunication,
                              .forward = scattered_forward,
                              .backward_input = scattered_backward_input,
                              .backward_weight = scattered_backward_weight,
                              .for_weight = saves(Scattered::kX)};

// Returns whether a gather or scatter of this many bytes overlaps products with this weight. fp8 and fp4
// products quantise all rows at once, so they cannot overlap.
bool can_overlap(const Value& x, const Parameter& weight, comm::Communicator* group,
                 const TensorParallel* overlap, std::int64_t bytes) {
  return group && overlap && overlap->worthwhile(bytes) &&
         !x.tape().precision().is_fp8(GemmRole::kForward, weight) && !x.tape().precision().is_fp4(weight);
}

Value gathered_product(const Value& x, Parameter& weight, comm::Communicator* group,
                       TensorParallel* overlap) {
  const std::int64_t ranks = group ? group->size() : 1, rows = x.shape()[0] * ranks, in = x.shape()[1];
  if (!can_overlap(x, weight, group, overlap, rows * in * size_of(x.dtype()))) {
    return product(gather_tokens(x, group), weight);
  }
  PRIMUS_CHECK("gathered_product", group == &overlap->group());
  Tape& tape = x.tape();
  const bool kept = tape.drops(OperatorClass::kLinear);
  const Tape::Output y{Gathered::kY, x.dtype(), Shape{rows, weight.shape[0]}};
  const Tape::Output all{Gathered::kAllX, x.dtype(), Shape{rows, in}, false};
  return tape.record(kept ? kGathered<true> : kGathered<false>, {{Gathered::kX, x}}, &weight, {y, all},
                     Attributes{overlap})[Gathered::kY];
}

Value scattered_product(const Value& x, Parameter& weight, comm::Communicator* group,
                        TensorParallel* overlap) {
  const std::int64_t rows = x.shape()[0], out = weight.shape[0];
  if (!can_overlap(x, weight, group, overlap, rows * out * size_of(x.dtype()))) {
    return scatter_tokens(product(x, weight), group);
  }
  PRIMUS_CHECK("scattered_product", group == &overlap->group() && rows % group->size() == 0);
  const Tape::Output own{Scattered::kY, x.dtype(), Shape{rows / group->size(), out}};
  const Tape::Output products{Scattered::kProducts, x.dtype(), Shape{rows, out}, false};
  return x.tape().record(kScattered, {{Scattered::kX, x}}, &weight, {own, products},
                         Attributes{overlap})[Scattered::kY];
}

}  // namespace

// The adapter's A is complete on every rank. Each rank multiplies its own tokens by A, so only low-rank rows
// are sent.
Value gathered_linear(const Value& x, Parameter& weight, comm::Communicator* group, TensorParallel* overlap) {
  if (!group) return linear(x, weight);
  Value y = gathered_product(x, weight, group, overlap);
  const LowRank& low_rank = x.tape().adapter_of(weight);
  if (!low_rank) {
    return with_part_adapters(std::move(y), weight, [&](const LowRank& part) {
      const Value low = product(before_low_rank(x, part, RowsOf::kOwn), *part.down);
      return gathered_product(low, *part.up, group, overlap);
    });
  }
  const Value read = before_low_rank(x, low_rank, RowsOf::kOwn);
  const Value low = scale(product(read, *low_rank.down), low_rank.scale);
  Value added = gathered_product(low, *low_rank.up, group, overlap);
  return sum(std::move(y), after_low_rank(std::move(added), low_rank, RowsOf::kLayer));
}

// The adapter's A is split like the weight. The adapter's B is complete.
Value scattered_linear(const Value& x, Parameter& weight, comm::Communicator* group,
                       TensorParallel* overlap) {
  if (!group) return linear(x, weight);
  Value y = scattered_product(x, weight, group, overlap);
  const LowRank& low_rank = x.tape().adapter_of(weight);
  if (!low_rank) {
    const auto product_of = [&](const LowRank& part) {
      const Value read = before_low_rank(x, part, RowsOf::kLayer);
      return product(scattered_product(read, *part.down, group, overlap), *part.up);
    };
    return with_part_adapters(std::move(y), weight, product_of, group);
  }
  const Value read = before_low_rank(x, low_rank, RowsOf::kLayer);
  const Value low = scale(scattered_product(read, *low_rank.down, group, overlap), low_rank.scale);
  return sum(std::move(y), after_low_rank(product(low, *low_rank.up), low_rank, RowsOf::kOwn));
}

}  // namespace primus::engine
