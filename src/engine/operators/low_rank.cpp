#include "engine/operators/low_rank.h"

#include <algorithm>

#include "base/check.h"
#include "base/random/random.h"
#include "engine/operators/linear_products.h"
#include "engine/operators/operators.h"
#include "turbo/dora/dora.h"
#include "turbo/dropout/dropout.h"
#include "turbo/elementwise/elementwise.h"

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

// Describes a copy of all elements.
turbo::CopyRows copy_of(const Tensor& from, const Tensor& to) {
  const std::int64_t n = to.elements();
  return turbo::CopyRows::strided(from, to, 1, n, n, n);
}

// --- add_product: y += x · weightᵀ

struct AddProduct {
  enum In : InputName { kAddend, kX };
  enum Out : OutputName { kY };
};
static_assert(static_cast<int>(AddProduct::kY) == static_cast<int>(Product::kY));

void add_product_forward(OperatorCall& op) {
  const Tensor addend = op.in_or_out(AddProduct::kAddend, AddProduct::kY), y = op.out(AddProduct::kY);
  if (addend.data != y.data) turbo::launch(op.context(), copy_of(addend, y));
  forward_product(op, op.in(AddProduct::kX), op.weight(), true);
}

void add_product_backward_input(OperatorCall& op) {
  if (op.needs_d_in(AddProduct::kX)) input_gradient_product(op, op.weight(), AddProduct::kX);
  if (op.needs_d_in(AddProduct::kAddend)) op.pass_d_in(AddProduct::kAddend, AddProduct::kY);
}

void add_product_backward_weight(OperatorCall& op) { weight_gradient_product(op, op.in(AddProduct::kX)); }

constexpr Operator kAddProduct{.name = "add_product",
                               .operator_class = OperatorClass::kLinear,
                               .forward = add_product_forward,
                               .backward_input = add_product_backward_input,
                               .backward_weight = add_product_backward_weight,
                               .for_weight = saves(AddProduct::kX),
                               .in_place = true};

// --- column_sum: adds b to some columns of a

struct ColumnSum {
  enum In : InputName { kA, kB };
  enum Out : OutputName { kY };
};

void column_sum_forward(OperatorCall& op) {
  const Tensor a = op.in_or_out(ColumnSum::kA, ColumnSum::kY), b = op.in(ColumnSum::kB),
               y = op.out(ColumnSum::kY);
  if (a.data != y.data) turbo::launch(op.context(), copy_of(a, y));
  turbo::CopyRows added = turbo::CopyRows::strided(b, y.from(op.attributes<std::int64_t>()), b.rows(),
                                                   b.cols(), b.cols(), y.cols());
  added.add = true;
  turbo::launch(op.context(), added);
}

void column_sum_backward_input(OperatorCall& op) {
  if (op.needs_d_in(ColumnSum::kB)) {
    const Tensor d_y = op.d_out(ColumnSum::kY);
    const auto [d_b, previous] = op.fresh_d_in(ColumnSum::kB);
    turbo::launch(op.context(), turbo::CopyRows::strided(d_y.from(op.attributes<std::int64_t>()), d_b,
                                                         d_b.rows(), d_b.cols(), d_y.cols(), d_b.cols()));
    add_previous(op, {d_b, previous});
  }
  if (op.needs_d_in(ColumnSum::kA)) op.pass_d_in(ColumnSum::kA, ColumnSum::kY);
}

constexpr Operator kColumnSum{.name = "column_sum",
                              .operator_class = OperatorClass::kAdd,
                              .forward = column_sum_forward,
                              .backward_input = column_sum_backward_input,
                              .in_place = true};

Value column_sum(Value a, const Value& b, std::int64_t first) {
  if (a.shape()[1] == b.shape()[1]) return sum(std::move(a), b);
  return a.tape().record(kColumnSum, {{ColumnSum::kA, a}, {ColumnSum::kB, b}}, nullptr,
                         {{ColumnSum::kY, a.dtype(), a.shape()}}, first)[ColumnSum::kY];
}

// --- read_parameter: a copy of a parameter, which operators with another parameter read. It has no gradient.

void read_parameter_forward(OperatorCall& op) {
  const Tensor from = op.weight(), to = op.out(Unary::kY);
  turbo::launch(op.context(), copy_of(from, to));
}

constexpr Operator kReadParameter{
    .name = "read_parameter", .operator_class = OperatorClass::kLinear, .forward = read_parameter_forward};

Value read_parameter(Tape& tape, Parameter& parameter) {
  return tape.record(kReadParameter, {}, &parameter,
                     {{Unary::kY, parameter.unit->dtype, parameter.shape, false}})[Unary::kY];
}

// --- adapted_squares: the squared norms of the rows of an adapted matrix. They have no gradient, as in the
// DoRA paper. If ranks divide the columns, they add the squares of their columns.

struct AdaptedSquares {
  enum In : InputName { kDown, kUp };
  enum Out : OutputName { kSquares };
};

struct SquaresAttributes {
  std::int64_t first;
  float scale;
  comm::Communicator* columns;  // the ranks that divide the columns; null: none
};

