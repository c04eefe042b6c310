#include "turbo/gpu/loops.h"
#include "turbo/gpu/master_weights.h"
#include "turbo/gpu/register.h"
#include "turbo/muon/formula.h"
#include "turbo/muon/muon.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

template <class Gradient, int kCount>
struct MomentumBody {
  const Gradient* grad;
  const float* grad_scale;
  float *momentum, *direction;
  float beta;
  bool nesterov;

  PRIMUS_DEVICE void operator()(std::int64_t pack) const {
    const std::int64_t i = pack * kCount;
    const MuonMoment moment{grad_scale[0], beta, nesterov};
    float g[kCount] = {};
    if (moment.scale >= 0) {
      float m[kCount];
      load<kCount>(grad + i, g);
      load<kCount>(momentum + i, m);
      PRIMUS_UNROLL
      for (int k = 0; k < kCount; ++k) g[k] = moment(g[k], m[k]);
      store<kCount>(momentum + i, m);
    }
    store<kCount>(direction + i, g);
  }
};

void muon_momentum(Context& context, const MuonMomentum& a) {
  float *momentum = context.data<float>(a.momentum), *direction = context.data<float>(a.direction);
  const std::int64_t n = a.grad.elements();
  with_float_type(a.grad.dtype, [&](auto tag) {
    using Gradient = decltype(tag);
    const auto* grad = context.data<Gradient>(a.grad);
    with_vector<float>(rows_of_vectors<float>(n, grad, momentum, direction), [&](auto count) {
      for_each(context, n / count,
               MomentumBody<Gradient, count>{grad, context.data<float>(a.grad_scale), momentum, direction,
                                             a.beta, a.nesterov});
    });
  });
}

template <class T>
struct NormalizeBody {
  const float* x;
  const double* sum_of_squares;
  T* out;
  PRIMUS_DEVICE void operator()(std::int64_t i) const {
    out[i] = from_float<T>(x[i] * inverse_norm(*sum_of_squares));
  }
};

void muon_normalize(Context& context, const MuonNormalize& a) {
  with_float_type(a.out.dtype, [&](auto tag) {
    using T = decltype(tag);
    for_each(context, a.x.elements(),
             NormalizeBody<T>{context.data<float>(a.x), context.data<double>(a.sum_of_squares),
                              context.data<T>(a.out)});
  });
}

template <class T>
struct PolynomialBody {
  const float *gram, *square;
  T* out;
  std::int64_t k;
  float a, b, c;
  PRIMUS_DEVICE void operator()(std::int64_t i) const {
    const float value = polynomial(b, gram[i], c, square[i]);
    out[i] = from_float<T>(i / k == i % k ? value + a : value);
  }
};

void muon_polynomial(Context& context, const MuonPolynomial& p) {
  with_float_type(p.out.dtype, [&](auto tag) {
    using T = decltype(tag);
    for_each(context, p.gram.elements(),
             PolynomialBody<T>{context.data<float>(p.gram), context.data<float>(p.square),
                               context.data<T>(p.out), p.gram.cols(), p.a, p.b, p.c});
  });
}

template <class T, int kCount>
struct UpdateBody {
  Masters masters;
  const T* direction;
  const float* grad_scale;
  const double* scalars;
  float scale, decay_factor;

  PRIMUS_DEVICE void operator()(std::int64_t pack) const {
    const std::int64_t i = pack * kCount;
    if (grad_scale[0] < 0) return;
    const MuonStep step(scalars, scale, decay_factor);
    float p[kCount], d[kCount];
    masters.get(i, p);
    load<kCount>(direction + i, d);
    PRIMUS_UNROLL
    for (int k = 0; k < kCount; ++k) p[k] = step(p[k], d[k]);
    masters.put(i, p);
  }
};

void muon_update(Context& context, const MuonUpdate& a) {
  with_float_type(a.direction.dtype, [&](auto tag) {
    using T = decltype(tag);
    const Masters masters = masters_of(context, a);
    const T* direction = context.data<T>(a.direction);
    const std::int64_t n = a.direction.elements();
    with_vector<float>(masters_of_vectors(n, masters, direction), [&](auto count) {
      for_each(context, n / count,
               UpdateBody<T, count>{masters, direction, context.data<float>(a.grad_scale),
                                    context.data<double>(a.scalars), a.scale, a.weight_decay_factor});
    });
  });
}

}  // namespace

void register_muon(KernelTable& table) {
  table.add<MuonMomentum, Context, &muon_momentum>();
  table.add<MuonNormalize, Context, &muon_normalize>();
  table.add<MuonPolynomial, Context, &muon_polynomial>();
  table.add<MuonUpdate, Context, &muon_update>();
}

}  // namespace primus::turbo::PRIMUS_GPU
