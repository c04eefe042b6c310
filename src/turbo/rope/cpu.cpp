#include <algorithm>

#include "turbo/cpu/register.h"
#include "turbo/cpu/simd.h"
#include "turbo/rope/rope.h"

namespace primus::turbo::PRIMUS_CPU_ISA {
namespace {

void rope(CpuContext& context, const Rope& a) {
  with_float_type(a.x.dtype, [&](auto tag) {
    using T = decltype(tag);
    const std::int64_t width = a.x.cols(), half = a.rotary_dim / 2;
    const std::int32_t* positions = context.data<std::int32_t>(a.positions);
    const float* table = context.data<float>(a.table);
    const float sign = a.inverse ? -1.0F : 1.0F;
    const bool in_place = a.x.data == a.y.data;
    // In place only the rotated heads are touched.
    const std::int64_t touched = in_place ? a.heads * a.head_dim : width;
    parallel_ranges(context, a.x.rows(), 2 * touched * sizeof(T), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const T* x_row = context.data<T>(a.x) + row * width;
        T* y_row = context.data<T>(a.y) + row * width;
        assert(positions[row] >= 0 && positions[row] < a.table.rows());
        const float* cosines = table + positions[row] * a.rotary_dim;
        const float* sines = cosines + half;
        for (std::int64_t head = 0; head < a.heads; ++head) {
          const T* x = x_row + head * a.head_dim;
          T* y = y_row + head * a.head_dim;
          PRIMUS_SIMD()
          for (std::int64_t i = 0; i < half; ++i) {
            const float x0 = to_float(x[i]), x1 = to_float(x[i + half]);
            const float c = cosines[i], s = sines[i] * sign;
            y[i] = from_float<T>(x0 * c - x1 * s);
            y[i + half] = from_float<T>(x1 * c + x0 * s);
          }
          if (!in_place) std::copy(x + a.rotary_dim, x + a.head_dim, y + a.rotary_dim);
        }
        if (!in_place) std::copy(x_row + a.heads * a.head_dim, x_row + width, y_row + a.heads * a.head_dim);
      }
    });
  });
}

}  // namespace

void register_rope(KernelTable& table) { table.add<Rope, CpuContext, &rope>(); }

}  // namespace primus::turbo::PRIMUS_CPU_ISA
