// There is one block per token. One thread of the block computes the factors in a few hundred operations.
// Meanwhile, other blocks read and write streams.
#include "turbo/gpu/reduce.h"
#include "turbo/gpu/register.h"
#include "turbo/hyper_connection/formula.h"
#include "turbo/hyper_connection/hyper_connection.h"
#include "turbo/rms_norm/formula.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

constexpr int kMax = static_cast<int>(HyperFactors::kMax);
constexpr int kBlock = 256;

struct Factors : HyperFactors {
  float d_pre[kMax], d_post[kMax], d_comb[kMax * kMax];
  float of_x;
};

// The operands of HyperArguments for all tokens.
struct Affine {
  HyperShape s;
  const float *products, *base, *scale;

  PRIMUS_DEVICE HyperArguments of(std::int64_t token, float rstd) const {
    return {products + token * s.products(), base, scale, rstd};
  }
};

template <class T>
struct Read {
  static constexpr int kThreads = kBlock;
  Affine affine;
  const T* x;
  T* y;
  float *mixing, *rstd;  // mixing or null
  std::int64_t hidden;

  PRIMUS_DEVICE void operator()() const {
    Factors& f = shared<Factors>();
    const std::int64_t token = block(), n = affine.s.streams, width = n * hidden;
    const T* row = x + token * width;
    float squares = 0;
    for (std::int64_t i = thread(); i < width; i += kThreads)
      squares = multiply_add(to_float(row[i]), to_float(row[i]), squares);
    squares = block_reduce<kThreads>(squares);
    if (thread() == 0) {
      const float r = inverse_rms(squares, width, affine.s.norm_eps);
      rstd[token] = r;
      f.set(affine.s, affine.of(token, r));
    }
    barrier();
    for (std::int64_t i = thread(); i < hidden; i += kThreads) {
      float sum = 0;
      for (std::int64_t j = 0; j < n; ++j) sum = multiply_add(f.pre[j], to_float(row[j * hidden + i]), sum);
      y[token * hidden + i] = from_float<T>(sum);
    }
    if (!mixing) return;
    float* const to = mixing + token * affine.s.mixing();
    for (std::int64_t i = thread(); i < affine.s.mixing(); i += kThreads)
      to[i] = i < n ? f.post[i] : f.comb[i - n];
  }
};

template <class T>
struct ReadBackward {
  static constexpr int kThreads = kBlock;
  Affine affine;
  const T *x, *d_y, *previous;   // previous or null
  const float *rstd, *d_mixing;  // d_mixing may be null
  T* d_x;
  float *d_products, *d_base, *d_scale;
  std::int64_t hidden;

  PRIMUS_DEVICE void operator()() const {
    Factors& f = shared<Factors>();
    const std::int64_t token = block(), n = affine.s.streams, width = n * hidden;
    const T *row = x + token * width, *d = d_y + token * hidden;
    if (thread() == 0) f.set(affine.s, affine.of(token, rstd[token]));
    for (std::int64_t j = 0; j < n; ++j) {
      float sum = 0;
      for (std::int64_t i = thread(); i < hidden; i += kThreads)
        sum = multiply_add(to_float(d[i]), to_float(row[j * hidden + i]), sum);
      sum = block_reduce<kThreads>(sum);
      if (thread() == 0) f.d_pre[j] = sum;
    }
    if (thread() == 0) {
      const float* of = d_mixing ? d_mixing + token * affine.s.mixing() : nullptr;
      for (std::int64_t j = 0; j < n; ++j) f.d_post[j] = of ? of[j] : 0.0F;
      for (std::int64_t j = 0; j < n * n; ++j) f.d_comb[j] = of ? of[n + j] : 0.0F;
      float* const d_argument = d_base + token * affine.s.products();
      f.argument_gradients(affine.s, f.d_pre, f.d_post, f.d_comb, d_argument);
      f.of_x = affine.of(token, rstd[token])
                   .gradients(affine.s, d_argument, width, d_scale + token * affine.s.scales(),
                              d_products + token * affine.s.products());
    }
    barrier();
    for (std::int64_t j = 0; j < n; ++j) {
      for (std::int64_t i = thread(); i < hidden; i += kThreads) {
        const std::int64_t at = j * hidden + i;
        const float sum = multiply_add(f.pre[j], to_float(d[i]), f.of_x * to_float(row[at]));
        d_x[token * width + at] =
            from_float<T>(previous ? to_float(previous[token * width + at]) + sum : sum);
      }
    }
  }
};

template <class T>
struct Write {
  static constexpr int kThreads = kBlock;
  HyperShape s;
  const T *x, *out;
  const float* mixing;
  T* z;
  std::int64_t hidden;

  PRIMUS_DEVICE void operator()() const {
    const std::int64_t token = block(), n = s.streams, width = n * hidden;
    const T* row = x + token * width;
    const float *post = mixing + token * s.mixing(), *comb = post + n;
    for (std::int64_t i = thread(); i < hidden; i += kThreads) {
      float of[kMax];
      PRIMUS_UNROLL
      for (int j = 0; j < kMax; ++j) of[j] = j < n ? to_float(row[j * hidden + i]) : 0.0F;
      const float given = to_float(out[token * hidden + i]);
      for (std::int64_t k = 0; k < n; ++k) {
        float sum = post[k] * given;
        PRIMUS_UNROLL
        for (int j = 0; j < kMax; ++j) {
          if (j < n) sum = multiply_add(comb[j * n + k], of[j], sum);
        }
        z[token * width + k * hidden + i] = from_float<T>(sum);
      }
    }
  }
};

