#include "engine/parallel/expert_dispatch.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "engine/parallel/expert_hops.h"
#include "engine/parallel/ordered_sums.h"
#include "tensor/scratch_tensor.h"
#include "turbo/elementwise/elementwise.h"
#include "turbo/fp8_rows/fp8_rows.h"
#include "turbo/moe_permute/moe_permute.h"

namespace primus::engine {
namespace {

using comm::Communicator;
using turbo::DispatchPlan;
using turbo::launch;

struct RowAttributes {
  ExpertParallel* parallel;
  std::int64_t tokens, top_k;
  std::int64_t maximum;  // maximum rows per rank for all-to-all; 0: all-gather
  std::int64_t to_host;  // maximum rows per host for all-to-all in two hops; 0: one hop
  bool overlap;
  std::uint64_t number;  // identifies the plan's counts of rows (comm::RowCounts)

  bool all_to_all() const { return maximum > 0; }
  bool two_hops() const { return to_host > 0; }
  std::int64_t ranks() const { return parallel->group().size(); }
  // Number of rows that may arrive at this rank's experts.
  std::int64_t rows() const { return ranks() * (all_to_all() ? maximum : tokens); }
  // Number of rows that this rank may send for its tokens, and that may return.
  std::int64_t sent_rows() const { return two_hops() ? hops().host_rows() : rows(); }
  ExpertHops hops() const {
    const ExpertHosts& hosts = parallel->hosts();
    return {hosts.between->size(), hosts.within->size(), tokens, top_k, to_host, maximum};
  }
  Shape plan_shape() const {
    return two_hops() ? hops().plan_shape()
                      : DispatchPlan::shape(static_cast<int>(ranks()), tokens, top_k, maximum);
  }
  DispatchPlan one_hop(const Tensor& plan) const {
    return {plan, static_cast<int>(ranks()), tokens, top_k, maximum};
  }
  // The plan by which this rank's tokens leave, and the plan by which rows arrive at this rank's experts.
  DispatchPlan leaving(const Tensor& plan) const {
    return two_hops() ? hops().between_hosts(plan) : one_hop(plan);
  }
  DispatchPlan arriving(const Tensor& plan) const {
    return two_hops() ? hops().within_host(plan) : one_hop(plan);
  }
};

struct RowTransfer {
  enum In : InputName { kRows, kPlan };  // kPlan: Dispatch::plan, only for all-to-all
  enum Out : OutputName { kMoved };
};

// One call of an operator that sends rows or waits for them.
class Call {
 public:
  explicit Call(OperatorCall& op) : op_(op), a_(op.attributes<RowAttributes>()) {}

  bool all_to_all() const { return a_.all_to_all(); }
  // The choices of the rows that arrive; below 0 for unused rows.
  Tensor sources() const { return a_.arriving(plan()).sources; }
  Tensor plan() const { return op_.in(RowTransfer::kPlan); }
  Tensor of_sent(const Buffer& buffer, const Tensor& like) const {
    return buffer.view(like.dtype, {a_.sent_rows(), like.cols()});
  }
  Tensor of_tokens(const Buffer& buffer, const Tensor& like) const {
    return buffer.view(like.dtype, {a_.tokens, like.cols()});
  }
  Tensor of_rows(const Buffer& buffer, const Tensor& like) const {
    return buffer.view(like.dtype, {a_.rows(), like.cols()});
  }
  Buffer buffer(std::int64_t rows, const Tensor& like) const {
    return a_.parallel->allocate(rows * like.cols() * size_of(like.dtype));
  }
  Buffer token_buffer(const Tensor& like) const { return buffer(a_.tokens, like); }
  Buffer row_buffer(const Tensor& like) const { return buffer(a_.rows(), like); }
  Buffer sent_buffer(const Tensor& like) const { return buffer(a_.sent_rows(), like); }

