#include "engine/operators/compressed_attention.h"

#include "base/check.h"
#include "engine/runtime/parameter_values.h"
#include "tensor/scratch_tensor.h"
#include "turbo/elementwise/elementwise.h"
#include "turbo/linear/linear.h"

namespace primus::engine {
namespace {

using turbo::launch;

void copy_rows(OperatorCall& op, const Tensor& from, const Tensor& to, std::int64_t rows, std::int64_t cols,
               std::int64_t from_stride, std::int64_t to_stride) {
  launch(op.context(), turbo::CopyRows::strided(from, to, rows, cols, from_stride, to_stride));
}

// --- detached

void detached_forward(OperatorCall& op) {
  const Tensor x = op.in(Unary::kX);
  copy_rows(op, x, op.out(Unary::kY), x.rows(), x.cols(), x.cols(), x.cols());
}

constexpr Operator kDetached{
    .name = "detached", .operator_class = OperatorClass::kAdd, .forward = detached_forward};

// --- latent_pooling

struct PoolingAttributes {
  turbo::PoolingShape shape;
};

struct Pooling {
  enum In : InputName { kX, kBias };
  enum Out : OutputName { kOut };
};

void pooling_forward(OperatorCall& op) {
  launch(op.context(), turbo::LatentPooling{.shape = op.attributes<PoolingAttributes>().shape,
                                            .x = op.in(Pooling::kX),
                                            .bias = op.in(Pooling::kBias),
                                            .out = op.out(Pooling::kOut)});
}

void pooling_backward(OperatorCall& op) {
  const auto d_x = op.fresh_d_in(Pooling::kX);
  // The kernel always writes the bias's gradient. If the gates and their bias are frozen, this gradient is
  // written to scratch memory.
  const bool of_bias = op.needs_d_in(Pooling::kBias);
  const ScratchTensor unwanted(op.context().scratch, DType::kF32, op.in_shape(Pooling::kBias));
  const OperatorCall::Target d_bias =
      of_bias ? op.fresh_d_in(Pooling::kBias) : OperatorCall::Target{unwanted.get(), Tensor()};
  launch(op.context(), turbo::LatentPoolingBackward{.shape = op.attributes<PoolingAttributes>().shape,
                                                    .x = op.in(Pooling::kX),
                                                    .bias = op.in(Pooling::kBias),
                                                    .d_out = op.d_out(Pooling::kOut),
                                                    .d_x = d_x.out,
                                                    .d_bias = d_bias.out,
                                                    .workspace = {}});
  add_previous(op, d_x);
  if (of_bias) add_previous(op, d_bias);
}

constexpr Operator kPooling{.name = "latent_pooling",
                            .operator_class = OperatorClass::kActivation,
                            .forward = pooling_forward,
                            .backward_input = pooling_backward,
                            .for_input = saves(Pooling::kX, Pooling::kBias)};

// --- positions_of_blocks

struct BlockAttributes {
  std::int64_t batch, ratio;
};

struct Positions {
  enum In : InputName { kOfTokens };
  enum Out : OutputName { kOfBlocks };
};

void positions_forward(OperatorCall& op) {
  const auto a = op.attributes<BlockAttributes>();
  const std::int64_t sequence = op.in(Positions::kOfTokens).elements() / a.batch, blocks = sequence / a.ratio;
  for (std::int64_t b = 0; b < a.batch; ++b)
    copy_rows(op, op.in(Positions::kOfTokens).from(b * sequence),
              op.out(Positions::kOfBlocks).from(b * blocks), blocks, 1, a.ratio, 1);
}

constexpr Operator kPositions{
    .name = "positions_of_blocks", .operator_class = OperatorClass::kRope, .forward = positions_forward};

// --- stack_rows

struct Stack {
  enum In : InputName { kTop, kBottom };
  enum Out : OutputName { kY };
};

void stack_forward(OperatorCall& op) {
  const Tensor a = op.in(Stack::kTop), b = op.in(Stack::kBottom), y = op.out(Stack::kY);
  copy_rows(op, a, y, a.rows(), a.cols(), a.cols(), a.cols());
  copy_rows(op, b, y.from(a.elements()), b.rows(), b.cols(), b.cols(), b.cols());
}

void stack_backward(OperatorCall& op) {
  Tensor d_y = op.d_out(Stack::kY);
  for (const Stack::In i : {Stack::kTop, Stack::kBottom}) {
    const Shape& shape = op.in_shape(i);
    if (op.needs_d_in(i)) {
      const auto target = op.fresh_d_in(i);
      copy_rows(op, d_y, target.out, shape[0], shape[1], shape[1], shape[1]);
      add_previous(op, target);
    }
    if (i == Stack::kTop) d_y = d_y.from(shape.elements());
  }
}

constexpr Operator kStack{.name = "stack_rows",
                          .operator_class = OperatorClass::kAdd,
                          .forward = stack_forward,
                          .backward_input = stack_backward};

// --- window_and_pooled

struct WindowAttributes {
  std::int64_t batch, sequence, window, ratio;
  void* given;  // [tokens, given_cols]; unused if given_cols is 0
  std::int64_t given_cols;
};

struct Window {
  enum In : InputName { kPositions, kChosen };
  enum Out : OutputName { kSelected };
};

// The position input only provides the tape; its values are not read.
void window_forward(OperatorCall& op) {
  const auto a = op.attributes<WindowAttributes>();
  const Tensor given(a.given, DType::kI32, {a.batch * a.sequence, a.given_cols});
  launch(op.context(),
         turbo::WindowAndPooled{.batch = a.batch,
                                .sequence = a.sequence,
                                .window = a.window,
                                .ratio = a.ratio,
                                .chosen = a.given_cols > 0 ? given : op.optional_in(Window::kChosen),
                                .selected = op.out(Window::kSelected)});
}

constexpr Operator kWindow{
    .name = "window_and_pooled", .operator_class = OperatorClass::kAttention, .forward = window_forward};

// --- grouped_columns_linear

struct GroupAttributes {
  std::int64_t groups;
};

// Multiplies one group of columns at a time. The columns of a group are first copied to contiguous memory.
template <class Product>
void for_each_group(OperatorCall& op, Product product) {
  const std::int64_t groups = op.attributes<GroupAttributes>().groups;
  const Tensor weight = op.weight();
  const std::int64_t out = weight.rows() / groups;
  for (std::int64_t g = 0; g < groups; ++g) product(g, weight.slice(g * out, (g + 1) * out));
}

void grouped_forward(OperatorCall& op) {
  const Tensor x = op.in(Unary::kX), y = op.out(Unary::kY);
  for_each_group(op, [&](std::int64_t g, const Tensor& weight) {
    const std::int64_t rows = x.rows(), in = weight.cols(), out = weight.rows();
    const ScratchTensor from(op.context().scratch, x.dtype, {rows, in});
    const ScratchTensor to(op.context().scratch, x.dtype, {rows, out});
    copy_rows(op, x.from(g * in), from.get(), rows, in, x.cols(), in);
    launch(
        op.context(),
        turbo::Gemm{
            .role = turbo::GemmRole::kForward, .a = from.get(), .b = weight, .c = to.get(), .workspace = {}});
    copy_rows(op, to.get(), y.from(g * out), rows, out, out, y.cols());
  });
}

void grouped_backward(OperatorCall& op) {
  if (!op.needs_d_in(Unary::kX)) return;
  const Tensor d_y = op.d_out(Unary::kY);
  const auto target = op.fresh_d_in(Unary::kX);
  for_each_group(op, [&](std::int64_t g, const Tensor& weight) {
    const std::int64_t rows = d_y.rows(), in = weight.cols(), out = weight.rows();
    const ScratchTensor from(op.context().scratch, d_y.dtype, {rows, out});
    const ScratchTensor to(op.context().scratch, d_y.dtype, {rows, in});
    copy_rows(op, d_y.from(g * out), from.get(), rows, out, d_y.cols(), out);
    launch(op.context(), turbo::Gemm{.role = turbo::GemmRole::kInputGradient,
                                     .a = from.get(),
                                     .b = weight,
                                     .c = to.get(),
                                     .workspace = {}});
    copy_rows(op, to.get(), target.out.from(g * in), rows, in, in, target.out.cols());
  });
  add_previous(op, target);
}

void grouped_backward_weight(OperatorCall& op) {
  const Tensor x = op.in(Unary::kX), d_y = op.d_out(Unary::kY);
  const auto [d_weight, accumulate] = op.d_weight();
  const std::int64_t groups = op.attributes<GroupAttributes>().groups, rows = x.rows();
  const std::int64_t in = x.cols() / groups, out = d_y.cols() / groups;
  for (std::int64_t g = 0; g < groups; ++g) {
    const ScratchTensor left(op.context().scratch, x.dtype, {rows, out});
    const ScratchTensor right(op.context().scratch, x.dtype, {rows, in});
    copy_rows(op, d_y.from(g * out), left.get(), rows, out, d_y.cols(), out);
    copy_rows(op, x.from(g * in), right.get(), rows, in, x.cols(), in);
    launch(op.context(), turbo::Gemm{.role = turbo::GemmRole::kWeightGradient,
                                     .a = left.get(),
                                     .b = right.get(),
                                     .c = d_weight.slice(g * out, (g + 1) * out),
                                     .accumulate = accumulate,
                                     .workspace = {}});
  }
}

constexpr Operator kGroupedColumns{.name = "grouped_columns_linear",
                                   .operator_class = OperatorClass::kLinear,
                                   .forward = grouped_forward,
                                   .backward_input = grouped_backward,
                                   .backward_weight = grouped_backward_weight,
                                   .for_weight = saves(Unary::kX)};

}  // namespace

Value detached(const Value& x) {
  return x.tape().record(kDetached, {{Unary::kX, x}}, nullptr,
                         {{Unary::kY, x.dtype(), x.shape(), false}})[Unary::kY];
}

Value latent_pooling(const Value& x, Parameter& bias, const turbo::PoolingShape& shape) {
  const Value of_gates = parameter_values(x.tape(), bias);
  return x.tape().record(kPooling, {{Pooling::kX, x}, {Pooling::kBias, of_gates}}, nullptr,
                         {{Pooling::kOut, x.dtype(), {shape.pooled(), shape.dim}}},
                         PoolingAttributes{shape})[Pooling::kOut];
}

Value positions_of_blocks(const Value& positions, std::int64_t batch, std::int64_t ratio) {
  const std::int64_t blocks = positions.shape().elements() / batch / ratio;
  return positions.tape().record(kPositions, {{Positions::kOfTokens, positions}}, nullptr,
                                 {{Positions::kOfBlocks, DType::kI32, {batch * blocks}, false}},
                                 BlockAttributes{batch, ratio})[Positions::kOfBlocks];
}

Value stack_rows(const Value& a, const Value& b) {
  PRIMUS_CHECK("stack_rows", a.shape()[1] == b.shape()[1]);
  return a.tape().record(kStack, {{Stack::kTop, a}, {Stack::kBottom, b}}, nullptr,
                         {{Stack::kY, a.dtype(), {a.shape()[0] + b.shape()[0], a.shape()[1]}}})[Stack::kY];
}

Value window_and_pooled(const Value& positions, const Value& chosen, const turbo::WindowAndPooled& how) {
  const std::int64_t given = how.chosen.absent() ? 0 : how.chosen.cols();
  const std::int64_t more = given > 0 ? given : chosen ? chosen.shape()[1] : how.blocks();
  const Tape::Output selected{
      Window::kSelected, DType::kI32, {how.batch * how.sequence, how.window + more}, false};
  const WindowAttributes a{how.batch, how.sequence, how.window, how.ratio, how.chosen.data, given};
  return positions.tape().record(kWindow, {{Window::kPositions, positions}, {Window::kChosen, chosen}},
                                 nullptr, {selected}, a)[Window::kSelected];
}

Value grouped_columns_linear(const Value& x, Parameter& weight, std::int64_t groups) {
  PRIMUS_CHECK("grouped_columns_linear", x.shape()[1] == groups * weight.shape[1]);
  return x.tape().record(kGroupedColumns, {{Unary::kX, x}}, &weight,
                         {{Unary::kY, x.dtype(), {x.shape()[0], weight.shape[0]}}},
                         GroupAttributes{groups})[Unary::kY];
}

}  // namespace primus::engine
