#include "engine/operators/hyper_connection.h"

#include <optional>

#include "engine/operators/moe_operators.h"
#include "engine/runtime/parameter_values.h"
#include "tensor/scratch_tensor.h"
#include "turbo/bias/bias.h"

namespace primus::engine {
namespace {

using turbo::launch;

struct Attributes {
  turbo::HyperShape shape;
};

struct HyperRead {
  enum In : InputName { kX, kProducts, kBase, kScale };
  enum Out : OutputName { kY, kRstd, kMixing };  // kMixing, the mixing weights, exists only with iterations
};

void read_forward(OperatorCall& op) {
  const auto a = op.attributes<Attributes>();
  launch(op.context(), turbo::HyperRead{.shape = a.shape,
                                        .x = op.in(HyperRead::kX),
                                        .products = op.in(HyperRead::kProducts),
                                        .base = op.in(HyperRead::kBase),
                                        .scale = op.in(HyperRead::kScale),
                                        .y = op.out(HyperRead::kY),
                                        .mixing = a.shape.mixes() ? op.out(HyperRead::kMixing) : Tensor(),
                                        .rstd = op.out(HyperRead::kRstd)});
}

void read_backward(OperatorCall& op) {
  const auto a = op.attributes<Attributes>();
  const std::int64_t tokens = op.in_shape(HyperRead::kX)[0];
  const auto [d_x, previous] = op.d_in(HyperRead::kX);
  const auto d_products = op.fresh_d_in(HyperRead::kProducts);
  const ScratchTensor d_base(op.context().scratch, DType::kF32, {tokens, a.shape.products()});
  const ScratchTensor d_scale(op.context().scratch, DType::kF32, {tokens, a.shape.scales()});
  launch(op.context(),
         turbo::HyperReadBackward{.shape = a.shape,
                                  .x = op.in(HyperRead::kX),
                                  .products = op.in(HyperRead::kProducts),
                                  .base = op.in(HyperRead::kBase),
                                  .scale = op.in(HyperRead::kScale),
                                  .rstd = op.out(HyperRead::kRstd),
                                  .d_y = op.d_out(HyperRead::kY),
                                  .d_mixing = a.shape.mixes() ? op.d_out(HyperRead::kMixing) : Tensor(),
                                  .previous = previous,
                                  .d_x = d_x,
                                  .d_products = d_products.out,
                                  .d_base = d_base.get(),
                                  .d_scale = d_scale.get()});
  add_previous(op, d_products);
  for (const HyperRead::In i : {HyperRead::kBase, HyperRead::kScale}) {
    if (!op.needs_d_in(i)) continue;
    const auto target = op.fresh_d_in(i);
    launch(op.context(),
           turbo::AddBiasBackwardWeight{.d_y = i == HyperRead::kBase ? d_base.get() : d_scale.get(),
                                        .d_bias = target.out,
                                        .accumulate = false,
                                        .workspace = {}});
    add_previous(op, target);
  }
}

constexpr Operator kRead{.name = "hyper_read",
                         .operator_class = OperatorClass::kNorm,
                         .forward = read_forward,
                         .backward_input = read_backward,
                         .for_input = saves(HyperRead::kX, HyperRead::kProducts, HyperRead::kBase,
                                            HyperRead::kScale, HyperRead::kRstd)};

struct HyperWrite {
  enum In : InputName { kX, kOut, kMixing };
  enum Out : OutputName { kZ };
};

void write_forward(OperatorCall& op) {
  launch(op.context(), turbo::HyperWrite{.shape = op.attributes<Attributes>().shape,
                                         .x = op.in(HyperWrite::kX),
                                         .out = op.in(HyperWrite::kOut),
                                         .mixing = op.in(HyperWrite::kMixing),
                                         .z = op.out(HyperWrite::kZ)});
}

// Memory for the gradient of an input. Kernels always write this gradient, so the gradient of a frozen input
// goes to scratch memory.
struct Gradient {
  Gradient(OperatorCall& op, InputPlace i) : wanted(op.needs_d_in(i)) {
    if (wanted) {
      target = op.fresh_d_in(i);
    } else {
      unwanted.emplace(op.context().scratch, op.in(i).dtype, op.in_shape(i));
      target.out = unwanted->get();
    }
  }
  void finish(OperatorCall& op) const {
    if (wanted) add_previous(op, target);
  }

  bool wanted;
  OperatorCall::Target target;
  std::optional<ScratchTensor> unwanted;
};

void write_backward(OperatorCall& op) {
  const Gradient d_x(op, HyperWrite::kX), d_out(op, HyperWrite::kOut), d_mixing(op, HyperWrite::kMixing);
  launch(op.context(), turbo::HyperWriteBackward{.shape = op.attributes<Attributes>().shape,
                                                 .x = op.in(HyperWrite::kX),
                                                 .out = op.in(HyperWrite::kOut),
                                                 .mixing = op.in(HyperWrite::kMixing),
                                                 .d_z = op.d_out(HyperWrite::kZ),
                                                 .previous = {},
                                                 .d_x = d_x.target.out,
                                                 .d_out = d_out.target.out,
                                                 .d_mixing = d_mixing.target.out});
  for (const Gradient* gradient : {&d_x, &d_out, &d_mixing}) gradient->finish(op);
}

constexpr Operator kWrite{.name = "hyper_write",
                          .operator_class = OperatorClass::kAdd,
                          .forward = write_forward,
                          .backward_input = write_backward,
                          .for_input = saves(HyperWrite::kX, HyperWrite::kOut, HyperWrite::kMixing)};

}  // namespace

HyperReading hyper_read(const Value& x, const HyperParameters& parameters, const turbo::HyperShape& shape) {
  Tape& tape = x.tape();
  const std::int64_t tokens = x.shape()[0];
  const Value products = router_logits(x, *parameters.fn);
  const Value base = parameter_values(tape, *parameters.base);
  const Value scale = parameter_values(tape, *parameters.scale);
  const Tape::Output y{HyperRead::kY, x.dtype(), {tokens, x.shape()[1] / shape.streams}};
  const Tape::Output rstd{HyperRead::kRstd, DType::kF32, {tokens}, false};
  const Attributes a{shape};
  if (!shape.mixes())
    return {tape.record(kRead,
                        {{HyperRead::kX, x},
                         {HyperRead::kProducts, products},
                         {HyperRead::kBase, base},
                         {HyperRead::kScale, scale}},
                        nullptr, {y, rstd}, a)[HyperRead::kY],
            {}};
  Tape::Outputs read =
      tape.record(kRead,
                  {{HyperRead::kX, x},
                   {HyperRead::kProducts, products},
                   {HyperRead::kBase, base},
                   {HyperRead::kScale, scale}},
                  nullptr, {y, rstd, {HyperRead::kMixing, DType::kF32, {tokens, shape.mixing()}}}, a);
  return {std::move(read[HyperRead::kY]), std::move(read[HyperRead::kMixing])};
}

Value hyper_write(const Value& x, const Value& out, const Value& mixing, const turbo::HyperShape& shape) {
  return x.tape().record(
      kWrite, {{HyperWrite::kX, x}, {HyperWrite::kOut, out}, {HyperWrite::kMixing, mixing}}, nullptr,
      {{HyperWrite::kZ, x.dtype(), x.shape()}}, Attributes{shape})[HyperWrite::kZ];
}

}  // namespace primus::engine