  // Each of the following functions starts a collective, which holds the buffer `held` until finish().
  void gather(const Tensor& own, const Tensor& all, Buffer held) const {
    start([&](Communicator& group, Stream& stream) { group.all_gather(stream, own, all); }, std::move(held));
  }
  void scatter(const Tensor& all, const Tensor& own, Buffer held) const {
    start([&](Communicator& group,
              Stream& stream) { group.reduce_scatter(stream, all, own, comm::Reduction::kSum); },
          std::move(held));
  }
  // As scatter() in the forward pass. On batch-invariant devices, the order of a token's sum does not depend
  // on other tokens.
  void scatter_results(const Tensor& all, const Tensor& own) const {
    if (!sums_need_order(a_.parallel->group())) return scatter(all, own, {});
    std::vector<Buffer> working{row_buffer(all)};
    const Tensor parts = of_rows(working[0], all);
    start(
        [&](Communicator& group, Stream& stream) {
          turbo::Context context = on(stream);
          sum_in_order(context, group, all, parts, own);
        },
        {}, std::move(working));
  }
  // Packs x's rows into `packed`, and sends each row to the ranks that have experts of its token. If `packed`
  // consists of bytes, the rows are encoded in fp8.
  void send(const Tensor& x, const Tensor& packed, const Tensor& out, Buffer held) const {
    const DispatchPlan p = a_.leaving(plan());
    if (packed.dtype == DType::kU8) {
      launch(op_.context(), turbo::EncodeRows{.x = x, .rows = p.sent, .out = packed});
    } else {
      launch(op_.context(),
             turbo::CombineRows{.x = x, .rows = p.sent, .weights = {}, .previous = {}, .out = packed});
    }
    if (a_.two_hops()) return in_two_hops(send_by_hosts, packed, out, std::move(held));
    start(
        [&](Communicator& group, Stream& stream) {
          group.all_to_all_rows(stream, packed, p.sends, out, p.receives, {.number = a_.number});
        },
        std::move(held));
  }
  // Sends rows back to the ranks that sent them.
  void send_back(const Tensor& rows, const Tensor& returned, Buffer held) const {
    if (a_.two_hops()) return in_two_hops(return_by_hosts, rows, returned, std::move(held));
    const DispatchPlan p = a_.one_hop(plan());
    start(
        [&](Communicator& group, Stream& stream) {
          group.all_to_all_rows(stream, rows, p.receives, returned, p.sends,
                                {.number = a_.number, .back = true});
        },
        std::move(held));
  }
  Buffer finish() const { return a_.parallel->finish(); }

  // Sums the returned rows of each token, and adds `previous`.
  void sum(const Tensor& returned, const Tensor& previous, const Tensor& out) const {
    launch(op_.context(), turbo::CombineRows{.x = returned,
                                             .rows = a_.leaving(plan()).parts,
                                             .weights = {},
                                             .previous = previous,
                                             .out = out});
  }

 private:
  // Returns a context for kernels of a transfer, which run on the stream of the transfer.
  turbo::Context on(Stream& stream) const {
    const turbo::Context& compute = op_.context();
    return {compute.device, stream, compute.scratch, compute.meter};
  }
  void start(ExpertParallel::Collective collective, Buffer held, std::vector<Buffer> working = {}) const {
    a_.parallel->start(a_.overlap, collective, std::move(held), std::move(working));
  }
  template <class Transfer>
  void in_two_hops(Transfer transfer, const Tensor& from, const Tensor& to, Buffer held) const {
    std::vector<Buffer> working{sent_buffer(from), row_buffer(from)};
    const HopBuffers buffers{of_sent(working[0], from), of_rows(working[1], from)};
    start(
        [&](Communicator&, Stream& stream) {
          turbo::Context context = on(stream);
          transfer(context, a_.parallel->hosts(), a_.hops(), plan(), a_.number, from, buffers, to);
        },
        std::move(held), std::move(working));
  }

