#include "engine/operators/attention_residual.h"

#include "engine/runtime/parameter_values.h"
#include "tensor/scratch_tensor.h"
#include "turbo/attention_residual/attention_residual.h"

namespace primus::engine {
namespace {

using turbo::launch;

struct Attributes {
  float eps;
};

struct AttentionResidual {
  enum In : InputName { kCheckpoints, kStream, kNorm, kProj };
  enum Out : OutputName { kOut };
};

turbo::ResidualCandidates candidates(const OperatorCall& op) {
  return {.checkpoints = op.in(AttentionResidual::kCheckpoints),
          .stream = op.in(AttentionResidual::kStream),
          .norm = op.in(AttentionResidual::kNorm),
          .proj = op.in(AttentionResidual::kProj),
          .eps = op.attributes<Attributes>().eps};
}

void forward(OperatorCall& op) {
  launch(op.context(),
         turbo::AttentionResidual{.of = candidates(op), .out = op.out(AttentionResidual::kOut)});
}

void backward_input(OperatorCall& op) {
  Arena& scratch = op.context().scratch;
  const turbo::ResidualCandidates of = candidates(op);
  const OperatorCall::Target d_checkpoints = op.d_in(AttentionResidual::kCheckpoints),
                             d_stream = op.d_in(AttentionResidual::kStream);
  const ScratchTensor factors(scratch, DType::kF32, {of.stream.rows(), of.count()});
  launch(op.context(), turbo::AttentionResidualBackward{.of = of,
                                                        .d_out = op.d_out(AttentionResidual::kOut),
                                                        .previous_checkpoints = d_checkpoints.previous,
                                                        .previous_stream = d_stream.previous,
                                                        .d_checkpoints = d_checkpoints.out,
                                                        .d_stream = d_stream.out,
                                                        .factors = factors.get()});
  const OperatorCall::Target d_norm = op.fresh_d_in(AttentionResidual::kNorm),
                             d_proj = op.fresh_d_in(AttentionResidual::kProj);
  launch(
      op.context(),
      turbo::AttentionResidualBackwardWeight{
          .of = of, .factors = factors.get(), .d_norm = d_norm.out, .d_proj = d_proj.out, .workspace = {}});
  add_previous(op, d_norm);
  add_previous(op, d_proj);
}

constexpr Operator kAttentionResidual{
    .name = "attention_residual",
    .operator_class = OperatorClass::kNorm,
    .forward = forward,
    .backward_input = backward_input,
    .for_input = saves(AttentionResidual::kCheckpoints, AttentionResidual::kStream, AttentionResidual::kNorm,
                       AttentionResidual::kProj)};

}  // namespace

Value attention_residual(const Value& stream, const Value& checkpoints, Parameter& norm, Parameter& proj,
                         double epsilon) {
  Tape& tape = stream.tape();
  const Value of_norm = parameter_values(tape, norm), of_proj = parameter_values(tape, proj);
  return tape.record(kAttentionResidual,
                     {{AttentionResidual::kCheckpoints, checkpoints},
                      {AttentionResidual::kStream, stream},
                      {AttentionResidual::kNorm, of_norm},
                      {AttentionResidual::kProj, of_proj}},
                     nullptr, {{AttentionResidual::kOut, stream.dtype(), stream.shape()}},
                     Attributes{static_cast<float>(epsilon)})[AttentionResidual::kOut];
}

}  // namespace primus::engine
