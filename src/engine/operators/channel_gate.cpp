#include "engine/operators/channel_gate.h"

#include "engine/runtime/parameter_values.h"
#include "tensor/scratch_tensor.h"
#include "turbo/channel_gate/channel_gate.h"
#include "turbo/elementwise/elementwise.h"

namespace primus::engine {
namespace {

using turbo::launch;

struct Attributes {
  float lower_bound;
};

struct ChannelGate {
  enum In : InputName { kZ, kB, kALog, kBias };
  enum Out : OutputName { kG, kBeta };
};

turbo::ChannelGates gates(const OperatorCall& op) {
  return {.z = op.in(ChannelGate::kZ),
          .b = op.in(ChannelGate::kB),
          .a_log = op.in(ChannelGate::kALog),
          .bias = op.in(ChannelGate::kBias),
          .lower_bound = op.attributes<Attributes>().lower_bound};
}

void forward(OperatorCall& op) {
  launch(op.context(),
         turbo::ChannelGateForward{
             .of = gates(op), .g = op.out(ChannelGate::kG), .beta = op.out(ChannelGate::kBeta)});
}

void backward_input(OperatorCall& op) {
  const turbo::ChannelGates of = gates(op);
  const OperatorCall::Target d_z = op.fresh_d_in(ChannelGate::kZ), d_b = op.fresh_d_in(ChannelGate::kB);
  launch(op.context(), turbo::ChannelGateBackward{.of = of,
                                                  .d_g = op.d_out(ChannelGate::kG),
                                                  .d_beta = op.d_out(ChannelGate::kBeta),
                                                  .d_z = d_z.out,
                                                  .d_b = d_b.out});
  add_previous(op, d_z);
  add_previous(op, d_b);
  const std::int64_t width = of.bias.elements();
  const ScratchTensor d_weight(op.context().scratch, DType::kF32, {width + of.heads()});
  launch(op.context(),
         turbo::ChannelGateBackwardWeight{
             .of = of, .d_g = op.d_out(ChannelGate::kG), .d_weight = d_weight.get(), .workspace = {}});
  const OperatorCall::Target d_a_log = op.fresh_d_in(ChannelGate::kALog),
                             d_bias = op.fresh_d_in(ChannelGate::kBias);
  launch(op.context(), turbo::Cast{.x = d_weight.get().slice(0, width), .out = d_bias.out});
  launch(op.context(), turbo::Cast{.x = d_weight.get().slice(width, width + of.heads()), .out = d_a_log.out});
  add_previous(op, d_a_log);
  add_previous(op, d_bias);
}

constexpr Operator kChannelGate{
    .name = "channel_gate",
    .operator_class = OperatorClass::kActivation,
    .forward = forward,
    .backward_input = backward_input,
    .for_input = saves(ChannelGate::kZ, ChannelGate::kB, ChannelGate::kALog, ChannelGate::kBias)};

}  // namespace

ChannelGateValues channel_gates(const Value& z, const Value& b, Parameter& a_log, Parameter& bias,
                                double lower_bound) {
  Tape& tape = z.tape();
  const Value of_a_log = parameter_values(tape, a_log), of_bias = parameter_values(tape, bias);
  Tape::Outputs recorded = tape.record(
      kChannelGate,
      {{ChannelGate::kZ, z},
       {ChannelGate::kB, b},
       {ChannelGate::kALog, of_a_log},
       {ChannelGate::kBias, of_bias}},
      nullptr, {{ChannelGate::kG, DType::kF32, z.shape()}, {ChannelGate::kBeta, DType::kF32, b.shape()}},
      Attributes{static_cast<float>(lower_bound)});
  return {std::move(recorded[ChannelGate::kG]), std::move(recorded[ChannelGate::kBeta])};
}

}  // namespace primus::engine
