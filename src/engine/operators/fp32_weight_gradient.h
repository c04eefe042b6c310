// Weight gradients of operators whose kernels write only fp32: sinks and expert biases, which are small.
#pragma once

#include "engine/runtime/tape.h"
#include "tensor/scratch_tensor.h"
#include "turbo/elementwise/elementwise.h"

namespace primus::engine {

// Calls write(out, accumulate) with an fp32 tensor for the step's weight gradient. If the gradient is bf16,
// the tensor is scratch memory; `accumulate` adds to an fp32 copy of the gradient. The sum is rounded once.
template <class Write>
void write_fp32_weight_gradient(OperatorCall& op, Write&& write) {
  const auto [d_weight, accumulate] = op.d_weight();
  if (d_weight.dtype == DType::kF32) return write(d_weight, accumulate);
  const ScratchTensor wide(op.context().scratch, DType::kF32, d_weight.shape);
  if (accumulate) turbo::launch(op.context(), turbo::Cast{.x = d_weight, .out = wide.get()});
  write(wide.get(), accumulate);
  turbo::launch(op.context(), turbo::Cast{.x = wide.get(), .out = d_weight});
}

}  // namespace primus::engine
