#include "engine/runtime/parameter_values.h"

#include "engine/operators/fp32_weight_gradient.h"

namespace primus::engine {
namespace {

using turbo::launch;

struct ParameterValues {
  enum Out : OutputName { kValues };
};

void forward(OperatorCall& op) {
  launch(op.context(), turbo::Cast{.x = op.weight(), .out = op.out(ParameterValues::kValues)});
}

void backward_weight(OperatorCall& op) {
  write_fp32_weight_gradient(op, [&](const Tensor& gradient, bool accumulate) {
    if (accumulate) {
      launch(op.context(),
             turbo::Add{.a = gradient, .b = op.d_out(ParameterValues::kValues), .out = gradient});
    } else {
      launch(op.context(), turbo::Cast{.x = op.d_out(ParameterValues::kValues), .out = gradient});
    }
  });
}

constexpr Operator kParameterValues{.name = "parameter_values",
                                    .operator_class = OperatorClass::kActivation,
                                    .forward = forward,
                                    .backward_weight = backward_weight};

}  // namespace

Value parameter_values(Tape& tape, Parameter& parameter) {
  return tape.record(kParameterValues, {}, &parameter,
                     {{ParameterValues::kValues, DType::kF32, parameter.shape}})[ParameterValues::kValues];
}

}  // namespace primus::engine