  OperatorCall& op_;
  RowAttributes a_;
};

void begin_dispatch_forward(OperatorCall& op) {
  const Call call(op);
  const Tensor x = op.in(RowTransfer::kRows), rows = op.out(RowTransfer::kMoved);
  if (!call.all_to_all()) return call.gather(x, rows, {});
  const Buffer packed = call.sent_buffer(rows);
  call.send(x, call.of_sent(packed, rows), rows, packed);
}

// Waits until the rows have arrived. The transfer writes them directly to the output's memory.
void finish_forward(OperatorCall& op) {
  PRIMUS_CHECK("expert dispatch", op.in_or_out(RowTransfer::kRows, RowTransfer::kMoved).data ==
                                      op.out(RowTransfer::kMoved).data);
  Call(op).finish();
}

// Waits until encoded rows have arrived, and decodes them.
void decode_forward(OperatorCall& op) {
  const Call call(op);
  call.finish();
  launch(op.context(),
         turbo::DecodeRows{
             .x = op.in(RowTransfer::kRows), .used = call.sources(), .out = op.out(RowTransfer::kMoved)});
}

void end_dispatch_backward(OperatorCall& op) {
  const Call call(op);
  const Tensor d_rows = op.d_out(RowTransfer::kMoved);
  op.pass_d_in(RowTransfer::kRows, RowTransfer::kMoved);  // keeps the gradient's memory during the transfer
  if (call.all_to_all()) {
    const Buffer returned = call.sent_buffer(d_rows);
    call.send_back(d_rows, call.of_sent(returned, d_rows), returned);
  } else {
    const Buffer own = call.token_buffer(d_rows);
    call.scatter(d_rows, call.of_tokens(own, d_rows), own);
  }
}

void begin_dispatch_backward(OperatorCall& op) {
  const Call call(op);
  Buffer arrived = call.finish();
  if (!call.all_to_all()) return op.take_d_in(RowTransfer::kRows, std::move(arrived));
  const auto [d_x, previous] = op.d_in(RowTransfer::kRows);
  call.sum(call.of_sent(arrived, d_x), previous, d_x);
}

void begin_return_forward(OperatorCall& op) {
  const Call call(op);
  if (call.all_to_all()) return call.send_back(op.in(RowTransfer::kRows), op.out(RowTransfer::kMoved), {});
  call.scatter_results(op.in(RowTransfer::kRows), op.out(RowTransfer::kMoved));
}

void end_return_sum_forward(OperatorCall& op) {
  const Call call(op);
  call.finish();
  call.sum(op.in(RowTransfer::kRows), {}, op.out(RowTransfer::kMoved));
}

void end_return_backward(OperatorCall& op) {
  const Call call(op);
  const Tensor d_y = op.d_out(RowTransfer::kMoved);
  const Buffer d_rows = call.row_buffer(d_y);
  if (call.all_to_all()) {
    // The gradient of each returned row equals the gradient of its token, so the ranks send token gradients.
    const Tensor packed = op.fresh_d_in(RowTransfer::kRows).out;
    call.send(d_y, packed, call.of_rows(d_rows, d_y), d_rows);
  } else {
    op.pass_d_in(RowTransfer::kRows, RowTransfer::kMoved);
    call.gather(d_y, call.of_rows(d_rows, d_y), d_rows);
  }
}

void begin_return_backward(OperatorCall& op) { op.take_d_in(RowTransfer::kRows, Call(op).finish()); }

constexpr Operator kBeginDispatch{.name = "begin_dispatch",
                                  .operator_class = OperatorClass::kCommunication,
                                  .forward = begin_dispatch_forward,
                                  .backward_input = begin_dispatch_backward,
                                  .for_input = saves(RowTransfer::kPlan),
                                  .unsettled = true};
constexpr Operator kEndDispatch{.name = "end_dispatch",
                                .operator_class = OperatorClass::kCommunication,
                                .forward = finish_forward,
                                .backward_input = end_dispatch_backward,
                                .for_input = saves(RowTransfer::kPlan),
                                .in_place = true,
                                .unsettled = true};
constexpr Operator kEndEncodedDispatch{.name = "end_dispatch",
                                       .operator_class = OperatorClass::kCommunication,
                                       .forward = decode_forward,
                                       .backward_input = end_dispatch_backward,
                                       .for_input = saves(RowTransfer::kPlan),
                                       .unsettled = true};
constexpr Operator kBeginReturn{.name = "begin_return",
                                .operator_class = OperatorClass::kCommunication,
                                .forward = begin_return_forward,
                                .backward_input = begin_return_backward,
                                .for_input = saves(RowTransfer::kPlan),
                                .unsettled = true};
constexpr Operator kEndReturn{.name = "end_return",
                              .operator_class = OperatorClass::kCommunication,
                              .forward = finish_forward,
                              .backward_input = end_return_backward,
                              .in_place = true};
constexpr Operator kEndReturnSum{.name = "end_return",
                                 .operator_class = OperatorClass::kCommunication,
                                 .forward = end_return_sum_forward,
                                 .backward_input = end_return_backward,
                                 .for_input = saves(RowTransfer::kPlan)};

// --- plan_dispatch by all-to-all

struct DispatchAttributes {
  RowAttributes rows;
  SharedExperts experts;
  std::int64_t all;  // number of experts on all ranks
  bool dropping;
  OwnRows chosen;

