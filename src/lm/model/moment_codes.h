// Converts optimizer states with one scale per block (turbo/block_moments.h) to numbers and back, on the
// host. `dtype` is the type of the codes. Pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tensor/bfloat16.h"
#include "tensor/dtype.h"

namespace primus {

// Decodes `codes`, beginning at element `first` of the scaled array; `scales` begins with the scale of that
// element.
void decode_moments(DType dtype, std::span<const std::uint8_t> codes, std::span<const BFloat16> scales,
                    std::int64_t first, std::span<float> out);

// The codes and scales of complete blocks.
struct MomentCodes {
  std::vector<std::uint8_t> codes;
  std::vector<BFloat16> scales;
};
MomentCodes encode_moments(DType dtype, std::span<const float> values);

}  // namespace primus