template <class T>
struct WriteBackward {
  static constexpr int kThreads = kBlock;
  HyperShape s;
  const T *x, *out, *d_z, *previous;  // previous or null
  const float* mixing;
  T *d_x, *d_out;
  float* d_mixing;
  std::int64_t hidden;

  PRIMUS_DEVICE void operator()() const {
    const std::int64_t token = block(), n = s.streams, width = n * hidden;
    const T *row = x + token * width, *d = d_z + token * width, *given = out + token * hidden;
    const float *post = mixing + token * s.mixing(), *comb = post + n;
    float* const d_post = d_mixing + token * s.mixing();
    for (std::int64_t k = 0; k < n; ++k) {
      float of_post = 0, of_comb[kMax] = {};
      for (std::int64_t i = thread(); i < hidden; i += kThreads) {
        const float d_k = to_float(d[k * hidden + i]);
        of_post = multiply_add(d_k, to_float(given[i]), of_post);
        PRIMUS_UNROLL
        for (int j = 0; j < kMax; ++j) {
          if (j < n) of_comb[j] = multiply_add(d_k, to_float(row[j * hidden + i]), of_comb[j]);
        }
      }
      of_post = block_reduce<kThreads>(of_post);
      if (thread() == 0) d_post[k] = of_post;
      PRIMUS_UNROLL
      for (int j = 0; j < kMax; ++j) {
        if (j >= n) continue;  // all threads take the same branch
        const float sum = block_reduce<kThreads>(of_comb[j]);
        if (thread() == 0) d_post[n + j * n + k] = sum;
      }
    }
    for (std::int64_t i = thread(); i < hidden; i += kThreads) {
      float of[kMax], sum = 0;
      PRIMUS_UNROLL
      for (int k = 0; k < kMax; ++k) {
        of[k] = k < n ? to_float(d[k * hidden + i]) : 0.0F;
        if (k < n) sum = multiply_add(post[k], of[k], sum);
      }
      d_out[token * hidden + i] = from_float<T>(sum);
      for (std::int64_t j = 0; j < n; ++j) {
        const std::int64_t at = token * width + j * hidden + i;
        float of_x = previous ? to_float(previous[at]) : 0.0F;
        PRIMUS_UNROLL
        for (int k = 0; k < kMax; ++k) {
          if (k < n) of_x = multiply_add(comb[j * n + k], of[k], of_x);
        }
        d_x[at] = from_float<T>(of_x);
      }
    }
  }
};

template <class Call>
Affine affine_of(Context& context, const Call& a) {
  return {a.shape, context.data<float>(a.products), context.data<float>(a.base),
          context.data<float>(a.scale)};
}

void read(Context& context, const HyperRead& a) {
  with_float_type(a.x.dtype, [&](auto tag) {
    using T = decltype(tag);
    launch(context, a.x.rows(),
           Read<T>{affine_of(context, a), context.data<T>(a.x), context.data<T>(a.y),
                   optional<float>(context, a.mixing), context.data<float>(a.rstd), a.y.cols()});
  });
}

void read_backward(Context& context, const HyperReadBackward& a) {
  with_float_type(a.x.dtype, [&](auto tag) {
    using T = decltype(tag);
    launch(context, a.x.rows(),
           ReadBackward<T>{affine_of(context, a), context.data<T>(a.x), context.data<T>(a.d_y),
                           optional<T>(context, a.previous), context.data<float>(a.rstd),
                           optional<float>(context, a.d_mixing), context.data<T>(a.d_x),
                           context.data<float>(a.d_products), context.data<float>(a.d_base),
                           context.data<float>(a.d_scale), a.d_y.cols()});
  });
}

void write(Context& context, const HyperWrite& a) {
  with_float_type(a.x.dtype, [&](auto tag) {
    using T = decltype(tag);
    launch(context, a.x.rows(),
           Write<T>{a.shape, context.data<T>(a.x), context.data<T>(a.out), context.data<float>(a.mixing),
                    context.data<T>(a.z), a.out.cols()});
  });
}

void write_backward(Context& context, const HyperWriteBackward& a) {
  with_float_type(a.x.dtype, [&](auto tag) {
    using T = decltype(tag);
    launch(context, a.x.rows(),
           WriteBackward<T>{a.shape, context.data<T>(a.x), context.data<T>(a.out), context.data<T>(a.d_z),
                            optional<T>(context, a.previous), context.data<float>(a.mixing),
                            context.data<T>(a.d_x), context.data<T>(a.d_out), context.data<float>(a.d_mixing),
                            a.out.cols()});
  });
}

}  // namespace

void register_hyper_connection(KernelTable& table) {
  table.add<HyperRead, Context, &read>();
  table.add<HyperReadBackward, Context, &read_backward>();
  table.add<HyperWrite, Context, &write>();
  table.add<HyperWriteBackward, Context, &write_backward>();
}

}  // namespace primus::turbo::PRIMUS_GPU
