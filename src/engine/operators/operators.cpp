#include "engine/operators/operators.h"

#include <algorithm>

#include "base/check.h"
#include "engine/operators/linear_products.h"
#include "engine/operators/low_rank.h"
#include "engine/operators/row_adapters.h"
#include "engine/parallel/parallel_operators.h"
#include "turbo/bias/bias.h"
#include "turbo/elementwise/elementwise.h"
#include "turbo/embedding/embedding.h"
#include "turbo/rms_norm/rms_norm.h"
#include "turbo/soft_cap/soft_cap.h"
#include "turbo/swiglu/swiglu.h"

namespace primus::engine {
namespace {

using turbo::launch;

// --- embedding

// The part of the vocabulary that the table covers. If both members are zero, the entire vocabulary.
struct TableAttributes {
  std::int64_t first, vocabulary;
};

struct Embedding {
  enum In : InputName { kTokens };
  enum Out : OutputName { kOut };
};

void embedding_forward(OperatorCall& op) {
  const auto part = op.attributes<TableAttributes>();
  launch(op.context(), turbo::EmbeddingForward{.tokens = op.in(Embedding::kTokens),
                                               .table = op.weight(),
                                               .out = op.out(Embedding::kOut),
                                               .first = part.first,
                                               .vocabulary = part.vocabulary});
}

void embedding_backward_weight(OperatorCall& op) {
  const auto part = op.attributes<TableAttributes>();
  const auto [d_table, accumulate] = op.d_weight();
  launch(op.context(), turbo::EmbeddingBackwardWeight{.tokens = op.in(Embedding::kTokens),
                                                      .d_out = op.d_out(Embedding::kOut),
                                                      .d_table = d_table,
                                                      .accumulate = accumulate,
                                                      .first = part.first,
                                                      .vocabulary = part.vocabulary,
                                                      .workspace = {}});
}

constexpr Operator kEmbedding{.name = "embedding",
                              .operator_class = OperatorClass::kEmbedding,
                              .forward = embedding_forward,
                              .backward_weight = embedding_backward_weight,
                              .for_weight = saves(Embedding::kTokens)};

// --- norm

struct NormAttributes {
  float epsilon;
};

// Computes the input gradient of both norm operators. Each norm operator keeps its input rows (`x`) and
// `rstd`.
void norm_input_gradient(OperatorCall& op, const Tensor& x, const Tensor& rstd, const Tensor& d_y,
                         const Tensor& previous, const Tensor& d_x) {
  turbo::RmsNormBackwardInput both{
      .x = x, .weight = op.weight(), .rstd = rstd, .d_y = d_y, .d_sum = previous, .d_x = d_x};
  both.offset = op.parameter().norm_offset;
  // The input gradient and the weight gradient read the same rows, so one kernel computes both gradients.
  const bool weight_now = op.weight_gradient_now();
  if (weight_now) {
    const auto [d_weight, accumulate] = op.d_weight();
    both.d_weight = d_weight, both.accumulate = accumulate;
  }
  launch(op.context(), both);
  if (weight_now) op.weight_gradient_done();
}

void norm_weight_gradient(OperatorCall& op, const Tensor& x, const Tensor& rstd, const Tensor& d_y) {
  const auto [d_weight, accumulate] = op.d_weight();
  launch(op.context(), turbo::RmsNormBackwardWeight{
                           .x = x, .rstd = rstd, .d_y = d_y, .d_weight = d_weight, .accumulate = accumulate});
}

struct Norm {
  enum In : InputName { kX };
  enum Out : OutputName { kY, kRstd };
};

void norm_forward(OperatorCall& op) {
  launch(op.context(), turbo::RmsNormForward{.x = op.in(Norm::kX),
                                             .weight = op.weight(),
                                             .y = op.out(Norm::kY),
                                             .rstd = op.out(Norm::kRstd),
                                             .eps = op.attributes<NormAttributes>().epsilon,
                                             .offset = op.parameter().norm_offset});
}

void norm_backward_input(OperatorCall& op) {
  const auto [d_x, previous] = op.d_in(Norm::kX);
  norm_input_gradient(op, op.in(Norm::kX), op.out(Norm::kRstd), op.d_out(Norm::kY), previous, d_x);
}

void norm_backward_weight(OperatorCall& op) {
  norm_weight_gradient(op, op.in(Norm::kX), op.out(Norm::kRstd), op.d_out(Norm::kY));
}

constexpr Operator kNorm{.name = "norm",
                         .operator_class = OperatorClass::kNorm,
                         .forward = norm_forward,
                         .backward_input = norm_backward_input,
                         .backward_weight = norm_backward_weight,
                         .for_input = saves(Norm::kX, Norm::kRstd),
                         .for_weight = saves(Norm::kX, Norm::kRstd)};

struct AddNorm {
  enum In : InputName { kX, kDelta };
  enum Out : OutputName { kSum, kY, kRstd };
};

void add_norm_forward(OperatorCall& op) {
  launch(op.context(), turbo::RmsNormForward{.x = op.in(AddNorm::kX),
                                             .delta = op.in(AddNorm::kDelta),
                                             .weight = op.weight(),
                                             .sum = op.out(AddNorm::kSum),
                                             .y = op.out(AddNorm::kY),
                                             .rstd = op.out(AddNorm::kRstd),
                                             .eps = op.attributes<NormAttributes>().epsilon,
                                             .offset = op.parameter().norm_offset});
}

// A replay starts from the sum, so the tape does not keep the addends.
void add_norm_from_sum(OperatorCall& op) {
  launch(op.context(), turbo::RmsNormForward{.x = op.out(AddNorm::kSum),
                                             .weight = op.weight(),
                                             .y = op.out(AddNorm::kY),
                                             .rstd = op.out(AddNorm::kRstd),
                                             .eps = op.attributes<NormAttributes>().epsilon,
                                             .offset = op.parameter().norm_offset});
}

// The gradient of the sum, including the norm's part, is the gradient of both addends.
void add_norm_backward_input(OperatorCall& op) {
  const Tensor d_sum = op.d_out(AddNorm::kSum), d_y = op.d_out(AddNorm::kY);
  if (!d_y.absent())
    norm_input_gradient(op, op.out(AddNorm::kSum), op.out(AddNorm::kRstd), d_y, d_sum,
                        op.complete_d_out(AddNorm::kSum));
  op.pass_d_in(AddNorm::kX, AddNorm::kSum);
  op.pass_d_in(AddNorm::kDelta, AddNorm::kSum);
}

void add_norm_backward_weight(OperatorCall& op) {
  const Tensor d_y = op.d_out(AddNorm::kY);
  if (!d_y.absent()) norm_weight_gradient(op, op.out(AddNorm::kSum), op.out(AddNorm::kRstd), d_y);
}

constexpr Operator kAddNorm{.name = "add_norm",
                            .operator_class = OperatorClass::kNorm,
                            .forward = add_norm_forward,
                            .from_first = add_norm_from_sum,
                            .backward_input = add_norm_backward_input,
                            .backward_weight = add_norm_backward_weight,
                            .for_input = saves(AddNorm::kSum, AddNorm::kRstd),
                            .for_weight = saves(AddNorm::kSum, AddNorm::kRstd)};

// --- add

struct Addition {
  enum In : InputName { kA, kB };
  enum Out : OutputName { kSum };
};

void add_forward(OperatorCall& op) {
  launch(op.context(),
         turbo::Add{.a = op.in(Addition::kA), .b = op.in(Addition::kB), .out = op.out(Addition::kSum)});
}

void add_backward_input(OperatorCall& op) {
  if (op.needs_d_in(Addition::kA)) op.pass_d_in(Addition::kA, Addition::kSum);
  if (op.needs_d_in(Addition::kB)) op.pass_d_in(Addition::kB, Addition::kSum);
}

constexpr Operator kAdd{.name = "add",
                        .operator_class = OperatorClass::kAdd,
                        .forward = add_forward,
                        .backward_input = add_backward_input};

// --- linear

void linear_forward(OperatorCall& op) { forward_product(op, op.in(Product::kX), op.weight()); }

void linear_backward_input(OperatorCall& op) {
  if (op.needs_d_in(Product::kX)) input_gradient_product(op, op.weight());
}

void linear_backward_weight(OperatorCall& op) { weight_gradient_product(op, op.in(Product::kX)); }

constexpr Operator kLinear{.name = "linear",
                           .operator_class = OperatorClass::kLinear,
                           .forward = linear_forward,
                           .backward_input = linear_backward_input,
                           .backward_weight = linear_backward_weight,
                           .for_input = saves(Product::kTokens),
                           .for_weight = saves(Product::kX, Product::kTokens)};

// --- scale

struct ScaleAttributes {
  float factor;
};

void scale_forward(OperatorCall& op) {
  launch(op.context(), turbo::Scale{.x = op.in_or_out(Unary::kX, Unary::kY),
                                    .out = op.out(Unary::kY),
                                    .factor = op.attributes<ScaleAttributes>().factor});
}

// The gradient of the output becomes the gradient of the input in place.
void scale_backward_input(OperatorCall& op) {
  const Tensor d_y = op.d_out(Unary::kY), d_x = op.complete_d_out(Unary::kY);
  launch(op.context(), turbo::Scale{.x = d_y, .out = d_x, .factor = op.attributes<ScaleAttributes>().factor});
  op.pass_d_in(Unary::kX, Unary::kY);
}

constexpr Operator kScale{.name = "scale",
                          .operator_class = OperatorClass::kLinear,
                          .forward = scale_forward,
                          .backward_input = scale_backward_input,
                          .in_place = true};

// --- sum: a product plus its low-rank product

void sum_forward(OperatorCall& op) {
  launch(op.context(), turbo::Add{.a = op.in_or_out(Addition::kA, Addition::kSum),
                                  .b = op.in(Addition::kB),
                                  .out = op.out(Addition::kSum)});
}

constexpr Operator kSum{.name = "sum",
                        .operator_class = OperatorClass::kAdd,
                        .forward = sum_forward,
                        .backward_input = add_backward_input,
                        .in_place = true};

// --- add_bias

void add_bias_forward(OperatorCall& op) {
  launch(
      op.context(),
      turbo::AddBias{.x = op.in_or_out(Unary::kX, Unary::kY), .bias = op.weight(), .y = op.out(Unary::kY)});
}

void add_bias_backward_input(OperatorCall& op) { op.pass_d_in(Unary::kX, Unary::kY); }

void add_bias_backward_weight(OperatorCall& op) {
  const auto [d_bias, accumulate] = op.d_weight();
  launch(op.context(),
         turbo::AddBiasBackwardWeight{
             .d_y = op.d_out(Unary::kY), .d_bias = d_bias, .accumulate = accumulate, .workspace = {}});
}

constexpr Operator kAddBias{.name = "add_bias",
                            .operator_class = OperatorClass::kAdd,
                            .forward = add_bias_forward,
                            .backward_input = add_bias_backward_input,
                            .backward_weight = add_bias_backward_weight,
                            .in_place = true};

// --- split

// Copies the first `cols` columns of each row.
void copy_columns(OperatorCall& op, const Tensor& from, const Tensor& to, std::int64_t cols) {
  launch(op.context(), turbo::CopyRows::strided(from, to, from.rows(), cols, from.cols(), to.cols()));
}

struct Split {
  enum In : InputName { kX };
  enum Out : OutputName { kLeft, kRight };
};

void split_forward(OperatorCall& op) {
  const Tensor x = op.in(Split::kX), left = op.out(Split::kLeft), right = op.out(Split::kRight);
  copy_columns(op, x, left, left.cols());
  copy_columns(op, x.from(left.cols()), right, right.cols());
}

void split_backward_input(OperatorCall& op) {
  const Tensor left = op.d_out(Split::kLeft), right = op.d_out(Split::kRight);
  const auto [d_x, previous] = op.fresh_d_in(Split::kX);
  if (left.absent() || right.absent()) launch(op.context(), turbo::Fill{.out = d_x, .value = 0});
  if (!left.absent()) copy_columns(op, left, d_x, left.cols());
  if (!right.absent()) copy_columns(op, right, d_x.from(d_x.cols() - right.cols()), right.cols());
  add_previous(op, {d_x, previous});
}

constexpr Operator kSplit{.name = "split",
                          .operator_class = OperatorClass::kAdd,
                          .forward = split_forward,
                          .backward_input = split_backward_input};

// --- concat

struct Concat {
  enum In : InputName { kLeft, kRight };
  enum Out : OutputName { kY };
};

void concat_forward(OperatorCall& op) {
  const Tensor left = op.in(Concat::kLeft), right = op.in(Concat::kRight), y = op.out(Concat::kY);
  copy_columns(op, left, y, left.cols());
  copy_columns(op, right, y.from(left.cols()), right.cols());
}

void concat_backward_input(OperatorCall& op) {
  Tensor d_y = op.d_out(Concat::kY);
  for (const Concat::In i : {Concat::kLeft, Concat::kRight}) {
    const std::int64_t cols = op.in_shape(i)[1];
    if (op.needs_d_in(i)) {
      const auto [d_x, previous] = op.fresh_d_in(i);
      copy_columns(op, d_y, d_x, cols);
      add_previous(op, {d_x, previous});
    }
    d_y = d_y.from(cols);
  }
}

constexpr Operator kConcat{.name = "concat",
                           .operator_class = OperatorClass::kAdd,
                           .forward = concat_forward,
                           .backward_input = concat_backward_input};

// --- swiglu

struct Swiglu {
  enum In : InputName { kGateUp };
  enum Out : OutputName { kOut };
};

void swiglu_forward(OperatorCall& op) {
  launch(op.context(), turbo::SwigluForward{.gate_up = op.in(Swiglu::kGateUp),
                                            .out = op.out(Swiglu::kOut),
                                            .gate = op.attributes<turbo::GluGate>()});
}

void swiglu_backward_input(OperatorCall& op) {
  const auto [d_gate_up, previous] = op.d_in_over_in(Swiglu::kGateUp);
  launch(op.context(), turbo::SwigluBackward{.gate_up = op.in(Swiglu::kGateUp),
                                             .d_out = op.d_out(Swiglu::kOut),
                                             .d_gate_up = d_gate_up,
                                             .gate = op.attributes<turbo::GluGate>()});
  add_previous(op, {d_gate_up, previous});
}

constexpr Operator kSwiglu{.name = "swiglu",
                           .operator_class = OperatorClass::kActivation,
                           .forward = swiglu_forward,
                           .backward_input = swiglu_backward_input,
                           .for_input = saves(Swiglu::kGateUp)};

// --- soft_cap

struct SoftCapAttributes {
  float cap;
};

void soft_cap_forward(OperatorCall& op) {
  const auto a = op.attributes<SoftCapAttributes>();
  launch(op.context(),
         turbo::SoftCap{.x = op.in_or_out(Unary::kX, Unary::kY), .y = op.out(Unary::kY), .cap = a.cap});
}

// The gradient of the output becomes the gradient of the input in place.
void soft_cap_backward_input(OperatorCall& op) {
  const auto a = op.attributes<SoftCapAttributes>();
  const Tensor d_y = op.d_out(Unary::kY), d_x = op.complete_d_out(Unary::kY);
  launch(op.context(), turbo::SoftCapBackward{.y = op.out(Unary::kY), .d_y = d_y, .d_x = d_x, .cap = a.cap});
  op.pass_d_in(Unary::kX, Unary::kY);
}

constexpr Operator kSoftCap{.name = "soft_cap",
                            .operator_class = OperatorClass::kRouting,
                            .forward = soft_cap_forward,
                            .backward_input = soft_cap_backward_input,
                            .for_input = saves(Unary::kY),
                            .in_place = true};

}  // namespace

// --- functions for model code

Value embedding(const Value& tokens, Parameter& table) { return embedding(tokens, table, {}); }

Value embedding(const Value& tokens, Parameter& table, const SharedVocabulary& vocabulary) {
  const Shape shape{tokens.shape()[0], table.shape[1]};
  const TableAttributes part{vocabulary.group ? vocabulary.own().begin : 0, vocabulary.size};
  return tokens.tape().record(kEmbedding, {{Embedding::kTokens, tokens}}, &table,
                              {{Embedding::kOut, table.unit->dtype, shape}}, part)[Embedding::kOut];
}

Value norm(const Value& x, Parameter& weight, double epsilon) {
  const Shape rows{x.shape()[0]};
  return x.tape().record(kNorm, {{Norm::kX, x}}, &weight,
                         {{Norm::kY, x.dtype(), x.shape()}, {Norm::kRstd, DType::kF32, rows, false}},
                         NormAttributes{static_cast<float>(epsilon)})[Norm::kY];
}

Value norm(Residual& x, Parameter& weight, double epsilon) {
  if (!x.pending) return norm(x.sum, weight, epsilon);
  const Shape rows{x.sum.shape()[0]};
  Tape::Outputs recorded =
      x.sum.tape().record(kAddNorm, {{AddNorm::kX, x.sum}, {AddNorm::kDelta, x.pending}}, &weight,
                          {{AddNorm::kSum, x.sum.dtype(), x.sum.shape()},
                           {AddNorm::kY, x.sum.dtype(), x.sum.shape()},
                           {AddNorm::kRstd, DType::kF32, rows, false}},
                          NormAttributes{static_cast<float>(epsilon)});
  x = {std::move(recorded[AddNorm::kSum]), {}};
  return std::move(recorded[AddNorm::kY]);
}

void add(Residual& x, Value y) {
  flush(x);
  x.pending = std::move(y);
}

void flush(Residual& x) {
  if (!x.pending) return;
  x.sum = x.sum.tape().record(kAdd, {{Addition::kA, x.sum}, {Addition::kB, x.pending}}, nullptr,
                              {{Addition::kSum, x.sum.dtype(), x.sum.shape()}})[Addition::kSum];
  x.pending = {};
}

BlockScope::BlockScope(Residual& x, std::int64_t layer) : tape_(x.sum.tape()) {
  const RecomputePolicy& policy = tape_.recompute();
  if (policy.begins_group(layer)) flush(x);
  tape_.enter_block(layer);
}

Value product(const Value& x, Parameter& weight) {
  Tape& tape = x.tape();
  const Shape shape{x.shape()[0], weight.shape[0]};
  const DropoutSource* const source = tape.dropout();
  if (!source || !tape.precision().at_random || !tape.precision().is_fp4(weight))
    return tape.record(kLinear, {{Product::kX, x}}, &weight, {{Product::kY, x.dtype(), shape}})[Product::kY];
  const Value& tokens = source->of_layer.shape()[0] == shape[0] ? source->of_layer : source->own;
  return tape.record(kLinear, {{Product::kX, x}, {Product::kTokens, tokens}}, &weight,
                     {{Product::kY, x.dtype(), shape}},
                     GradientRounding{source->scalars, source->seed})[Product::kY];
}

namespace {

// Returns y, the product of x and the weight, with the terms of the weight's adapters.
Value with_own_adapters(Value y, const Value& x, Parameter& weight) {
  const LowRank& low_rank = x.tape().adapter_of(weight);
  if (!low_rank) {
    return with_part_adapters(std::move(y), weight, [&](const LowRank& part) {
      return product(product(before_low_rank(x, part, RowsOf::kOwn), *part.down), *part.up);
    });
  }
  const Value read = before_low_rank(x, low_rank, RowsOf::kOwn);
  const Value low = scale(product(read, *low_rank.down), low_rank.scale);
  if (adds_low_rank(x.tape(), low_rank)) return add_low_rank(std::move(y), low, *low_rank.up);
  return sum(std::move(y), after_low_rank(product(low, *low_rank.up), low_rank, RowsOf::kOwn));
}

}  // namespace

Value linear(const Value& x, Parameter& weight) {
  const LowRank& low_rank = x.tape().adapter_of(weight);
  const bool drops = low_rank.dropout > 0 && x.tape().dropout();
  // If A's product comes first, the product with the large matrix writes the gradient of x, and A's product
  // is added to it. With dropout, A's input has a separate gradient, which then gives the gradient of x.
  if (low_rank && !drops && adds_low_rank(x.tape(), low_rank)) {
    const Value low = scale(product(x, *low_rank.down), low_rank.scale);
    return add_low_rank(product(x, weight), low, *low_rank.up);
  }
  return with_row_adapters(
      with_own_adapters(product(x, weight), x, weight), x, weight,
      [](Value y, const Value& of, Parameter& own) { return with_own_adapters(std::move(y), of, own); });
}

Value scale(Value x, float factor) {
  if (factor == 1) return x;
  return x.tape().record(kScale, {{Unary::kX, x}}, nullptr, {{Unary::kY, x.dtype(), x.shape()}},
                         ScaleAttributes{factor})[Unary::kY];
}

Value sum(Value a, const Value& b) {
  return a.tape().record(kSum, {{Addition::kA, a}, {Addition::kB, b}}, nullptr,
                         {{Addition::kSum, a.dtype(), a.shape()}})[Addition::kSum];
}

Value add_bias(Value x, Parameter& bias) {
  return x.tape().record(kAddBias, {{Unary::kX, x}}, &bias, {{Unary::kY, x.dtype(), x.shape()}})[Unary::kY];
}

std::pair<Value, Value> split(const Value& x, std::int64_t at) {
  const std::int64_t rows = x.shape()[0], cols = x.shape()[1];
  PRIMUS_CHECK("split", at > 0 && at < cols);
  Tape::Outputs parts = x.tape().record(
      kSplit, {{Split::kX, x}}, nullptr,
      {{Split::kLeft, x.dtype(), Shape{rows, at}}, {Split::kRight, x.dtype(), Shape{rows, cols - at}}});
  return {std::move(parts[Split::kLeft]), std::move(parts[Split::kRight])};
}

Value concat(const Value& a, const Value& b) {
  const Shape shape{a.shape()[0], a.shape()[1] + b.shape()[1]};
  return a.tape().record(kConcat, {{Concat::kLeft, a}, {Concat::kRight, b}}, nullptr,
                         {{Concat::kY, a.dtype(), shape}})[Concat::kY];
}

Value swiglu(const Value& gate_up, turbo::GluGate gate) {
  const Shape shape{gate_up.shape()[0], gate_up.shape()[1] / 2};
  return gate_up.tape().record(kSwiglu, {{Swiglu::kGateUp, gate_up}}, nullptr,
                               {{Swiglu::kOut, gate_up.dtype(), shape}}, gate)[Swiglu::kOut];
}

Value soft_cap(Value x, double cap) {
  return x.tape().record(kSoftCap, {{Unary::kX, x}}, nullptr, {{Unary::kY, x.dtype(), x.shape()}},
                         SoftCapAttributes{static_cast<float>(cap)})[Unary::kY];
}

}  // namespace primus::engine
