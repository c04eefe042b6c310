#include "turbo/gpu/few_dots.h"
#include "turbo/gpu/gemm_tile.h"
#include "turbo/gpu/loops.h"
#include "turbo/gpu/register.h"
#include "turbo/latent_attention/latent_attention.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

// The first column of keys, and the first column of values, in a row of queries, keys and values.
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

// There is one thread per element. The elements of d_q come first, then the elements of d_kv, then the
// elements of d_rope_key.
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

// Copies the rotated part of each head's query from narrow to wide rows, or from wide to narrow rows. This
// part is not multiplied.
template <class T>
struct CopyRopePart {
  LatentShape s;
  const T* from;
  T* to;
  bool back;
  // Neighbouring heads have the same distance within a token and across tokens, so `head` is an index over
  // the heads of all tokens.
  PRIMUS_DEVICE void operator()(std::int64_t head, std::int64_t i) const {
    const std::int64_t wide = head * (s.rank + s.rope_dim) + s.rank + i,
                       narrow = head * (s.nope_dim + s.rope_dim) + s.nope_dim + i;
    to[back ? narrow : wide] = from[back ? wide : narrow];
  }
};

template <class T>
void copy_rope_part(Context& context, const LatentShape& s, const Tensor& from, const Tensor& to, bool back) {
  for_each_of_rows<1>(context, from.rows() * s.heads, s.rope_dim,
                      CopyRopePart<T>{s, context.data<T>(from), context.data<T>(to), back});
}

// The products for queries, or for values. Each head has three operands: narrow rows (the query's nope part,
// or the value), wide rows (as wide as latents), and the head's rows of the up-projection. For queries, x is
// narrow and out is wide; for values, x is wide and out is narrow.
struct Sides {
  Sides(const LatentShape& shape, LatentProject::Side side, const Tensor& x, const Tensor& out)
      : s(shape),
        queries(side == LatentProject::Side::kQueries),
        width(queries ? s.nope_dim : s.value_dim),
        narrow_tensor(queries ? x : out),
        wide_tensor(queries ? out : x),
        narrow{queries ? s.nope_dim + s.rope_dim : s.value_dim, narrow_tensor.cols()},
        wide{queries ? s.rank + s.rope_dim : s.rank, wide_tensor.cols()},
        weight{(s.nope_dim + s.value_dim) * s.rank, s.rank},
        first_weight(queries ? 0 : s.nope_dim * s.rank) {}

  struct Rows {
    std::int64_t step, stride;  // elements between consecutive heads, and between consecutive rows
  };

  // Computes the wide rows: the product of the narrow rows and the up-projection.
  template <class T>
  void to_wide(Context& context, const Tensor& up) const {
    run<T, T>(context, {wide_tensor.rows(), s.rank, width}, context.data<T>(narrow_tensor), narrow, false,
              context.data<T>(up) + first_weight, weight, true, context.data<T>(wide_tensor), wide, false);
  }
  template <class T>
  void to_narrow(Context& context, const Tensor& up) const {
    run<T, T>(context, {wide_tensor.rows(), width, s.rank}, context.data<T>(wide_tensor), wide, false,
              context.data<T>(up) + first_weight, weight, false, context.data<T>(narrow_tensor), narrow,
              false);
  }
  template <class T, class G>
  void to_weight(Context& context, const Tensor& d_up) const {
    run<T, G>(context, {width, s.rank, wide_tensor.rows()}, context.data<T>(narrow_tensor), narrow, true,
              context.data<T>(wide_tensor), wide, true, context.data<G>(d_up) + first_weight, weight, true);
  }

  struct Extents {
    std::int64_t m, n, k;
  };
  template <class T, class C>
  void run(Context& context, Extents extents, const T* a, const Rows& a_rows, bool a_transposed, const T* b,
           const Rows& b_rows, bool b_transposed, C* c, const Rows& c_rows, bool accumulate) const {
    TileProduct<T, T, C> product{};
    product.m = extents.m, product.n = extents.n, product.k = extents.k;
    product.a = a, product.b = b, product.c = c;
    product.a_row = a_transposed ? 1 : a_rows.stride, product.a_col = a_transposed ? a_rows.stride : 1;
    product.b_row = b_transposed ? 1 : b_rows.stride, product.b_col = b_transposed ? b_rows.stride : 1;
    product.c_row = c_rows.stride;
    product.batches = s.heads;
    product.a_batch = a_rows.step, product.b_batch = b_rows.step, product.c_batch = c_rows.step;
    product.accumulate = accumulate;
    run_product(context, product);
  }

  LatentShape s;
  bool queries;
  std::int64_t width;
  const Tensor &narrow_tensor, &wide_tensor;
  Rows narrow, wide, weight;
  std::int64_t first_weight;
};

// For few tokens: multiplies the nope part of each head's query by the head's rows of the up-projection, and
// copies the rotated part. A block computes kLines * kLine columns of one head of one token. A thread sums an
// eighth of the terms for kLine adjacent columns. Its first kEarly weights are loaded while the previous
// kernel still computes the query.
struct FewQueries {
  static constexpr int kGroups = 8, kLines = 16, kThreads = kGroups * kLines, kEarly = 16;
  static constexpr int kLine = Line<BFloat16>::kSize, kColumns = kLines * kLine;
  using StartsEarly = void;
  LatentShape s;
  const BFloat16 *q, *up;
  BFloat16* out;
  std::int64_t tiles;  // blocks per head

