#include "engine/operators/situ.h"

#include "turbo/situ/situ.h"

namespace primus::engine {
namespace {

using turbo::launch;

struct Attributes {
  float beta, linear_beta;
};

struct Situ {
  enum In : InputName { kGateUp };
  enum Out : OutputName { kOut };
};

void forward(OperatorCall& op) {
  const auto a = op.attributes<Attributes>();
  launch(op.context(), turbo::SituForward{.gate_up = op.in(Situ::kGateUp),
                                          .out = op.out(Situ::kOut),
                                          .beta = a.beta,
                                          .linear_beta = a.linear_beta});
}

void backward_input(OperatorCall& op) {
  const auto a = op.attributes<Attributes>();
  const OperatorCall::Target target = op.d_in_over_in(Situ::kGateUp);
  launch(op.context(), turbo::SituBackward{.gate_up = op.in(Situ::kGateUp),
                                           .d_out = op.d_out(Situ::kOut),
                                           .d_gate_up = target.out,
                                           .beta = a.beta,
                                           .linear_beta = a.linear_beta});
  add_previous(op, target);
}

constexpr Operator kSitu{.name = "situ",
                         .operator_class = OperatorClass::kActivation,
                         .forward = forward,
                         .backward_input = backward_input,
                         .for_input = saves(Situ::kGateUp)};

}  // namespace

Value situ(const Value& gate_up, double beta, double linear_beta) {
  const Shape shape{gate_up.shape()[0], gate_up.shape()[1] / 2};
  return gate_up.tape().record(
      kSitu, {{Situ::kGateUp, gate_up}}, nullptr, {{Situ::kOut, gate_up.dtype(), shape}},
      Attributes{static_cast<float>(beta), static_cast<float>(linear_beta)})[Situ::kOut];
}

}  // namespace primus::engine