void adapted_squares_forward(OperatorCall& op) {
  const auto a = op.attributes<SquaresAttributes>();
  const Tensor squares = op.out(AdaptedSquares::kSquares);
  turbo::launch(op.context(), turbo::DoraNorm{.w = op.weight().slice(a.first, a.first + squares.elements()),
                                              .down = op.in(AdaptedSquares::kDown),
                                              .up = op.in(AdaptedSquares::kUp),
                                              .square = squares,
                                              .scale = a.scale});
  if (a.columns) a.columns->all_reduce(op.context().stream, squares, squares, comm::Reduction::kSum);
}

constexpr Operator kAdaptedSquares{
    .name = "adapted_squares", .operator_class = OperatorClass::kNorm, .forward = adapted_squares_forward};
// Recompute policies keep results of communication.
constexpr Operator kSharedSquares{.name = "adapted_squares",
                                  .operator_class = OperatorClass::kCommunication,
                                  .forward = adapted_squares_forward};

// --- to_magnitude: scales columns of a product to the magnitudes of DoRA

struct ToMagnitude {
  enum In : InputName { kX, kSquares };
  enum Out : OutputName { kY };
};

void scale_columns(OperatorCall& op, const Tensor& x, const Tensor& y) {
  turbo::launch(op.context(), turbo::DoraScale{.x = x,
                                               .magnitude = op.weight(),
                                               .square = op.in(ToMagnitude::kSquares),
                                               .y = y,
                                               .first = op.attributes<std::int64_t>()});
}

void to_magnitude_forward(OperatorCall& op) {
  scale_columns(op, op.in(ToMagnitude::kX), op.out(ToMagnitude::kY));
}

void to_magnitude_backward_input(OperatorCall& op) {
  if (!op.needs_d_in(ToMagnitude::kX)) return;
  const auto [d_x, previous] = op.fresh_d_in(ToMagnitude::kX);
  scale_columns(op, op.d_out(ToMagnitude::kY), d_x);
  add_previous(op, {d_x, previous});
}

void to_magnitude_backward_weight(OperatorCall& op) {
  const auto [d_magnitude, accumulate] = op.d_weight();
  turbo::launch(op.context(), turbo::DoraBackwardMagnitude{.x = op.in(ToMagnitude::kX),
                                                           .d_y = op.d_out(ToMagnitude::kY),
                                                           .square = op.in(ToMagnitude::kSquares),
                                                           .d_magnitude = d_magnitude,
                                                           .first = op.attributes<std::int64_t>(),
                                                           .accumulate = accumulate});
}

constexpr Operator kToMagnitude{.name = "to_magnitude",
                                .operator_class = OperatorClass::kLinear,
                                .forward = to_magnitude_forward,
                                .backward_input = to_magnitude_backward_input,
                                .backward_weight = to_magnitude_backward_weight,
                                .for_input = saves(ToMagnitude::kSquares),
                                .for_weight = saves(ToMagnitude::kX, ToMagnitude::kSquares)};

Value to_magnitude(const Value& x, Parameter& weight, const LowRank& adapter, comm::Communicator* columns) {
  Tape& tape = x.tape();
  const Value down = read_parameter(tape, *adapter.down), up = read_parameter(tape, *adapter.up);
  const Tape::Output out{AdaptedSquares::kSquares, DType::kF32, Shape{adapter.up->shape[0]}, false};
  const Value squares = tape.record(
      columns ? kSharedSquares : kAdaptedSquares, {{AdaptedSquares::kDown, down}, {AdaptedSquares::kUp, up}},
      &weight, {out}, SquaresAttributes{adapter.first, adapter.scale, columns})[AdaptedSquares::kSquares];
  return tape.record(kToMagnitude, {{ToMagnitude::kX, x}, {ToMagnitude::kSquares, squares}},
                     adapter.magnitude, {{ToMagnitude::kY, x.dtype(), x.shape()}},
                     adapter.first)[ToMagnitude::kY];
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

bool adds_low_rank(const Tape& tape, const LowRank& adapter) {
  const bool drops = adapter.dropout > 0 && adapter.drops_after && tape.dropout();
  // CPUs have no kernel that saves a pass. On GPUs, the kernel computes sums of at most 64 terms; for longer
  // sums, a separate product has the order of additions that batch_invariant needs.
  constexpr std::int64_t kMostTerms = 64;
  if (tape.context().device.properties().host_memory || adapter.up->shape[1] > kMostTerms) return false;
  return !drops && !tape.precision().is_fp8(turbo::GemmRole::kForward, *adapter.up) &&
         !tape.precision().is_fp4(*adapter.up);
}

Value add_low_rank(const Value& y, const Value& low, Parameter& up) {
  return y.tape().record(kAddProduct, {{AddProduct::kAddend, y}, {AddProduct::kX, low}}, &up,
                         {{AddProduct::kY, y.dtype(), y.shape()}})[AddProduct::kY];
}

Value with_part_adapters(Value y, Parameter& weight, FunctionRef<Value(const LowRank&)> product_of,
                         comm::Communicator* columns) {
  for (const LowRank& adapter : y.tape().part_adapters_of(weight)) {
    Value term = product_of(adapter);
    if (adapter.bias) term = add_bias(std::move(term), *adapter.bias);
    y = column_sum(std::move(y), scale(std::move(term), adapter.scale), adapter.first);
    if (adapter.magnitude) y = to_magnitude(y, weight, adapter, columns);
  }
  return y;
}

}  // namespace primus::engine
