// The scores of the indexer and their order, shared by the kernels of all devices.
#pragma once

#include <bit>
#include <cstdint>

#include "turbo/formula.h"

namespace primus::turbo::PRIMUS_KERNELS {

// Adds a head's weighted relu(product) to a key's score; a NaN stays NaN.
PRIMUS_FORMULA float with_head(float sum, float weight, float product) {
  return multiply_add(weight, product < 0.0F ? 0.0F : product, sum);
}

// Maps scores to integers in the same order; a NaN is the highest.
PRIMUS_FORMULA std::uint32_t key_of_score(float score) {
  const auto bits = std::bit_cast<std::uint32_t>(score + 0.0F);  // -0 becomes 0
  const std::uint32_t value = (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
  return score != score ? 0xffffffffU : value;
}

}  // namespace primus::turbo::PRIMUS_KERNELS
