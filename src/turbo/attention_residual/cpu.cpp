#include "turbo/attention_residual/attention_residual.h"
#include "turbo/attention_residual/formula.h"
#include "turbo/cpu/reduce.h"
#include "turbo/cpu/register.h"
#include "turbo/cpu/simd.h"

namespace primus::turbo::PRIMUS_CPU_ISA {
namespace {

// The candidates of one token.
template <class T>
struct Candidates {
  const T *checkpoints, *stream;
  const float *norm, *proj;
  std::int64_t count, hidden;
  float eps;

  PRIMUS_INLINE const T* of(std::int64_t j) const {
    return j + 1 < count ? checkpoints + j * hidden : stream;
  }
};

template <class T>
PRIMUS_INLINE Candidates<T> candidates(CpuContext& context, const ResidualCandidates& of, std::int64_t row) {
  const std::int64_t hidden = of.stream.cols(), count = of.count();
  return {context.data<const T>(of.checkpoints) + row * (count - 1) * hidden,
          context.data<const T>(of.stream) + row * hidden,
          context.data<const float>(of.norm),
          context.data<const float>(of.proj),
          count,
          hidden,
          of.eps};
}

template <class T>
PRIMUS_INLINE void mix(const Candidates<T>& c, ResidualMixture& m) {
  for (std::int64_t j = 0; j < c.count; ++j) {
    const T* v = c.of(j);
    const float squares =
        sum_terms(c.hidden, [&](std::int64_t i) { return to_float(v[i]) * to_float(v[i]); });
    const float dot =
        sum_terms(c.hidden, [&](std::int64_t i) { return to_float(v[i]) * (c.norm[i] * c.proj[i]); });
    m.set_score(j, squares, dot, c.hidden, c.eps);
  }
  m.mix(c.count);
}

void forward(CpuContext& context, const AttentionResidual& a) {
  with_float_type(a.out.dtype, [&](auto tag) {
    using T = decltype(tag);
    const std::int64_t hidden = a.out.cols(), count = a.of.count();
    parallel_ranges(context, a.out.rows(), (3 * count + 1) * hidden * sizeof(T),
                    [&](std::int64_t begin, std::int64_t end) {
                      for (std::int64_t row = begin; row < end; ++row) {
                        const Candidates<T> c = candidates<T>(context, a.of, row);
                        ResidualMixture m;
                        mix(c, m);
                        T* out = context.data<T>(a.out) + row * hidden;
                        PRIMUS_SIMD()
                        for (std::int64_t i = 0; i < hidden; ++i) {
                          float sum = 0;
                          for (std::int64_t j = 0; j < count; ++j)
                            sum = multiply_add(m.share[j], to_float(c.of(j)[i]), sum);
                          out[i] = from_float<T>(sum);
                        }
                      }
                    });
  });
}

template <class T>
PRIMUS_INLINE void store_gradient(const Candidates<T>& c, std::int64_t j, const CandidateGradient gradient,
                                  const T* d_out, const T* previous, T* to) {
  const T* v = c.of(j);
  const auto part = [&](std::int64_t i) {
    return gradient(to_float(d_out[i]), c.norm[i], c.proj[i], to_float(v[i]));
  };
  if (previous) {
    PRIMUS_SIMD()
    for (std::int64_t i = 0; i < c.hidden; ++i) to[i] = from_float<T>(to_float(previous[i]) + part(i));
  } else {
    PRIMUS_SIMD()
    for (std::int64_t i = 0; i < c.hidden; ++i) to[i] = from_float<T>(part(i));
  }
}

void backward(CpuContext& context, const AttentionResidualBackward& a) {
  with_float_type(a.d_out.dtype, [&](auto tag) {
    using T = decltype(tag);
    const std::int64_t hidden = a.d_out.cols(), count = a.of.count();
    const T* before =
        a.previous_checkpoints.absent() ? nullptr : context.data<const T>(a.previous_checkpoints);
    const T* before_stream = a.previous_stream.absent() ? nullptr : context.data<const T>(a.previous_stream);
    parallel_ranges(
        context, a.d_out.rows(), 6 * count * hidden * sizeof(T), [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t row = begin; row < end; ++row) {
            const Candidates<T> c = candidates<T>(context, a.of, row);
            const T* d_out = context.data<const T>(a.d_out) + row * hidden;
            ResidualMixture m;
            mix(c, m);
            float along[ResidualCandidates::kMax], mean = 0;
            for (std::int64_t j = 0; j < count; ++j) {
              const T* v = c.of(j);
              along[j] =
                  sum_terms(hidden, [&](std::int64_t i) { return to_float(v[i]) * to_float(d_out[i]); });
              mean += m.share[j] * along[j];
            }
            float* factors = context.data<float>(a.factors) + row * count;
            for (std::int64_t j = 0; j < count; ++j) {
              const CandidateGradient gradient(m, j, along[j], mean, hidden);
              factors[j] = gradient.of_w;
              const bool checkpoint = j + 1 < count;
              const std::int64_t at = checkpoint ? (row * (count - 1) + j) * hidden : row * hidden;
              const T* previous = checkpoint ? before : before_stream;
              store_gradient(c, j, gradient, d_out, previous ? previous + at : nullptr,
                             context.data<T>(checkpoint ? a.d_checkpoints : a.d_stream) + at);
            }
          }
        });
  });
}

std::int64_t weight_workspace(CpuContext&, const AttentionResidualBackwardWeight& a) {
  return row_sum_workspace(a.of.stream.rows(), a.of.stream.cols());
}

void backward_weight(CpuContext& context, const AttentionResidualBackwardWeight& a) {
  with_float_type(a.of.stream.dtype, [&](auto tag) {
    using T = decltype(tag);
    const std::int64_t hidden = a.of.stream.cols(), count = a.of.count();
    const float* factors = context.data<const float>(a.factors);
    row_sum(context, a.of.stream.rows(), hidden, context.data<float>(a.workspace), a.d_norm, false,
            [&](float* line, std::int64_t row) {
              const Candidates<T> c = candidates<T>(context, a.of, row);
              for (std::int64_t j = 0; j < count; ++j) {
                const T* v = c.of(j);
                const float factor = factors[row * count + j];
                PRIMUS_SIMD()
                for (std::int64_t i = 0; i < hidden; ++i) line[i] += factor * to_float(v[i]);
              }
            });
    const float *norm = context.data<const float>(a.of.norm), *proj = context.data<const float>(a.of.proj);
    float *d_norm = context.data<float>(a.d_norm), *d_proj = context.data<float>(a.d_proj);
    for (std::int64_t i = 0; i < hidden; ++i) {
      d_proj[i] = d_norm[i] * norm[i];
      d_norm[i] *= proj[i];
    }
  });
}

}  // namespace

void register_attention_residual(KernelTable& table) {
  table.add<AttentionResidual, CpuContext, &forward>();
  table.add<AttentionResidualBackward, CpuContext, &backward>();
  table.add<AttentionResidualBackwardWeight, CpuContext, &backward_weight, &weight_workspace>();
}

}  // namespace primus::turbo::PRIMUS_CPU_ISA
