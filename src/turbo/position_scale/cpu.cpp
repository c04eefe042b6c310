#include <algorithm>

#include "turbo/cpu/register.h"
#include "turbo/cpu/simd.h"
#include "turbo/position_scale/formula.h"
#include "turbo/position_scale/position_scale.h"

namespace primus::turbo::PRIMUS_CPU_ISA {
namespace {

void position_scale(CpuContext& context, const PositionScale& a) {
  with_float_type(a.x.dtype, [&](auto tag) {
    using T = decltype(tag);
    const std::int64_t width = a.x.cols();
    const std::int32_t* positions = context.data<const std::int32_t>(a.positions);
    const bool in_place = a.x.data == a.y.data;
    const std::int64_t touched = in_place ? a.cols : width;
    parallel_ranges(context, a.x.rows(), 2 * touched * sizeof(T), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const T* x = context.data<const T>(a.x) + row * width;
        T* y = context.data<T>(a.y) + row * width;
        const float scale = position_factor(positions[row] + a.first, a.floor_scale, a.attn_scale);
        PRIMUS_SIMD()
        for (std::int64_t i = 0; i < a.cols; ++i) y[i] = from_float<T>(to_float(x[i]) * scale);
        if (!in_place) std::copy(x + a.cols, x + width, y + a.cols);
      }
    });
  });
}

}  // namespace

void register_position_scale(KernelTable& table) { table.add<PositionScale, CpuContext, &position_scale>(); }

}  // namespace primus::turbo::PRIMUS_CPU_ISA
