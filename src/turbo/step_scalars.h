// Scalars of an optimizer step that kernels read from device memory. They are not launch arguments, so a
// captured step (Device::capture) can be replayed with other values.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/tensor.h"

namespace primus::turbo {

// Indices into the tensor of scalars, [kStepScalars] fp64: fp64 is exact for counts up to 2^53.
enum class StepScalar : std::size_t {
  kStep,  // number of the step, counted from 1
  kLearningRate,
  kWeightDecay,
  kBias1,  // 1 - beta1^step, for the first moment of Adam
  kBias2,  // 1 - beta2^step, for the second moment of Adam
};
inline constexpr std::int64_t kStepScalars = 5;

constexpr std::size_t index(StepScalar scalar) { return static_cast<std::size_t>(scalar); }
inline bool is_step_scalars(const Tensor& tensor) {
  return tensor.dtype == DType::kF64 && tensor.elements() == kStepScalars;
}

}  // namespace primus::turbo
