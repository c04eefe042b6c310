#include <algorithm>

#include "turbo/cpu/reduce.h"
#include "turbo/cpu/register.h"
#include "turbo/dora/dora.h"
#include "turbo/dora/formula.h"

namespace primus::turbo::PRIMUS_CPU_ISA {
namespace {

void norm(CpuContext& context, const DoraNorm& a) {
  with_float_type(a.w.dtype, [&](auto tag) {
    using T = decltype(tag);
    const std::int64_t in = a.w.cols(), rank = a.down.rows();
    const T *w = context.data<const T>(a.w), *down = context.data<const T>(a.down),
            *up = context.data<const T>(a.up);
    auto* const out = context.data<float>(a.square);
    const float scale = a.scale;
    parallel_ranges(context, a.w.rows(), (rank + 1) * in * sizeof(T),
                    [&](std::int64_t begin, std::int64_t end) {
                      constexpr std::int64_t kColumns = 256;
                      float v[kColumns];
                      for (std::int64_t row = begin; row < end; ++row) {
                        double squares = 0;
                        for (std::int64_t at = 0; at < in; at += kColumns) {
                          const std::int64_t count = std::min(kColumns, in - at);
                          std::fill_n(v, count, 0.0F);
                          for (std::int64_t r = 0; r < rank; ++r) {
                            const float factor = to_float(up[row * rank + r]);
                            const T* const line = down + r * in + at;
                            PRIMUS_SIMD()
                            for (std::int64_t i = 0; i < count; ++i) v[i] += factor * to_float(line[i]);
                          }
                          const T* const line = w + row * in + at;
                          PRIMUS_SIMD()
                          for (std::int64_t i = 0; i < count; ++i) v[i] = scale * v[i] + to_float(line[i]);
                          squares += sum_doubles(0, count, [&](std::int64_t i) {
                            return static_cast<double>(v[i]) * static_cast<double>(v[i]);
                          });
                        }
                        out[row] = static_cast<float>(squares);
                      }
                    });
  });
}

void scale(CpuContext& context, const DoraScale& a) {
  with_float_type(a.x.dtype, [&](auto tag) {
    using T = decltype(tag);
    const std::int64_t cols = a.x.cols(), n = a.square.elements(), end_column = a.first + n;
    const T* const magnitude = context.data<const T>(a.magnitude);
    const auto* const square = context.data<const float>(a.square);
    parallel_ranges(context, a.x.rows(), 2 * cols * sizeof(T), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const T* const x = context.data<const T>(a.x) + row * cols;
        T* const y = context.data<T>(a.y) + row * cols;
        if (x != y) {
          std::copy_n(x, a.first, y);
          std::copy_n(x + end_column, cols - end_column, y + end_column);
        }
        const T* const from = x + a.first;
        T* const to = y + a.first;
        PRIMUS_SIMD()
        for (std::int64_t i = 0; i < n; ++i)
          to[i] = from_float<T>(to_magnitude(to_float(from[i]), to_float(magnitude[i]), square[i]));
      }
    });
  });
}

std::int64_t backward_workspace(CpuContext&, const DoraBackwardMagnitude& a) {
  return row_sum_workspace(a.x.rows(), a.square.elements());
}

void backward(CpuContext& context, const DoraBackwardMagnitude& a) {
  with_float_type(a.x.dtype, [&](auto tag) {
    using T = decltype(tag);
    const std::int64_t cols = a.x.cols(), n = a.square.elements();
    const T *x = context.data<const T>(a.x) + a.first, *d_y = context.data<const T>(a.d_y) + a.first;
    const auto* const square = context.data<const float>(a.square);
    row_sum(context, a.x.rows(), n, context.data<float>(a.workspace), a.d_magnitude, a.accumulate,
            [=](float* line, std::int64_t row) {
              const T *x_row = x + row * cols, *d_y_row = d_y + row * cols;
              PRIMUS_SIMD()
              for (std::int64_t i = 0; i < n; ++i)
                line[i] += magnitude_term(to_float(x_row[i]), to_float(d_y_row[i]), square[i]);
            });
  });
}

}  // namespace

void register_dora(KernelTable& table) {
  table.add<DoraNorm, CpuContext, &norm>();
  table.add<DoraScale, CpuContext, &scale>();
  table.add<DoraBackwardMagnitude, CpuContext, &backward, &backward_workspace>();
}

}  // namespace primus::turbo::PRIMUS_CPU_ISA
