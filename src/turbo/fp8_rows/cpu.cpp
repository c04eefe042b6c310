#include <algorithm>
#include <bit>
#include <cstring>

#include "turbo/cpu/register.h"
#include "turbo/cpu/simd.h"
#include "turbo/fp8_rows/fp8_rows.h"

namespace primus::turbo::PRIMUS_CPU_ISA {
namespace {

// Calls body(row, first element of the group, end of the group, group) for the groups of all rows whose entry
// in `list` is not below 0.
template <class Body>
void for_each_group(const CpuContext& context, const std::int32_t* list, std::int64_t rows,
                    Fp8RowLayout layout, Body body) {
  parallel_ranges(context, rows, 4 * layout.cols, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      if (list[row] < 0) continue;
      for (std::int64_t group = 0; group < layout.groups(); ++group) {
        const std::int64_t first = group * Fp8RowLayout::kGroup;
        body(row, first, std::min(first + Fp8RowLayout::kGroup, layout.cols), group);
      }
    }
  });
}

void encode_rows(CpuContext& context, const EncodeRows& a) {
  with_float_type(a.x.dtype, [&](auto tag) {
    using T = decltype(tag);
    const Fp8RowLayout layout{a.x.cols()};
    const T* x = context.data<T>(a.x);
    const auto* rows = context.data<std::int32_t>(a.rows);
    auto* out = context.data<std::uint8_t>(a.out);
    const auto encode = [&](std::int64_t row, std::int64_t begin, std::int64_t end, std::int64_t group) {
      const T* from = x + rows[row] * layout.cols;
      std::uint8_t* const to = out + row * layout.bytes();
      std::uint32_t largest = 0;
      PRIMUS_SIMD(reduction(max : largest))
      for (std::int64_t i = begin; i < end; ++i)
        largest = std::max(largest, std::bit_cast<std::uint32_t>(to_float(from[i])) & 0x7FFFFFFFU);
      const Fp8Scales scales = fp8_scales(largest, Fp8E4M3::largest());
      PRIMUS_SIMD()
      for (std::int64_t i = begin; i < end; ++i)
        to[i] = Fp8E4M3::nearest(to_float(from[i]) * scales.scale).bits;
      std::memcpy(to + layout.factors() + group * 4, &scales.inverse, sizeof(scales.inverse));
    };
    for_each_group(context, rows, a.out.rows(), layout, encode);
  });
}

void decode_rows(CpuContext& context, const DecodeRows& a) {
  with_float_type(a.out.dtype, [&](auto tag) {
    using T = decltype(tag);
    const Fp8RowLayout layout{a.out.cols()};
    const auto* x = context.data<std::uint8_t>(a.x);
    T* out = context.data<T>(a.out);
    const auto decode = [&](std::int64_t row, std::int64_t begin, std::int64_t end, std::int64_t group) {
      const std::uint8_t* const from = x + row * layout.bytes();
      T* const to = out + row * layout.cols;
      float factor = 0;
      std::memcpy(&factor, from + layout.factors() + group * 4, sizeof(factor));
      PRIMUS_SIMD()
      for (std::int64_t i = begin; i < end; ++i) to[i] = from_float<T>(Fp8E4M3{from[i]}.value() * factor);
    };
    for_each_group(context, context.data<std::int32_t>(a.used), a.out.rows(), layout, decode);
  });
}

}  // namespace

void register_fp8_rows(KernelTable& table) {
  table.add<EncodeRows, CpuContext, &encode_rows>();
  table.add<DecodeRows, CpuContext, &decode_rows>();
}

}  // namespace primus::turbo::PRIMUS_CPU_ISA
