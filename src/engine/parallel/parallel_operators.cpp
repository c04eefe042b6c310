#include "engine/parallel/parallel_operators.h"

#include <algorithm>
#include <optional>

#include "base/check.h"
#include "engine/parallel/ordered_sums.h"
#include "tensor/scratch_tensor.h"
#include "turbo/elementwise/elementwise.h"
#include "turbo/moe_permute/moe_permute.h"

namespace primus::engine {
namespace {

using comm::Communicator;
using comm::Reduction;
using turbo::launch;

struct GroupAttributes {
  Communicator* group;
};

Communicator& group_of(const OperatorCall& op) { return *op.attributes<GroupAttributes>().group; }

// Returns `shape` with `rows` as its first extent.
Shape with_rows(const Shape& shape, std::int64_t rows) {
  PRIMUS_CHECK("parallel operator", shape.rank() == 1 || shape.rank() == 2);
  return shape.rank() == 1 ? Shape{rows} : Shape{rows, shape[1]};
}

std::int64_t rows_of_rank(const Shape& shape, int ranks) {
  PRIMUS_CHECK("parallel operator", shape[0] % ranks == 0);
  return shape[0] / ranks;
}

void copy(OperatorCall& op, const Tensor& from, const Tensor& to) {
  if (op.context().measuring()) return;
  op.context().stream.copy_on_device(to.data, from.data, from.bytes());
}

// Calls `make` to compute this operator's contribution to the gradient of input `i`, and adds the previous
// gradient.
template <class Make>
void add_input_gradient(OperatorCall& op, InputPlace i, const Make& make) {
  const auto [d_x, previous] = op.fresh_d_in(i);
  make(d_x);
  add_previous(op, {d_x, previous});
}

void gather(OperatorCall& op, const Tensor& from, const Tensor& to) {
  group_of(op).all_gather(op.context().stream, from, to);
}

void scatter(OperatorCall& op, const Tensor& from, const Tensor& to) {
  group_of(op).reduce_scatter(op.context().stream, from, to, Reduction::kSum);
}

// --- gather, replicate, scatter, own

void gather_forward(OperatorCall& op) { gather(op, op.in(Unary::kX), op.out(Unary::kY)); }

void gather_backward(OperatorCall& op) {
  add_input_gradient(op, Unary::kX, [&](const Tensor& d_x) { scatter(op, op.d_out(Unary::kY), d_x); });
}

void replicate_backward(OperatorCall& op) {
  add_input_gradient(op, Unary::kX, [&](const Tensor& d_x) {
    copy(op, own_tokens(op.d_out(Unary::kY), &group_of(op)), d_x);
  });
}

void scatter_forward(OperatorCall& op) {
  const Tensor x = op.in(Unary::kX), y = op.out(Unary::kY);
  if (!sums_need_order(group_of(op))) return scatter(op, x, y);
  const ScratchTensor parts(op.context().scratch, x.dtype, x.shape);
  sum_in_order(op.context(), group_of(op), x, parts.get(), y);
}

void scatter_backward(OperatorCall& op) {
  add_input_gradient(op, Unary::kX, [&](const Tensor& d_x) { gather(op, op.d_out(Unary::kY), d_x); });
}

void own_forward(OperatorCall& op) {
  copy(op, own_tokens(op.in(Unary::kX), &group_of(op)), op.out(Unary::kY));
}

constexpr Operator kGather{.name = "gather_tokens",
                           .operator_class = OperatorClass::kCommunication,
                           .forward = gather_forward,
                           .backward_input = gather_backward};
constexpr Operator kReplicate{.name = "replicate_tokens",
                              .operator_class = OperatorClass::kCommunication,
                              .forward = gather_forward,
                              .backward_input = replicate_backward};
constexpr Operator kScatter{.name = "scatter_tokens",
                            .operator_class = OperatorClass::kCommunication,
                            .forward = scatter_forward,
                            .backward_input = scatter_backward};
constexpr Operator kOwn{
    .name = "own_tokens", .operator_class = OperatorClass::kCommunication, .forward = own_forward};

// --- share_routing

struct RoutingAttributes {
  SharedExperts experts;
  std::int64_t top_k, all;  // `all`: number of all experts
  bool dropping;
  OwnRows rows;

