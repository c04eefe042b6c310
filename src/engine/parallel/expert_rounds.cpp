#include "engine/parallel/expert_rounds.h"

#include <utility>

#include "base/check.h"
#include "turbo/elementwise/elementwise.h"

namespace primus::engine {
namespace {

using turbo::launch;

struct RangeAttributes {
  FlatRange range;

  Tensor of(const Tensor& all) const { return all.slice(range.begin, range.end); }
};

void copy_rows(OperatorCall& op, const Tensor& from, const Tensor& to) {
  if (op.context().measuring() || from.data == to.data) return;
  op.context().stream.copy_on_device(to.data, from.data, from.bytes());
}

// --- take_rows

void take_rows_forward(OperatorCall& op) {
  copy_rows(op, op.attributes<RangeAttributes>().of(op.in(Unary::kX)), op.out(Unary::kY));
}

void take_rows_backward(OperatorCall& op) {
  const auto a = op.attributes<RangeAttributes>();
  const auto [d_x, previous] = op.d_in(Unary::kX);
  const Tensor part = a.of(d_x), d_y = op.d_out(Unary::kY);
  if (!previous.absent()) {
    copy_rows(op, previous, d_x);
    return launch(op.context(), turbo::Add{.a = part, .b = d_y, .out = part});
  }
  for (const Tensor& other : {d_x.slice(0, a.range.begin), d_x.slice(a.range.end, d_x.rows())}) {
    if (other.elements() > 0) launch(op.context(), turbo::Fill{.out = other, .value = 0});
  }
  copy_rows(op, d_y, part);
}

constexpr Operator kTakeRows{.name = "take_rows",
                             .operator_class = OperatorClass::kCommunication,
                             .forward = take_rows_forward,
                             .backward_input = take_rows_backward};

// --- join_rows

struct JoinRows {
  enum In : InputName { kAll, kPart };  // kAll is absent for the first part
  enum Out : OutputName { kJoined };
};

void join_rows_forward(OperatorCall& op) {
  const Tensor joined = op.out(JoinRows::kJoined);
  if (op.has_in(JoinRows::kAll)) copy_rows(op, op.in_or_out(JoinRows::kAll, JoinRows::kJoined), joined);
  copy_rows(op, op.in(JoinRows::kPart), op.attributes<RangeAttributes>().of(joined));
}

void join_rows_backward(OperatorCall& op) {
  if (op.needs_d_in(JoinRows::kPart)) {
    const auto [d_part, previous] = op.fresh_d_in(JoinRows::kPart);
    copy_rows(op, op.attributes<RangeAttributes>().of(op.d_out(JoinRows::kJoined)), d_part);
    add_previous(op, {d_part, previous});
  }
  // The other parts read only their own rows of this gradient.
  if (op.has_in(JoinRows::kAll)) op.pass_d_in(JoinRows::kAll, JoinRows::kJoined);
}

// The first part begins a tensor whose other rows are not written yet.
constexpr Operator kFirstRows{.name = "join_rows",
                              .operator_class = OperatorClass::kCommunication,
                              .forward = join_rows_forward,
                              .backward_input = join_rows_backward,
                              .unsettled = true};
constexpr Operator kJoinRows{.name = "join_rows",
                             .operator_class = OperatorClass::kCommunication,
                             .forward = join_rows_forward,
                             .backward_input = join_rows_backward,
                             .in_place = true,
                             .unsettled = true};

// --- skip_uses

// The operator has no outputs, so no gradient reaches it: the queue only counts its turn.
constexpr Operator kSkippedUse{.name = "skip_uses",
                               .operator_class = OperatorClass::kCommunication,
                               .forward = [](OperatorCall&) {},
                               .backward_weight = [](OperatorCall&) {}};

}  // namespace

FlatRange tokens_of_round(std::int64_t tokens, std::int64_t rounds, std::int64_t round) {
  PRIMUS_CHECK("tokens_of_round", rounds > 0 && rounds <= tokens && round >= 0 && round < rounds);
  return {tokens * round / rounds, tokens * (round + 1) / rounds};
}

Value take_rows(const Value& x, const FlatRange& range) {
  if (range.size() == x.shape()[0]) return x;
  const ReplayScope replay(x.tape());
  return x.tape().record(kTakeRows, {{Unary::kX, x}}, nullptr,
                         {{Unary::kY, x.dtype(), {range.size(), x.shape()[1]}}},
                         RangeAttributes{range})[Unary::kY];
}

Value join_rows(Value all, const Value& part, const FlatRange& range, std::int64_t total) {
  if (range.size() == total) return part;
  PRIMUS_CHECK("join_rows",
               part.shape()[0] == range.size() && range.end <= total && !all == (range.begin == 0));
  return part.tape().record(all ? kJoinRows : kFirstRows, {{JoinRows::kAll, all}, {JoinRows::kPart, part}},
                            nullptr, {{JoinRows::kJoined, part.dtype(), {total, part.shape()[1]}}},
                            RangeAttributes{range})[JoinRows::kJoined];
}

void skip_uses(Tape& tape, Parameter& parameter, std::int64_t times) {
  for (std::int64_t i = 0; i < times; ++i) tape.record(kSkippedUse, {}, &parameter, {});
}

}  // namespace primus::engine
