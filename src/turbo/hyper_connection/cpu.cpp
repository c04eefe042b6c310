#include <algorithm>

#include "turbo/cpu/register.h"
#include "turbo/cpu/simd.h"
#include "turbo/hyper_connection/formula.h"
#include "turbo/hyper_connection/hyper_connection.h"
#include "turbo/rms_norm/formula.h"

namespace primus::turbo::PRIMUS_CPU_ISA {
namespace {

void read(CpuContext& context, const HyperRead& a) {
  with_float_type(a.x.dtype, [&](auto tag) {
    using T = decltype(tag);
    const HyperShape& s = a.shape;
    const std::int64_t n = s.streams, hidden = a.y.cols(), width = n * hidden, products = s.products();
    parallel_ranges(context, a.x.rows(), 3 * width * sizeof(T), [&](std::int64_t begin, std::int64_t end) {
      HyperFactors f;
      for (std::int64_t row = begin; row < end; ++row) {
        const T* const x = context.data<const T>(a.x) + row * width;
        const float squares =
            sum_terms(width, [&](std::int64_t i) { return to_float(x[i]) * to_float(x[i]); });
        const float rstd = inverse_rms(squares, width, s.norm_eps);
        context.data<float>(a.rstd)[row] = rstd;
        f.set(s, {context.data<const float>(a.products) + row * products, context.data<const float>(a.base),
                  context.data<const float>(a.scale), rstd});
        T* const y = context.data<T>(a.y) + row * hidden;
        PRIMUS_SIMD()
        for (std::int64_t i = 0; i < hidden; ++i) {
          float sum = 0;
          for (std::int64_t j = 0; j < n; ++j) sum = multiply_add(f.pre[j], to_float(x[j * hidden + i]), sum);
          y[i] = from_float<T>(sum);
        }
        if (!s.mixes()) continue;
        float* const mixing = context.data<float>(a.mixing) + row * s.mixing();
        std::copy_n(f.post, n, mixing);
        std::copy_n(f.comb, n * n, mixing + n);
      }
    });
  });
}

void read_backward(CpuContext& context, const HyperReadBackward& a) {
  with_float_type(a.x.dtype, [&](auto tag) {
    using T = decltype(tag);
    const HyperShape& s = a.shape;
    const std::int64_t n = s.streams, hidden = a.d_y.cols(), width = n * hidden, count = s.products();
    const auto* base = context.data<const float>(a.base);
    const auto* scale = context.data<const float>(a.scale);
    parallel_ranges(context, a.x.rows(), 6 * width * sizeof(T), [&](std::int64_t begin, std::int64_t end) {
      HyperFactors f;
      for (std::int64_t row = begin; row < end; ++row) {
        const T* const x = context.data<const T>(a.x) + row * width;
        const T* const d_y = context.data<const T>(a.d_y) + row * hidden;
        const HyperArguments arguments{context.data<const float>(a.products) + row * count, base, scale,
                                       context.data<const float>(a.rstd)[row]};
        f.set(s, arguments);
        constexpr std::int64_t kMax = HyperFactors::kMax;
        float d_pre[kMax], d_post[kMax] = {}, d_comb[kMax * kMax] = {};
        for (std::int64_t j = 0; j < n; ++j) {
          d_pre[j] = sum_terms(
              hidden, [&](std::int64_t i) { return to_float(d_y[i]) * to_float(x[j * hidden + i]); });
        }
        if (!a.d_mixing.absent()) {
          const float* const d = context.data<const float>(a.d_mixing) + row * s.mixing();
          std::copy_n(d, n, d_post);
          std::copy_n(d + n, n * n, d_comb);
        }
        float* const d_base = context.data<float>(a.d_base) + row * count;
        f.argument_gradients(s, d_pre, d_post, d_comb, d_base);
        const float of_x =
            arguments.gradients(s, d_base, width, context.data<float>(a.d_scale) + row * s.scales(),
                                context.data<float>(a.d_products) + row * count);
        const T* const previous =
            a.previous.absent() ? nullptr : context.data<const T>(a.previous) + row * width;
        T* const d_x = context.data<T>(a.d_x) + row * width;
        for (std::int64_t j = 0; j < n; ++j) {
          const float pre = f.pre[j];
          const std::int64_t at = j * hidden;
          PRIMUS_SIMD()
          for (std::int64_t i = 0; i < hidden; ++i) {
            const float sum = multiply_add(pre, to_float(d_y[i]), of_x * to_float(x[at + i]));
            d_x[at + i] = from_float<T>(previous ? to_float(previous[at + i]) + sum : sum);
          }
        }
      }
    });
  });
}

void write(CpuContext& context, const HyperWrite& a) {
  with_float_type(a.x.dtype, [&](auto tag) {
    using T = decltype(tag);
    const std::int64_t n = a.shape.streams, hidden = a.out.cols(), width = n * hidden;
    parallel_ranges(context, a.x.rows(), 3 * width * sizeof(T), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const T* const x = context.data<const T>(a.x) + row * width;
        const T* const out = context.data<const T>(a.out) + row * hidden;
        const float* const post = context.data<const float>(a.mixing) + row * a.shape.mixing();
        const float* const comb = post + n;
        T* const z = context.data<T>(a.z) + row * width;
        for (std::int64_t k = 0; k < n; ++k) {
          PRIMUS_SIMD()
          for (std::int64_t i = 0; i < hidden; ++i) {
            float sum = post[k] * to_float(out[i]);
            for (std::int64_t j = 0; j < n; ++j)
              sum = multiply_add(comb[j * n + k], to_float(x[j * hidden + i]), sum);
            z[k * hidden + i] = from_float<T>(sum);
          }
        }
      }
    });
  });
}

