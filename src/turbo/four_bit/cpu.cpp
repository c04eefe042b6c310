#include <algorithm>

#include "turbo/cpu/register.h"
#include "turbo/cpu/simd.h"
#include "turbo/four_bit/formula.h"

namespace primus::turbo::PRIMUS_CPU_ISA {
namespace {

// Expands one block, which begins at an even element. Only 16 different numbers occur in a block, so they are
// computed once.
template <class T>
void expand_block(const std::uint8_t* packed, const float* table, float factor, std::int64_t count, T* out) {
  T numbers[kFourBitCodes];
  for (std::int64_t i = 0; i < kFourBitCodes; ++i) numbers[i] = from_float<T>(table[i] * factor);
  for (std::int64_t i = 0; i + 1 < count; i += 2) {
    const unsigned pair = packed[i / 2];
    out[i] = numbers[pair >> 4U];
    out[i + 1] = numbers[pair & 0xFU];
  }
  if (count % 2 != 0) out[count - 1] = numbers[packed[count / 2] >> 4U];
}

void expand(CpuContext& context, const ExpandFourBit& call) {
  const std::int64_t elements = call.out.shape[1], bytes = call.packed.shape[1], block = call.block;
  const FourBitFactors factor_of = factors_of(context, call);
  const auto* const packed = context.data<const std::uint8_t>(call.packed);
  with_float_type(call.out.dtype, [&](auto tag) {
    using T = decltype(tag);
    T* const out = context.data<T>(call.out);
    parallel_ranges(
        context, call.out.shape[0] * factor_of.blocks, 4 * block, [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t i = begin; i < end; ++i) {
            const std::int64_t t = i / factor_of.blocks, b = i % factor_of.blocks, first = b * block;
            expand_block(packed + t * bytes + first / 2, factor_of.table, factor_of(t, b),
                         std::min(block, elements - first), out + t * elements + first);
          }
        });
  });
}

}  // namespace

void register_four_bit(KernelTable& table) { table.add<ExpandFourBit, CpuContext, &expand>(); }

}  // namespace primus::turbo::PRIMUS_CPU_ISA
