#include <algorithm>

#include "turbo/cpu/master_weights.h"
#include "turbo/cpu/register.h"
#include "turbo/cpu/simd.h"
#include "turbo/muon/formula.h"
#include "turbo/muon/muon.h"

namespace primus::turbo::PRIMUS_CPU_ISA {
namespace {

void muon_momentum(CpuContext& context, const MuonMomentum& a) {
  const MuonMoment moment{context.data<float>(a.grad_scale)[0], a.beta, a.nesterov};
  float* momentum = context.data<float>(a.momentum);
  float* direction = context.data<float>(a.direction);
  with_float_type(a.grad.dtype, [&](auto tag) {
    const auto* grad = context.data<decltype(tag)>(a.grad);
    parallel_ranges(context, a.grad.elements(), 4 * sizeof(float), [&](std::int64_t begin, std::int64_t end) {
      if (moment.scale < 0) {
        std::fill(direction + begin, direction + end, 0.0F);
        return;
      }
      PRIMUS_SIMD()
      for (std::int64_t i = begin; i < end; ++i) {
        float m = momentum[i];
        direction[i] = moment(to_float(grad[i]), m);
        momentum[i] = m;
      }
    });
  });
}

void muon_normalize(CpuContext& context, const MuonNormalize& a) {
  const float factor = inverse_norm(*context.data<double>(a.sum_of_squares));
  const float* x = context.data<float>(a.x);
  with_float_type(a.out.dtype, [&](auto tag) {
    using T = decltype(tag);
    T* out = context.data<T>(a.out);
    parallel_ranges(context, a.x.elements(), sizeof(float) + sizeof(T),
                    [&](std::int64_t begin, std::int64_t end) {
                      PRIMUS_SIMD()
                      for (std::int64_t i = begin; i < end; ++i) out[i] = from_float<T>(x[i] * factor);
                    });
  });
}

void muon_polynomial(CpuContext& context, const MuonPolynomial& p) {
  const float* gram = context.data<float>(p.gram);
  const float* square = context.data<float>(p.square);
  const float a = p.a, b = p.b, c = p.c;
  const std::int64_t k = p.gram.cols();
  with_float_type(p.out.dtype, [&](auto tag) {
    using T = decltype(tag);
    T* out = context.data<T>(p.out);
    parallel_ranges(context, k, k * 12, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const std::int64_t first = row * k;
        PRIMUS_SIMD()
        for (std::int64_t i = first; i < first + k; ++i)
          out[i] = from_float<T>(polynomial(b, gram[i], c, square[i]));
        const std::int64_t d = first + row;
        out[d] = from_float<T>(polynomial(b, gram[d], c, square[d]) + a);
      }
    });
  });
}

template <class T, class Masters>
void update(const CpuContext& context, const MuonUpdate& a, const Masters masters, std::int64_t begin,
            std::int64_t end) {
  const MuonStep step(context.data<double>(a.scalars), a.scale, a.weight_decay_factor);
  const T* direction = context.data<T>(a.direction);
  PRIMUS_SIMD()
  for (std::int64_t i = begin; i < end; ++i) {
    masters.put(i, step(masters.get(i), to_float(direction[i])));
  }
}

void muon_update(CpuContext& context, const MuonUpdate& a) {
  constexpr std::int64_t kBytesPerElement = 14;
  if (context.data<float>(a.grad_scale)[0] < 0) return;
  with_float_type(a.direction.dtype, [&](auto tag) {
    using T = decltype(tag);
    parallel_ranges(
        context, a.direction.elements(), kBytesPerElement, [&](std::int64_t begin, std::int64_t end) {
          with_masters(context, a, [&](auto masters) { update<T>(context, a, masters, begin, end); });
        });
  });
}

}  // namespace

void register_muon(KernelTable& table) {
  table.add<MuonMomentum, CpuContext, &muon_momentum>();
  table.add<MuonNormalize, CpuContext, &muon_normalize>();
  table.add<MuonPolynomial, CpuContext, &muon_polynomial>();
  table.add<MuonUpdate, CpuContext, &muon_update>();
}

}  // namespace primus::turbo::PRIMUS_CPU_ISA
