// The factors of quantised tensors; shared by the kernels of all devices.
#pragma once

#include "turbo/formula.h"
#include "turbo/four_bit/four_bit.h"

namespace primus::turbo::PRIMUS_KERNELS {

// The arrays of ExpandFourBit.
struct FourBitFactors {
  const float *factors, *offset, *table;
  const std::uint8_t* codes;    // null without double quantisation
  std::int64_t blocks, nested;  // per tensor

  // Returns the factor of a block of tensor `t`. The product is rounded before the sum.
  PRIMUS_FORMULA float operator()(std::int64_t t, std::int64_t b) const {
    if (!codes) return factors[t * blocks + b];
    const float product =
        table[kFourBitCodes + codes[t * blocks + b]] * factors[t * nested + b / FourBitFormat::kNestedBlock];
    return product + offset[t];
  }
};

// `AnyContext`: the context of the kernels' device.
template <class AnyContext>
FourBitFactors factors_of(AnyContext& context, const ExpandFourBit& call) {
  const bool nested = !call.codes.absent();
  const FourBitSizes sizes(call.out.shape[1], {.block = call.block, .nested = nested});
  return {.factors = context.template data<const float>(call.factors),
          .offset = nested ? context.template data<const float>(call.offset) : nullptr,
          .table = context.template data<const float>(call.table),
          .codes = nested ? context.template data<const std::uint8_t>(call.codes) : nullptr,
          .blocks = sizes.blocks,
          .nested = sizes.nested};
}

}  // namespace primus::turbo::PRIMUS_KERNELS