  Tensor own(const Tensor& of_microbatch) const { return experts.own_of_round(of_microbatch); }
};

struct PlanDispatch {
  enum In : InputName { kWeights, kExperts, kPlan };
  // kRowWeights and kRowPlan describe the incoming rows.
  enum Out : OutputName { kRowWeights, kRowPlan, kDispatchPlan };
};

// Gathers one row for each token of the group, in rank order. With two hops, the order is that of
// gather_by_hosts().
void gather_choices(OperatorCall& op, const DispatchAttributes& a, const Tensor& of_microbatch,
                    const Tensor& all) {
  ExpertParallel& parallel = *a.rows.parallel;
  Stream& stream = op.context().stream;
  if (a.rows.two_hops()) return gather_by_hosts(stream, parallel.hosts(), a.own(of_microbatch), all);
  parallel.group().all_gather(stream, a.own(of_microbatch), all);
}

void plan_dispatch_forward(OperatorCall& op) {
  const auto a = op.attributes<DispatchAttributes>();
  Communicator& group = a.rows.parallel->group();
  const std::int64_t ranks = group.size(), tokens = ranks * a.rows.tokens;
  const Shape slots{tokens, a.rows.top_k};
  const ScratchTensor weights(op.context().scratch, DType::kF32, slots);
  const ScratchTensor choices(op.context().scratch, DType::kI32, slots);
  gather_choices(op, a, op.in(PlanDispatch::kWeights), weights.get());
  gather_choices(op, a, op.in(PlanDispatch::kExperts), choices.get());
  std::optional<ScratchTensor> kept;
  if (a.dropping) {
    kept.emplace(op.context().scratch, DType::kI32, slots);
    gather_choices(op, a,
                   turbo::RoutingPlan(op.in(PlanDispatch::kPlan), a.all,
                                      op.in(PlanDispatch::kExperts).shape[0], a.rows.top_k)
                       .rows,
                   kept->get());
  }
  const Tensor dropped = kept ? kept->get() : Tensor(), whole = op.out(PlanDispatch::kDispatchPlan);
  const std::int64_t ranks_of_expert = ranks * a.experts.count / a.all;
  if (a.rows.two_hops()) {
    plan_hops(op.context(), a.rows.parallel->hosts(), a.rows.hops(), choices.get(), dropped, a.experts.count,
              ranks_of_expert, whole, a.rows.number);
  } else {
    launch(op.context(), turbo::PlanDispatch{.experts = choices.get(),
                                             .kept = dropped,
                                             .plan = whole,
                                             .ranks = ranks,
                                             .rank = group.rank(),
                                             .maximum = a.rows.maximum,
                                             .experts_of_rank = a.experts.count,
                                             .ranks_of_expert = ranks_of_expert});
    // The counts travel to the host while the device does the following work.
    const DispatchPlan one_hop = a.rows.one_hop(whole);
    group.count_rows(op.context().stream, one_hop.sends, one_hop.receives, a.rows.number);
  }
  const DispatchPlan plan = a.rows.arriving(whole);
  launch(op.context(), turbo::CombineRows{.x = weights.get(),
                                          .rows = plan.sources,
                                          .weights = {},
                                          .previous = {},
                                          .out = op.out(PlanDispatch::kRowWeights)});
  // plan.choices is below 0 for other ranks' experts. As the argument `kept`, it gives these choices no row.
  plan_own_rows(op, a.experts, a.all, a.chosen, plan.choices, plan.choices, op.out(PlanDispatch::kRowPlan));
}

void plan_dispatch_backward(OperatorCall& op) {
  const auto a = op.attributes<DispatchAttributes>();
  const DispatchPlan plan = a.rows.arriving(op.out(PlanDispatch::kDispatchPlan));
  ExpertParallel& parallel = *a.rows.parallel;
  Stream& stream = op.context().stream;
  const std::int64_t tokens = parallel.group().size() * a.rows.tokens;
  const auto [d_weights, previous] = op.fresh_d_in(PlanDispatch::kWeights);
  const ScratchTensor of_all(op.context().scratch, DType::kF32, {tokens, a.rows.top_k});
  launch(op.context(), turbo::CombineRows{.x = op.d_out(PlanDispatch::kRowWeights),
                                          .rows = plan.places,
                                          .weights = {},
                                          .previous = {},
                                          .out = of_all.get()});
  // Each rank computes the gradient of its own tokens, so other tokens get zeros here.
  launch(op.context(), turbo::Fill{.out = d_weights, .value = 0});
  if (a.rows.two_hops()) {
    scatter_by_hosts(stream, parallel.hosts(), of_all.get(), a.own(d_weights));
  } else {
    parallel.group().reduce_scatter(stream, of_all.get(), a.own(d_weights), comm::Reduction::kSum);
  }
  add_previous(op, {d_weights, previous});
}

constexpr Operator kPlanDispatch{.name = "plan_dispatch",
                                 .operator_class = OperatorClass::kRouting,
                                 .forward = plan_dispatch_forward,
                                 .backward_input = plan_dispatch_backward,
                                 .for_input = saves(PlanDispatch::kDispatchPlan)};

RowAttributes attributes_of(const Dispatch& d) {
  return {d.parallel, d.tokens, d.routing.weights.shape()[1], d.maximum, d.to_host, d.overlap, d.number};
}

Dispatch plan_all_to_all(const Routing& r, const SharedExperts& experts, std::int64_t capacity,
                         Dispatch dispatch) {
  const std::int64_t top_k = r.weights.shape()[1], tokens = dispatch.tokens, ranks = dispatch.ranks;
  // the tokens of a microbatch that are in this round
  const std::int64_t of_microbatch = tokens * (experts.tokens ? experts.tokens->size() : 1);
  PRIMUS_CHECK("plan_dispatch", ranks * experts.count % r.expert_count == 0);
  // The number of rows from one rank to another is limited: a token is sent to a rank at most once, and an
  // expert accepts at most `capacity` tokens of a rank, which belong to one microbatch.
  const std::int64_t maximum = capacity > 0 ? std::min(tokens, experts.count * capacity) : tokens;
  if (const ExpertHosts& hosts = dispatch.parallel->hosts()) {
    dispatch.to_host = max_rows_to_host(tokens, capacity, hosts.within->size(), experts.count,
                                        ranks * experts.count / r.expert_count);
  }
  dispatch.number = dispatch.parallel->group().new_row_number();
  const RowAttributes rows{dispatch.parallel, tokens,           top_k,          maximum,
                           dispatch.to_host,  dispatch.overlap, dispatch.number};
  const std::int64_t of_experts = experts.max_rows(ranks * tokens, of_microbatch, top_k, capacity);
  const OwnRows chosen{rows.rows(), top_k, of_experts, std::min(experts.keeps, of_experts)};
  const DispatchAttributes a{rows, experts, r.expert_count, capacity > 0, chosen};
  Tape::Outputs recorded =
      r.weights.tape().record(kPlanDispatch,
                              {{PlanDispatch::kWeights, r.weights},
                               {PlanDispatch::kExperts, r.experts},
                               {PlanDispatch::kPlan, r.plan}},
                              nullptr,
                              {{PlanDispatch::kRowWeights, DType::kF32, {rows.rows(), top_k}},
                               {PlanDispatch::kRowPlan, DType::kI32, chosen.plan_shape(experts), false},
                               {PlanDispatch::kDispatchPlan, DType::kI32, rows.plan_shape(), false}},
                              a);
  dispatch.routing = {.weights = std::move(recorded[PlanDispatch::kRowWeights]),
                      .experts = {},
                      .plan = std::move(recorded[PlanDispatch::kRowPlan]),
                      .expert_count = experts.count,
                      .rows = chosen.maximum,
                      .kept = chosen.kept,
                      .by_logits = false};
  dispatch.plan = std::move(recorded[PlanDispatch::kDispatchPlan]);
  dispatch.maximum = maximum;
  return dispatch;
}

}  // namespace

Dispatch plan_dispatch(const Routing& r, const SharedExperts& experts, std::int64_t capacity,
                       const DispatchOptions& options) {
  const int sharing = experts.tokens ? experts.tokens->size() : 1;
  const std::int64_t of_microbatch = r.weights.shape()[0];
  PRIMUS_CHECK("plan_dispatch",
               of_microbatch % sharing == 0 &&
                   (experts.group ? options.parallel && &options.parallel->group() == experts.group
                                  : !options.parallel));
  Dispatch dispatch;
  dispatch.parallel = options.parallel;
  dispatch.keeps = options.keeps;
  dispatch.tokens = experts.own_of_round(of_microbatch);
  if (options.parallel) {
    dispatch.ranks = experts.group->size();
    dispatch.overlap = options.parallel->overlaps(options.shared);
    PRIMUS_CHECK("plan_dispatch", options.all_to_all || !options.fp8);
    dispatch.fp8 = options.fp8;
    if (options.all_to_all) return plan_all_to_all(r, experts, capacity, std::move(dispatch));
  }
  dispatch.routing = share_routing(r, experts, capacity);
  return dispatch;
}

InFlight begin_dispatch(const Value& x, const Dispatch& d) {
  if (!d.parallel) return {x, {}};
  std::optional<ReplayScope> replay;
  if (!d.keeps) replay.emplace(x.tape());
  const RowAttributes a = attributes_of(d);
  const std::int64_t width = x.shape()[1];
  Tape::Output out{RowTransfer::kMoved, x.dtype(), {a.rows(), width}};
  if (d.fp8) out = {RowTransfer::kMoved, DType::kU8, {a.rows(), turbo::Fp8RowLayout{width}.bytes()}};
  return {x.tape().record(kBeginDispatch, {{RowTransfer::kRows, x}, {RowTransfer::kPlan, d.plan}}, nullptr,
                          {out}, a)[RowTransfer::kMoved],
          x};
}

Value end_dispatch(InFlight t, const Dispatch& d) {
  if (!d.parallel) return std::move(t.rows);
  std::optional<ReplayScope> replay;
  if (!d.keeps) replay.emplace(t.rows.tape());
  const Tape::Output out{RowTransfer::kMoved, t.from.dtype(), {t.rows.shape()[0], t.from.shape()[1]}};
  return t.rows.tape().record(d.fp8 ? kEndEncodedDispatch : kEndDispatch,
                              {{RowTransfer::kRows, t.rows}, {RowTransfer::kPlan, d.plan}}, nullptr, {out},
                              attributes_of(d))[RowTransfer::kMoved];
}

InFlight begin_return(Value rows, const Dispatch& d) {
  if (!d.parallel) return {std::move(rows), {}};
  const RowAttributes a = attributes_of(d);
  const Tape::Output out{
      RowTransfer::kMoved, rows.dtype(), {d.plan ? a.sent_rows() : d.tokens, rows.shape()[1]}};
  Tape& tape = rows.tape();
  Value sent = tape.record(kBeginReturn, {{RowTransfer::kRows, rows}, {RowTransfer::kPlan, d.plan}}, nullptr,
                           {out}, a)[RowTransfer::kMoved];
  return {std::move(sent), std::move(rows)};
}

Value end_return(InFlight t, const Dispatch& d) {
  if (!d.parallel) return std::move(t.rows);
  const Tape::Output out{RowTransfer::kMoved, t.rows.dtype(), {d.tokens, t.rows.shape()[1]}};
  return t.rows.tape().record(d.plan ? kEndReturnSum : kEndReturn,
                              {{RowTransfer::kRows, t.rows}, {RowTransfer::kPlan, d.plan}}, nullptr, {out},
                              attributes_of(d))[RowTransfer::kMoved];
}

}  // namespace primus::engine
