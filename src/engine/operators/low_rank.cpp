#include "engine/operators/low_rank.h"

#include <algorithm>

#include "base/check.h"
#include "base/random/random.h"
#include "engine/operators/operators.h"
#include "turbo/dropout/dropout.h"

namespace primus::engine {
namespace {

// The members of turbo::Dropout except its rows.
struct DropoutAttributes {
  Tensor scalars;
  std::uint64_t seed, stream;
  float rate;
  int run_count;
  turbo::Dropout::Runs runs;
};

struct Dropout {
  enum In : InputName { kX, kTokens };
  enum Out : OutputName { kY };
};

void drop(OperatorCall& op, const Tensor& x, const Tensor& out) {
  const auto a = op.attributes<DropoutAttributes>();
  turbo::launch(op.context(), turbo::Dropout{.x = x,
                                             .out = out,
                                             .tokens = op.in(Dropout::kTokens),
                                             .scalars = a.scalars,
                                             .seed = a.seed,
                                             .stream = a.stream,
                                             .rate = a.rate,
                                             .run_count = a.run_count,
                                             .runs = a.runs});
}

void dropout_forward(OperatorCall& op) {
  drop(op, op.in_or_out(Dropout::kX, Dropout::kY), op.out(Dropout::kY));
}

// Converts the gradient of the output to the gradient of the input in place.
void dropout_backward_input(OperatorCall& op) {
  const Tensor d_y = op.d_out(Dropout::kY), d_x = op.complete_d_out(Dropout::kY);
  drop(op, d_y, d_x);
  op.pass_d_in(Dropout::kX, Dropout::kY);
}

constexpr Operator kDropout{.name = "dropout",
                            .operator_class = OperatorClass::kLinear,
                            .forward = dropout_forward,
                            .backward_input = dropout_backward_input,
                            .for_input = saves(Dropout::kTokens),
                            .in_place = true};

// Applies dropout. `columns`: the position of x's columns in the complete matrix.
Value dropout(Value x, const LowRank& adapter, RowsOf rows, const turbo::Dropout::Runs& columns,
              int run_count) {
  const DropoutSource& source = *x.tape().dropout();
  const DropoutAttributes a{source.scalars,  source.seed, random_stream_id(adapter.down->name),
                            adapter.dropout, run_count,   columns};
  const Value& tokens = rows == RowsOf::kOwn ? source.own : source.of_layer;
  return x.tape().record(kDropout, {{Dropout::kX, x}, {Dropout::kTokens, tokens}}, nullptr,
                         {{Dropout::kY, x.dtype(), x.shape()}}, a)[Dropout::kY];
}

bool drops(const Value& x, const LowRank& adapter, bool after) {
  return adapter.dropout > 0 && adapter.drops_after == after && x.tape().dropout();
}

}  // namespace

Value before_low_rank(const Value& x, const LowRank& adapter, RowsOf rows) {
  if (!drops(x, adapter, false)) return x;
  const ReplayScope replay(x.tape());
  return dropout(x, adapter, rows, {{{0, adapter.down->placement.column}}}, 1);
}

Value after_low_rank(Value y, const LowRank& adapter, RowsOf rows) {
  if (!drops(y, adapter, true)) return y;
  turbo::Dropout::Runs columns;
  std::int64_t begin = 0;
  int run = 0;
  for (const Placement::Rows& part : adapter.up->placement.rows) {
    PRIMUS_CHECK("after_low_rank", run < turbo::Dropout::kMaxRuns);
    columns[static_cast<std::size_t>(run++)] = {begin, part.whole};
    begin += part.rows;
  }
  return dropout(std::move(y), adapter, rows, columns, std::max(run, 1));
}

}  // namespace primus::engine