  // Returns this rank's rows of a tensor that has the rows of all tokens.
  Tensor own(const Tensor& of_all) const { return experts.own_of_round(of_all); }
  int ranks() const { return experts.group ? experts.group->size() : 1; }
};

void gather_or_copy(OperatorCall& op, const RoutingAttributes& a, const Tensor& from, const Tensor& to) {
  if (a.experts.group) return a.experts.group->all_gather(op.context().stream, from, to);
  copy(op, from, to);
}

struct ShareRouting {
  enum In : InputName { kWeights, kExperts, kPlan };
  enum Out : OutputName { kOwnWeights, kOwnPlan };
};

void share_routing_forward(OperatorCall& op) {
  const auto a = op.attributes<RoutingAttributes>();
  const std::int64_t tokens = op.in(ShareRouting::kExperts).shape[0];
  gather_or_copy(op, a, a.own(op.in(ShareRouting::kWeights)), op.out(ShareRouting::kOwnWeights));
  const Shape slots = op.out(ShareRouting::kOwnWeights).shape;
  const ScratchTensor choices(op.context().scratch, DType::kI32, slots);
  gather_or_copy(op, a, a.own(op.in(ShareRouting::kExperts)), choices.get());
  std::optional<ScratchTensor> kept;
  if (a.dropping) {
    kept.emplace(op.context().scratch, DType::kI32, slots);
    const turbo::RoutingPlan plan(op.in(ShareRouting::kPlan), a.all, tokens, a.top_k);
    gather_or_copy(op, a, a.own(plan.rows), kept->get());
  }
  plan_own_rows(op, a.experts, a.all, a.rows, choices.get(), kept ? kept->get() : Tensor(),
                op.out(ShareRouting::kOwnPlan));
}

void share_routing_backward(OperatorCall& op) {
  const auto a = op.attributes<RoutingAttributes>();
  const Tensor d_out = op.d_out(ShareRouting::kOwnWeights);
  add_input_gradient(op, ShareRouting::kWeights, [&](const Tensor& d_weights) {
    // Each rank computes the gradient of its own tokens, so other tokens get zeros here.
    launch(op.context(), turbo::Fill{.out = d_weights, .value = 0});
    const Tensor own = a.own(d_weights);
    if (a.experts.group) {
      a.experts.group->reduce_scatter(op.context().stream, d_out, own, Reduction::kSum);
    } else {
      copy(op, d_out, own);
    }
  });
}

constexpr Operator kShareRouting{.name = "share_routing",
                                 .operator_class = OperatorClass::kRouting,
                                 .forward = share_routing_forward,
                                 .backward_input = share_routing_backward};

// --- gather_logits

struct GatherLogits {
  enum In : InputName { kOwn };
  enum Out : OutputName { kAll };
};

// Collectives need equal sizes on all ranks, so each rank's part is padded to the size of the largest part.
void gather_logits_forward(OperatorCall& op) {
  const auto& vocabulary = op.attributes<SharedVocabulary>();
  const Tensor own = op.in(GatherLogits::kOwn), all = op.out(GatherLogits::kAll);
  const int ranks = vocabulary.group->size();
  const auto part = [&](int rank) { return vocabulary_rows(vocabulary.size, ranks, rank); };
  std::int64_t widest = 0;
  for (int rank = 0; rank < ranks; ++rank) widest = std::max(widest, part(rank).size());
  const std::int64_t rows = own.rows();
  const ScratchTensor padded(op.context().scratch, own.dtype, {rows, widest});
  const ScratchTensor parts(op.context().scratch, own.dtype, {ranks * rows, widest});
  launch(op.context(), turbo::CopyRows::strided(own, padded.get(), rows, own.cols(), own.cols(), widest));
  vocabulary.group->all_gather(op.context().stream, padded.get(), parts.get());
  for (int rank = 0; rank < ranks; ++rank) {
    launch(op.context(),
           turbo::CopyRows::strided(parts.get().slice(rank * rows, (rank + 1) * rows),
                                    all.from(part(rank).begin), rows, part(rank).size(), widest, all.cols()));
  }
}

constexpr Operator kGatherLogits{.name = "gather_logits",
                                 .operator_class = OperatorClass::kCommunication,
                                 .forward = gather_logits_forward};

}  // namespace

// --- functions for model code

Value gather_tokens(const Value& x, Communicator* group, Gathered gathered) {
  if (!group) return x;
  std::optional<ReplayScope> replay;
  if (gathered == Gathered::kAgain) replay.emplace(x.tape());
  const Tape::Output out{Unary::kY, x.dtype(), with_rows(x.shape(), x.shape()[0] * group->size())};
  return x.tape().record(kGather, {{Unary::kX, x}}, nullptr, {out}, GroupAttributes{group})[Unary::kY];
}

Value replicate_tokens(const Value& x, Communicator* group) {
  if (!group) return x;
  const Tape::Output out{Unary::kY, x.dtype(), with_rows(x.shape(), x.shape()[0] * group->size())};
  return x.tape().record(kReplicate, {{Unary::kX, x}}, nullptr, {out}, GroupAttributes{group})[Unary::kY];
}

Value scatter_tokens(const Value& x, Communicator* group) {
  if (!group) return x;
  const Tape::Output out{Unary::kY, x.dtype(), with_rows(x.shape(), rows_of_rank(x.shape(), group->size()))};
  return x.tape().record(kScatter, {{Unary::kX, x}}, nullptr, {out}, GroupAttributes{group})[Unary::kY];
}

Value own_tokens(const Value& x, Communicator* group) {
  if (!group) return x;
  const Tape::Output out{Unary::kY, x.dtype(), with_rows(x.shape(), rows_of_rank(x.shape(), group->size())),
                         false};
  return x.tape().record(kOwn, {{Unary::kX, x}}, nullptr, {out}, GroupAttributes{group})[Unary::kY];
}

Tensor own_tokens(const Tensor& x, const Communicator* group) {
  if (!group) return x;
  const std::int64_t rows = rows_of_rank(x.shape, group->size());
  return x.slice(group->rank() * rows, (group->rank() + 1) * rows);
}

FlatRange vocabulary_rows(std::int64_t size, int ranks, int rank) {
  // Aligns large parts to vectors and to the tiles of matrix products.
  const std::int64_t grain = size / ranks >= 128 ? 64 : 1;
  const auto cut = [&](int i) { return i == ranks ? size : size * i / ranks / grain * grain; };
  return {cut(rank), cut(rank + 1)};
}

Value gather_logits(const Value& own, const SharedVocabulary& vocabulary) {
  if (!vocabulary.group) return own;
  PRIMUS_CHECK("gather_logits", own.shape()[1] == vocabulary.own().size());
  const Tape::Output out{GatherLogits::kAll, own.dtype(), {own.shape()[0], vocabulary.size}, false};
  return own.tape().record(kGatherLogits, {{GatherLogits::kOwn, own}}, nullptr, {out},
                           vocabulary)[GatherLogits::kAll];
}

Tensor SharedExperts::own_of_round(const Tensor& of_microbatch) const {
  const Tensor own = own_tokens(of_microbatch, tokens);
  return round.empty() ? own : own.slice(round.begin, round.end);
}

std::int64_t SharedExperts::own_of_round(std::int64_t of_microbatch) const {
  return round.empty() ? rows_of_rank({of_microbatch}, tokens ? tokens->size() : 1) : round.size();
}

std::int64_t SharedExperts::max_rows(std::int64_t tokens_of_all, std::int64_t of_microbatch,
                                     std::int64_t top_k, std::int64_t capacity) const {
  std::int64_t rows = tokens_of_all * std::min(top_k, count);
  if (limit > 0) rows = std::min(rows, limit);
  if (capacity == 0) return rows;
  const std::int64_t microbatches = (tokens_of_all + of_microbatch - 1) / of_microbatch;
  return std::min(rows, count * capacity * microbatches);
}

Shape OwnRows::plan_shape(const SharedExperts& experts) const {
  const auto part = [&](std::int64_t rows) {
    return turbo::RoutingPlan::shape(experts.count, tokens, top_k, rows)[0];
  };
  return {kept > 0 ? part(kept) + part(maximum) : part(maximum)};
}

void plan_own_rows(OperatorCall& op, const SharedExperts& experts, std::int64_t all, const OwnRows& rows,
                   const Tensor& choices, const Tensor& kept, const Tensor& plan) {
  turbo::PlanRouting call{.experts = choices,
                          .weights = {},
                          .kept = kept,
                          .plan = plan,
                          .expert_count = experts.count,
                          .capacity = 0,
                          .first = experts.first,
                          .all = all};
  if (rows.kept == 0) return launch(op.context(), call);
  const auto part = [&](std::int64_t count) {
    return turbo::RoutingPlan::shape(experts.count, rows.tokens, rows.top_k, count);
  };
  const ScratchTensor whole(op.context().scratch, DType::kI32, part(rows.maximum));
  call.plan = whole.get();
  call.head = plan.slice(0, part(rows.kept)[0]);
  call.rest = plan.slice(part(rows.kept)[0], plan.elements());
  launch(op.context(), call);
}

Routing share_routing(const Routing& r, const SharedExperts& experts, std::int64_t capacity) {
  const std::int64_t top_k = r.weights.shape()[1];
  const std::int64_t own = experts.own_of_round(r.weights.shape()[0]);
  const std::int64_t tokens = own * (experts.group ? experts.group->size() : 1);
  const std::int64_t of_microbatch = own * (experts.tokens ? experts.tokens->size() : 1);
  const std::int64_t maximum = experts.max_rows(tokens, of_microbatch, top_k, capacity);
  const OwnRows rows{tokens, top_k, maximum, std::min(experts.keeps, maximum)};
  const RoutingAttributes a{experts, top_k, r.expert_count, capacity > 0, rows};
  Tape::Outputs recorded =
      r.weights.tape().record(kShareRouting,
                              {{ShareRouting::kWeights, r.weights},
                               {ShareRouting::kExperts, r.experts},
                               {ShareRouting::kPlan, r.plan}},
                              nullptr,
                              {{ShareRouting::kOwnWeights, DType::kF32, {tokens, top_k}},
                               {ShareRouting::kOwnPlan, DType::kI32, rows.plan_shape(experts), false}},
                              a);
  return {.weights = std::move(recorded[ShareRouting::kOwnWeights]),
          .experts = {},
          .plan = std::move(recorded[ShareRouting::kOwnPlan]),
          .expert_count = experts.count,
          .rows = rows.maximum,
          .kept = rows.kept,
          .by_logits = false};
}

}  // namespace primus::engine