void write_backward(CpuContext& context, const HyperWriteBackward& a) {
  with_float_type(a.x.dtype, [&](auto tag) {
    using T = decltype(tag);
    const std::int64_t n = a.shape.streams, hidden = a.out.cols(), width = n * hidden;
    parallel_ranges(context, a.x.rows(), 6 * width * sizeof(T), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const T* const x = context.data<const T>(a.x) + row * width;
        const T* const out = context.data<const T>(a.out) + row * hidden;
        const T* const d_z = context.data<const T>(a.d_z) + row * width;
        const T* const previous =
            a.previous.absent() ? nullptr : context.data<const T>(a.previous) + row * width;
        const float* const post = context.data<const float>(a.mixing) + row * a.shape.mixing();
        const float* const comb = post + n;
        float* const d_post = context.data<float>(a.d_mixing) + row * a.shape.mixing();
        float* const d_comb = d_post + n;
        for (std::int64_t k = 0; k < n; ++k) {
          const T* const d = d_z + k * hidden;
          d_post[k] = sum_terms(hidden, [&](std::int64_t i) { return to_float(d[i]) * to_float(out[i]); });
          for (std::int64_t j = 0; j < n; ++j) {
            const T* const of = x + j * hidden;
            d_comb[j * n + k] =
                sum_terms(hidden, [&](std::int64_t i) { return to_float(d[i]) * to_float(of[i]); });
          }
        }
        T* const d_out = context.data<T>(a.d_out) + row * hidden;
        T* const d_x = context.data<T>(a.d_x) + row * width;
        PRIMUS_SIMD()
        for (std::int64_t i = 0; i < hidden; ++i) {
          float sum = 0;
          for (std::int64_t k = 0; k < n; ++k)
            sum = multiply_add(post[k], to_float(d_z[k * hidden + i]), sum);
          d_out[i] = from_float<T>(sum);
        }
        for (std::int64_t j = 0; j < n; ++j) {
          PRIMUS_SIMD()
          for (std::int64_t i = 0; i < hidden; ++i) {
            float sum = previous ? to_float(previous[j * hidden + i]) : 0.0F;
            for (std::int64_t k = 0; k < n; ++k)
              sum = multiply_add(comb[j * n + k], to_float(d_z[k * hidden + i]), sum);
            d_x[j * hidden + i] = from_float<T>(sum);
          }
        }
      }
    });
  });
}

}  // namespace

void register_hyper_connection(KernelTable& table) {
  table.add<HyperRead, CpuContext, &read>();
  table.add<HyperReadBackward, CpuContext, &read_backward>();
  table.add<HyperWrite, CpuContext, &write>();
  table.add<HyperWriteBackward, CpuContext, &write_backward>();
}

}  // namespace primus::turbo::PRIMUS_CPU_ISA
