// A block processes one token. The block reads the token's candidates twice; the second time, the candidates
// are in the cache.
#include "turbo/attention_residual/attention_residual.h"
#include "turbo/attention_residual/formula.h"
#include "turbo/gpu/loops.h"
#include "turbo/gpu/reduce.h"
#include "turbo/gpu/register.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

constexpr int kBlock = 256;

struct Mixture : ResidualMixture {
  float along[ResidualCandidates::kMax];  // candidate · d_out
};

template <class T>
struct Candidates {
  const T *checkpoints, *stream;
  const float *norm, *proj;
  std::int64_t count, hidden;
  float eps;

  PRIMUS_DEVICE const T* of(std::int64_t row, std::int64_t j) const {
    return j + 1 < count ? checkpoints + (row * (count - 1) + j) * hidden : stream + row * hidden;
  }

  // All threads of a block must call this function.
  PRIMUS_DEVICE void mix(std::int64_t row, const T* d_out, Mixture& m) const {
    for (std::int64_t j = 0; j < count; ++j) {
      const T* v = of(row, j);
      float squares = 0, dot = 0, along = 0;
      for (std::int64_t i = thread(); i < hidden; i += kBlock) {
        const float x = to_float(v[i]);
        squares = multiply_add(x, x, squares);
        dot = multiply_add(x, norm[i] * proj[i], dot);
        if (d_out) along = multiply_add(x, to_float(d_out[i]), along);
      }
      squares = block_reduce<kBlock>(squares);
      dot = block_reduce<kBlock>(dot);
      if (d_out) along = block_reduce<kBlock>(along);
      if (thread() != 0) continue;
      m.set_score(j, squares, dot, hidden, eps);
      m.along[j] = along;
    }
    if (thread() == 0) m.mix(count);
    barrier();
  }
};

template <class T>
Candidates<T> candidates(Context& context, const ResidualCandidates& of) {
  return {context.data<T>(of.checkpoints),
          context.data<T>(of.stream),
          context.data<float>(of.norm),
          context.data<float>(of.proj),
          of.count(),
          of.stream.cols(),
          of.eps};
}

template <class T>
struct Forward {
  static constexpr int kThreads = kBlock;
  Candidates<T> c;
  T* out;

  PRIMUS_DEVICE void operator()() const {
    Mixture& m = shared<Mixture>();
    c.mix(block(), nullptr, m);
    for (std::int64_t i = thread(); i < c.hidden; i += kThreads) {
      float sum = 0;
      for (std::int64_t j = 0; j < c.count; ++j)
        sum = multiply_add(m.share[j], to_float(c.of(block(), j)[i]), sum);
      out[block() * c.hidden + i] = from_float<T>(sum);
    }
  }
};

// d v_j = share_j d_out + d_score_j scale_j (w - score_j scale_j / hidden · v_j).
template <class T>
struct Backward {
  static constexpr int kThreads = kBlock;
  Candidates<T> c;
  const T *d_out, *previous_checkpoints, *previous_stream;
  T *d_checkpoints, *d_stream;
  float* factors;

  PRIMUS_DEVICE void operator()() const {
    Mixture& m = shared<Mixture>();
    const std::int64_t row = block();
    const T* d = d_out + row * c.hidden;
    c.mix(row, d, m);
    float mean = 0;
    for (std::int64_t j = 0; j < c.count; ++j) mean += m.share[j] * m.along[j];
    for (std::int64_t j = 0; j < c.count; ++j) {
      const CandidateGradient gradient(m, j, m.along[j], mean, c.hidden);
      if (thread() == 0) factors[row * c.count + j] = gradient.of_w;
      const bool checkpoint = j + 1 < c.count;
      const std::int64_t at = checkpoint ? (row * (c.count - 1) + j) * c.hidden : row * c.hidden;
      const T *v = c.of(row, j), *previous = checkpoint ? previous_checkpoints : previous_stream;
      T* to = checkpoint ? d_checkpoints : d_stream;
      for (std::int64_t i = thread(); i < c.hidden; i += kThreads) {
        const float part = gradient(to_float(d[i]), c.norm[i], c.proj[i], to_float(v[i]));
        to[at + i] = from_float<T>(previous ? to_float(previous[at + i]) + part : part);
      }
    }
  }
};

template <class T>
struct WeightTerm {
  static constexpr int kCount = 1;
  Candidates<T> c;
  const float* factors;

  PRIMUS_DEVICE void operator()(std::int64_t row, std::int64_t i, float (&value)[kCount]) const {
    value[0] = 0;
    for (std::int64_t j = 0; j < c.count; ++j)
      value[0] = multiply_add(factors[row * c.count + j], to_float(c.of(row, j)[i]), value[0]);
  }
};

// On input, d_norm holds the gradient of the product norm · proj. Computes d_norm and d_proj from this
// gradient.
struct Parts {
  const float *norm, *proj;
  float *d_norm, *d_proj;
  PRIMUS_DEVICE void operator()(std::int64_t i) const {
    const float d = d_norm[i];
    d_norm[i] = d * proj[i];
    d_proj[i] = d * norm[i];
  }
};

void forward(Context& context, const AttentionResidual& a) {
  with_float_type(a.out.dtype, [&](auto tag) {
    using T = decltype(tag);
    launch(context, a.out.rows(), Forward<T>{candidates<T>(context, a.of), context.data<T>(a.out)});
  });
}

void backward(Context& context, const AttentionResidualBackward& a) {
  with_float_type(a.d_out.dtype, [&](auto tag) {
    using T = decltype(tag);
    launch(context, a.d_out.rows(),
           Backward<T>{candidates<T>(context, a.of), context.data<T>(a.d_out),
                       optional<T>(context, a.previous_checkpoints), optional<T>(context, a.previous_stream),
                       context.data<T>(a.d_checkpoints), context.data<T>(a.d_stream),
                       context.data<float>(a.factors)});
  });
}

std::int64_t weight_workspace(Context&, const AttentionResidualBackwardWeight& a) {
  return row_sum_workspace(a.of.stream.rows(), a.of.stream.cols());
}

void backward_weight(Context& context, const AttentionResidualBackwardWeight& a) {
  with_float_type(a.of.stream.dtype, [&](auto tag) {
    using T = decltype(tag);
    row_sum(context, a.of.stream.rows(), a.of.stream.cols(), context.data<float>(a.workspace), a.d_norm,
            false, WeightTerm<T>{candidates<T>(context, a.of), context.data<float>(a.factors)});
  });
  for_each(context, a.d_norm.elements(),
           Parts{context.data<float>(a.of.norm), context.data<float>(a.of.proj),
                 context.data<float>(a.d_norm), context.data<float>(a.d_proj)});
}

}  // namespace

void register_attention_residual(KernelTable& table) {
  table.add<AttentionResidual, Context, &forward>();
  table.add<AttentionResidualBackward, Context, &backward>();
  table.add<AttentionResidualBackwardWeight, Context, &backward_weight, &weight_workspace>();
}

}  // namespace primus::turbo::PRIMUS_GPU
