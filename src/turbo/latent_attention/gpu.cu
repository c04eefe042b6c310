#include "turbo/gpu/gemm_tile.h"
#include "turbo/gpu/reduce.h"
#include "turbo/gpu/register.h"
#include "turbo/latent_attention/latent_attention.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

// Where keys and values begin in a row of queries, keys and values.
struct Columns {
  std::int64_t k, v, width;
  explicit Columns(const LatentShape& s)
      : k(s.heads * s.key_dim()), v(2 * k), width(v + s.heads * s.value_dim) {}
};

template <class T>
struct JoinBody {
  LatentShape s;
  Columns at;
  const T *q, *kv, *rope_key;
  T* qkv;

  PRIMUS_DEVICE T source(std::int64_t row, std::int64_t column) const {
    if (column < at.k) return q[row * at.k + column];
    const bool key = column < at.v;
    const std::int64_t dim = key ? s.nope_dim + s.rope_dim : s.value_dim;
    const std::int64_t head = (column - (key ? at.k : at.v)) / dim, i = (column - (key ? at.k : at.v)) % dim;
    if (key && i >= s.nope_dim) return rope_key[row * s.rope_dim + i - s.nope_dim];
    const std::int64_t up_dim = s.nope_dim + s.value_dim;
    return kv[(row * s.heads + head) * up_dim + (key ? 0 : s.nope_dim) + i];
  }
  PRIMUS_DEVICE void operator()(std::int64_t row, std::int64_t column) const {
    qkv[row * at.width + column] = source(row, column);
  }
};

void latent_qkv(Context& context, const LatentQkv& a) {
  with_float_type(a.q.dtype, [&](auto tag) {
    using T = decltype(tag);
    const Columns at(a.shape);
    for_each_of_rows<1>(context, a.q.rows(), at.width,
                        JoinBody<T>{a.shape, at, context.data<T>(a.q), context.data<T>(a.kv),
                                    context.data<T>(a.rope_key), context.data<T>(a.qkv)});
  });
}

// A thread for every element of d_q, then of d_kv, then of d_rope_key.
template <class T>
struct SplitBody {
  LatentShape s;
  Columns at;
  const T* d_qkv;
  T *d_q, *d_kv, *d_rope_key;

  PRIMUS_DEVICE void operator()(std::int64_t row, std::int64_t column) const {
    const T* from = d_qkv + row * at.width;
    const std::int64_t key_dim = s.nope_dim + s.rope_dim, up_dim = s.nope_dim + s.value_dim;
    if (column < at.k) {
      d_q[row * at.k + column] = from[column];
      return;
    }
    column -= at.k;
    if (column < s.heads * up_dim) {
      const std::int64_t head = column / up_dim, i = column % up_dim;
      d_kv[row * s.heads * up_dim + column] =
          i < s.nope_dim ? from[at.k + head * key_dim + i] : from[at.v + head * s.value_dim + i - s.nope_dim];
      return;
    }
    column -= s.heads * up_dim;
    float sum = 0;
    for (std::int64_t head = 0; head < s.heads; ++head) {
      sum += to_float(from[at.k + head * key_dim + s.nope_dim + column]);
    }
    d_rope_key[row * s.rope_dim + column] = from_float<T>(sum);
  }
};

void latent_qkv_backward(Context& context, const LatentQkvBackward& a) {
  with_float_type(a.d_qkv.dtype, [&](auto tag) {
    using T = decltype(tag);
    const LatentShape& s = a.shape;
    const Columns at(s);
    for_each_of_rows<1>(context, a.d_qkv.rows(), at.k + s.heads * s.up_dim() + s.rope_dim,
                        SplitBody<T>{s, at, context.data<T>(a.d_qkv), context.data<T>(a.d_q),
                                     context.data<T>(a.d_kv), context.data<T>(a.d_rope_key)});
  });
}

template <class T>
struct CopyRopePart {
  LatentShape s;
  const T* x;
  T* out;
  // Heads of all tokens are equally far apart.
  PRIMUS_DEVICE void operator()(std::int64_t head, std::int64_t i) const {
    out[head * (s.rank + s.rope_dim) + s.rank + i] = x[head * (s.nope_dim + s.rope_dim) + s.nope_dim + i];
  }
};

void latent_project(Context& context, const LatentProject& a) {
  with_float_type(a.x.dtype, [&](auto tag) {
    using T = decltype(tag);
    const LatentShape& s = a.shape;
    const bool queries = a.side == LatentProject::Side::kQueries;
    TileProduct<T, T, T> product{};
    product.m = a.x.rows();
    product.n = queries ? s.rank : s.value_dim;
    product.k = queries ? s.nope_dim : s.rank;
    product.a = context.data<T>(a.x);
    product.b = context.data<T>(a.up) + (queries ? 0 : s.nope_dim * s.rank);
    product.c = context.data<T>(a.out);
    product.a_row = a.x.cols();
    product.a_col = 1;
    // B(n, k) is up[k, n] for queries and up[n, k] for values.
    product.b_row = queries ? 1 : s.rank;
    product.b_col = queries ? s.rank : 1;
    product.c_row = a.out.cols();
    product.batches = s.heads;
    product.a_batch = queries ? s.key_dim() : s.rank;
    product.b_batch = s.up_dim() * s.rank;
    product.c_batch = queries ? s.rank + s.rope_dim : s.value_dim;
    run_product(context, product);
    if (!queries) return;
    for_each_of_rows<1>(context, a.x.rows() * s.heads, s.rope_dim,
                        CopyRopePart<T>{s, context.data<T>(a.x), context.data<T>(a.out)});
  });
}

}  // namespace

void register_latent_attention(KernelTable& table) {
  table.add<LatentQkv, Context, &latent_qkv>();
  table.add<LatentQkvBackward, Context, &latent_qkv_backward>();
  table.add<LatentProject, Context, &latent_project>();
}

}  // namespace primus::turbo::PRIMUS_GPU
