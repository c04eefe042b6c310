#include <algorithm>

#include "turbo/check.h"
#include "turbo/cpu/register.h"
#include "turbo/cpu/simd.h"
#include "turbo/rope/formula.h"
#include "turbo/rope/rope.h"

namespace primus::turbo::PRIMUS_CPU_ISA {
namespace {

// Rotates the pairs of columns of a head. Pair i has columns i * step and i * step + apart.
template <class T>
PRIMUS_INLINE void turn(const T* x, T* y, const float* cosines, const float* sines, float sign,
                        std::int64_t pairs, std::int64_t step, std::int64_t apart) {
  PRIMUS_SIMD()
  for (std::int64_t i = 0; i < pairs; ++i) {
    const std::int64_t at = i * step;
    const RotatedPair pair(to_float(x[at]), to_float(x[at + apart]), cosines[i], sines[i] * sign);
    y[at] = from_float<T>(pair.first);
    y[at + apart] = from_float<T>(pair.second);
  }
}

void rope(CpuContext& context, const Rope& a) {
  PRIMUS_CHECK(Rope::kId, a.norm.absent());  // because is_taken() returns false for such calls
  with_float_type(a.x.dtype, [&](auto tag) {
    using T = decltype(tag);
    const std::int64_t width = a.x.cols(), half = a.rotary_dim / 2,
                       rotary_end = a.rotary_begin + a.rotary_dim;
    const std::int32_t* positions = context.data<std::int32_t>(a.positions);
    const float* table = context.data<float>(a.table);
    const float sign = a.inverse ? -1.0F : 1.0F;
    const bool in_place = a.x.data == a.y.data;
    // If y is x, only the rotated heads are read and written.
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
          // There are two calls, so that the strides of pairs are compile-time constants.
          if (a.interleaved) {
            turn(x + a.rotary_begin, y + a.rotary_begin, cosines, sines, sign, half, 2, 1);
          } else {
            turn(x + a.rotary_begin, y + a.rotary_begin, cosines, sines, sign, half, 1, half);
          }
          if (!in_place) {
            std::copy(x, x + a.rotary_begin, y);
            std::copy(x + rotary_end, x + a.head_dim, y + rotary_end);
          }
        }
        if (!in_place) std::copy(x_row + a.heads * a.head_dim, x_row + width, y_row + a.heads * a.head_dim);
      }
    });
  });
}

}  // namespace

void register_rope(KernelTable& table) { table.add<Rope, CpuContext, &rope>(); }

}  // namespace primus::turbo::PRIMUS_CPU_ISA
