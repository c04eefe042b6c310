#include "turbo/four_bit/four_bit.h"

#include "turbo/check.h"

namespace primus::turbo {

void ExpandFourBit::check() const {
  PRIMUS_CHECK(kId, is_float(out) && out.shape.rank() == 2 && block > 1 && block % 2 == 0);
  const std::int64_t count = out.shape[0], elements = out.shape[1];
  const bool nested = !codes.absent();
  const FourBitSizes sizes(elements, {.block = block, .nested = nested});
  PRIMUS_CHECK(kId, packed.dtype == DType::kU8 && packed.shape == Shape({count, sizes.packed}));
  PRIMUS_CHECK(kId, factors.dtype == DType::kF32 &&
                        factors.shape == Shape({count, nested ? sizes.nested : sizes.blocks}));
  PRIMUS_CHECK(kId, is_vector(table, DType::kF32, nested ? kFourBitCodes + kNestedCodes : kFourBitCodes));
  PRIMUS_CHECK(kId, nested != offset.absent());
  if (!nested) return;
  PRIMUS_CHECK(kId, codes.dtype == DType::kU8 && codes.shape == Shape({count, sizes.blocks}));
  PRIMUS_CHECK(kId, is_vector(offset, DType::kF32, count));
}

}  // namespace primus::turbo