  PRIMUS_DEVICE void operator()() const {
    struct Parts {
      float of_group[kGroups][kLines][kLine + 1];
    };
    Parts& parts = shared<Parts>();
    let_next_begin();
    const std::int64_t item = block() / tiles, tile = block() % tiles;
    const int line = thread() % kLines, group = thread() / kLines;
    const std::int64_t column = tile * kColumns + line * kLine;
    const bool there = column < s.rank;
    const BFloat16* const weights = up + item % s.heads * (s.nope_dim + s.value_dim) * s.rank + column;
    Line<BFloat16> early[kEarly];
    PRIMUS_UNROLL
    for (int e = 0; e < kEarly; ++e) {
      const std::int64_t i = group + e * kGroups;
      early[e] = Line<BFloat16>::load(weights + i * s.rank, there && i < s.nope_dim);
    }
    wait_for_previous();
    const BFloat16* const own = q + item * (s.nope_dim + s.rope_dim);
    BFloat16* const of_out = out + item * (s.rank + s.rope_dim);
    if (tile == 0) {
      for (std::int64_t i = thread(); i < s.rope_dim; i += kThreads) of_out[s.rank + i] = own[s.nope_dim + i];
    }
    float sums[kLine] = {};
    const auto add = [&](std::int64_t i, const Line<BFloat16>& w) {
      const float x = to_float(own[i]);
      PRIMUS_UNROLL
      for (int n = 0; n < kLine; ++n) sums[n] = multiply_add(x, w.at(n), sums[n]);
    };
    PRIMUS_UNROLL
    for (int e = 0; e < kEarly; ++e) {
      const std::int64_t i = group + e * kGroups;
      if (i < s.nope_dim) add(i, early[e]);
    }
    for (std::int64_t i = group + kEarly * kGroups; i < s.nope_dim; i += kGroups)
      add(i, Line<BFloat16>::load(weights + i * s.rank, there));
    PRIMUS_UNROLL
    for (int n = 0; n < kLine; ++n) parts.of_group[group][line][n] = sums[n];
    barrier();
    if (group != 0 || !there) return;
    PRIMUS_UNROLL
    for (int n = 0; n < kLine; ++n) {
      PRIMUS_UNROLL
      for (int other = 1; other < kGroups; ++other) sums[n] += parts.of_group[other][line][n];
    }
    store<kLine>(of_out + column, sums);
  }
};

// Multiplies few tokens, as in decoding, where most of the time is that of reading the weights.
bool project_few(Context& context, const LatentProject& a) {
  constexpr std::int64_t kMaxTokens = 64;
  const LatentShape& s = a.shape;
  if (a.x.dtype != DType::kBF16 || a.x.rows() > kMaxTokens) return false;
  const auto* const x = context.data<BFloat16>(a.x);
  const auto* const up = context.data<BFloat16>(a.up);
  auto* const out = context.data<BFloat16>(a.out);
  if (a.side == LatentProject::Side::kValues) {
    if (!rows_of_vectors<BFloat16>(s.rank, x, up)) return false;
    few_dots<4>(context, x, up, out, a.x.rows() * s.heads, s.value_dim, s.rank,
                MatrixOfHead{s.heads, s.nope_dim + s.value_dim, s.nope_dim});
    return true;
  }
  if (!rows_of_vectors<BFloat16>(s.rank, up, out) || s.rope_dim % kVector<BFloat16> != 0) return false;
  const std::int64_t tiles = blocks_for(s.rank, FewQueries::kColumns);
  launch(context, a.x.rows() * s.heads * tiles, FewQueries{s, x, up, out, tiles});
  return true;
}

void latent_project(Context& context, const LatentProject& a) {
  if (project_few(context, a)) return;
  with_float_type(a.x.dtype, [&](auto tag) {
    using T = decltype(tag);
    const Sides sides(a.shape, a.side, a.x, a.out);
    if (!sides.queries) return sides.to_narrow<T>(context, a.up);
    sides.to_wide<T>(context, a.up);
    copy_rope_part<T>(context, a.shape, a.x, a.out, false);
  });
}

void backward_input(Context& context, const LatentProjectBackwardInput& a) {
  with_float_type(a.d_x.dtype, [&](auto tag) {
    using T = decltype(tag);
    const Sides sides(a.shape, a.side, a.d_x, a.d_out);
    if (!sides.queries) return sides.to_wide<T>(context, a.up);
    sides.to_narrow<T>(context, a.up);
    copy_rope_part<T>(context, a.shape, a.d_out, a.d_x, true);
  });
}

void backward_weight(Context& context, const LatentProjectBackwardWeight& a) {
  with_float_type(a.x.dtype, [&](auto tag) {
    with_float_type(a.d_up.dtype, [&](auto of_gradient) {
      Sides(a.shape, a.side, a.x, a.d_out).to_weight<decltype(tag), decltype(of_gradient)>(context, a.d_up);
    });
  });
}

}  // namespace

void register_latent_attention(KernelTable& table) {
  table.add<LatentQkv, Context, &latent_qkv>();
  table.add<LatentQkvBackward, Context, &latent_qkv_backward>();
  table.add<LatentProject, Context, &latent_project>();
  table.add<LatentProjectBackwardInput, Context, &backward_input>();
  table.add<LatentProjectBackwardWeight, Context, &backward_weight>();
}

}  // namespace primus::turbo::PRIMUS_GPU
