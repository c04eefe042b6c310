// Converts elements of weight files to floats and back.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "lm/checkpoint/safetensors.h"
#include "tensor/dtype.h"

namespace primus {

// Throws kUnsupported with the tensor's name if the elements are not fp32, bf16, fp16 or fp64.
void require_float(const TensorView& tensor);

// Converts out.size() elements. `dtype` must be one that require_float() accepts; `from` may be unaligned.
// fp64 values are rounded to fp32; other conversions are exact.
void to_float(DType dtype, std::span<const std::byte> from, std::span<float> out);

// Converts to fp32, bf16 or fp16, rounding to nearest even. `out` has room for from.size() elements and may
// be unaligned.
void from_float(std::span<const float> from, DType dtype, std::span<std::byte> out);

// Returns PyTorch's name of fp32, bf16 or fp16: "float32", "bfloat16" or "float16".
std::string_view torch_name(DType dtype);
// Returns the type with this name of PyTorch; fp32 for other names.
DType dtype_of_torch_name(std::string_view name);

}  // namespace primus
