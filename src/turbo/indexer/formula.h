// The scores of the indexer and their order, shared by the kernels of all devices.
#pragma once

#include <bit>
#include <cstdint>

#include "turbo/formula.h"

namespace primus::turbo::PRIMUS_KERNELS {

// Returns sum + weight * relu(product): adds the contribution of a head to the score of a key. NaN stays NaN.
PRIMUS_FORMULA float with_head(float sum, float weight, float product) {
  return multiply_add(weight, product < 0.0F ? 0.0F : product, sum);
}

// Maps scores to integers in the same order; NaN becomes the largest integer.
PRIMUS_FORMULA std::uint32_t key_of_score(float score) {
  const auto bits = std::bit_cast<std::uint32_t>(score + 0.0F);  // -0 becomes 0
  const std::uint32_t value = (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
  return score != score ? 0xffffffffU : value;
}

}  // namespace primus::turbo::PRIMUS_KERNELS
