#include <algorithm>

#include "turbo/cpu/reduce.h"
#include "turbo/cpu/register.h"
#include "turbo/head_norm/head_norm.h"
#include "turbo/rms_norm/formula.h"

namespace primus::turbo::PRIMUS_CPU_ISA {
namespace {

// Calls body(index of the head, its first column, its weights or null) for every head that is normalised.
template <class T, class Body>
PRIMUS_INLINE void for_each_head(const HeadNormShape& s, const T* weight, Body body) {
  for (std::int64_t head = 0; head < s.normed(); ++head) {
    body(head, head * s.head_dim, weight ? weight + (head < s.heads ? 0 : s.head_dim) : nullptr);
  }
}

template <class T>
const T* optional(const CpuContext& context, const Tensor& tensor) {
  return tensor.absent() ? nullptr : context.data<const T>(tensor);
}

void forward(CpuContext& context, const HeadNormForward& a) {
  with_float_type(a.x.dtype, [&](auto tag) {
    using T = decltype(tag);
    const std::int64_t width = a.x.cols(), dim = a.shape.head_dim, normed = a.shape.normed();
    const T* weight = optional<T>(context, a.weight);
    const float offset = a.offset;
    parallel_ranges(context, a.x.rows(), 2 * width * sizeof(T), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const T* x_row = context.data<const T>(a.x) + row * width;
        T* y_row = context.data<T>(a.y) + row * width;
        float* rstd = context.data<float>(a.rstd) + row * normed;
        for_each_head(a.shape, weight, [&](std::int64_t head, std::int64_t column, const T* w) {
          const T* x = x_row + column;
          T* y = y_row + column;
          const float squares =
              sum_terms(dim, [=](std::int64_t i) { return to_float(x[i]) * to_float(x[i]); });
          const float scale = inverse_rms(squares, dim, a.eps);
          rstd[head] = scale;
          if (w) {
            PRIMUS_SIMD()
            for (std::int64_t i = 0; i < dim; ++i)
              y[i] = from_float<T>(norm_output(to_float(x[i]), scale, to_float(w[i]) + offset));
          } else {
            PRIMUS_SIMD()
            for (std::int64_t i = 0; i < dim; ++i) y[i] = from_float<T>(to_float(x[i]) * scale);
          }
        });
        if (x_row != y_row) std::copy(x_row + normed * dim, x_row + width, y_row + normed * dim);
      }
    });
  });
}

// Computes d_x by NormGradient; the gradient of the normalised values is d_y * weight.
void backward_input(CpuContext& context, const HeadNormBackwardInput& a) {
  with_float_type(a.x.dtype, [&](auto tag) {
    using T = decltype(tag);
    const std::int64_t width = a.x.cols(), dim = a.shape.head_dim, normed = a.shape.normed();
    const T* weight = optional<T>(context, a.weight);
    const float offset = a.offset;
    parallel_ranges(context, a.x.rows(), 3 * width * sizeof(T), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const T* x_row = context.data<const T>(a.x) + row * width;
        const T* d_y_row = context.data<const T>(a.d_y) + row * width;
        T* d_x_row = context.data<T>(a.d_x) + row * width;
        const float* rstd = context.data<const float>(a.rstd) + row * normed;
        for_each_head(a.shape, weight, [&](std::int64_t head, std::int64_t column, const T* w) {
          const T *x = x_row + column, *d_y = d_y_row + column;
          T* d_x = d_x_row + column;
          const float scale = rstd[head];
          const auto with = [&](auto gradient) {
            const float dot = sum_terms(dim, [=](std::int64_t i) { return gradient(i) * to_float(x[i]); });
            const NormGradient of_x(dot, scale, dim);
            PRIMUS_SIMD()
            for (std::int64_t i = 0; i < dim; ++i) d_x[i] = from_float<T>(of_x(gradient(i), to_float(x[i])));
          };
          if (w) {
            with([=](std::int64_t i) { return to_float(d_y[i]) * (to_float(w[i]) + offset); });
          } else {
            with([=](std::int64_t i) { return to_float(d_y[i]); });
          }
        });
        if (d_y_row != d_x_row) std::copy(d_y_row + normed * dim, d_y_row + width, d_x_row + normed * dim);
      }
    });
  });
}

std::int64_t backward_weight_workspace(CpuContext&, const HeadNormBackwardWeight& a) {
  return row_sum_workspace(a.x.rows(), 2 * a.shape.head_dim);
}

void backward_weight(CpuContext& context, const HeadNormBackwardWeight& a) {
  with_float_type(a.x.dtype, [&](auto tag) {
    using T = decltype(tag);
    const std::int64_t width = a.x.cols(), dim = a.shape.head_dim, normed = a.shape.normed();
    const T* x = context.data<const T>(a.x);
    const T* d_y = context.data<const T>(a.d_y);
    const float* rstd = context.data<const float>(a.rstd);
    row_sum(context, a.x.rows(), 2 * dim, context.data<float>(a.workspace), a.d_weight, a.accumulate,
            [=](float* line, std::int64_t row) {
              for (std::int64_t head = 0; head < normed; ++head) {
                const T* x_head = x + row * width + head * dim;
                const T* d_y_head = d_y + row * width + head * dim;
                const float scale = rstd[row * normed + head];
                float* sum = line + (head < a.shape.heads ? 0 : dim);
                PRIMUS_SIMD()
                for (std::int64_t i = 0; i < dim; ++i)
                  sum[i] += norm_weight_term(to_float(d_y_head[i]), to_float(x_head[i]), scale);
              }
            });
  });
}

}  // namespace

void register_head_norm(KernelTable& table) {
  table.add<HeadNormForward, CpuContext, &forward>();
  table.add<HeadNormBackwardInput, CpuContext, &backward_input>();
  table.add<HeadNormBackwardWeight, CpuContext, &backward_weight, &backward_weight_workspace>();
}

}  // namespace primus::turbo::PRIMUS_CPU_ISA
