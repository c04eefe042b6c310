#include <algorithm>

#include "turbo/cpu/register.h"
#include "turbo/cpu/simd.h"
#include "turbo/gemm/gemm.h"
#include "turbo/latent_attention/latent_attention.h"

namespace primus::turbo::PRIMUS_CPU_ISA {
namespace {

// The first column of keys, and the first column of values, in a row of queries, keys and values.
struct Columns {
  std::int64_t k, v, width;
  explicit Columns(const LatentShape& s)
      : k(s.heads * s.key_dim()), v(2 * k), width(v + s.heads * s.value_dim) {}
};

void latent_qkv(CpuContext& context, const LatentQkv& a) {
  with_float_type(a.q.dtype, [&](auto tag) {
    using T = decltype(tag);
    const LatentShape& s = a.shape;
    const Columns at(s);
    parallel_ranges(context, a.q.rows(), 2 * at.width * sizeof(T), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const T* q = context.data<const T>(a.q) + row * at.k;
        const T* kv = context.data<const T>(a.kv) + row * s.heads * s.up_dim();
        const T* rope_key = context.data<const T>(a.rope_key) + row * s.rope_dim;
        T* out = context.data<T>(a.qkv) + row * at.width;
        std::copy_n(q, at.k, out);
        for (std::int64_t head = 0; head < s.heads; ++head) {
          const T* up = kv + head * s.up_dim();
          T* k = out + at.k + head * s.key_dim();
          std::copy_n(up, s.nope_dim, k);
          std::copy_n(rope_key, s.rope_dim, k + s.nope_dim);
          std::copy_n(up + s.nope_dim, s.value_dim, out + at.v + head * s.value_dim);
        }
      }
    });
  });
}

void latent_qkv_backward(CpuContext& context, const LatentQkvBackward& a) {
  with_float_type(a.d_qkv.dtype, [&](auto tag) {
    using T = decltype(tag);
    const LatentShape& s = a.shape;
    const Columns at(s);
    parallel_ranges(
        context, a.d_qkv.rows(), 2 * at.width * sizeof(T), [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t row = begin; row < end; ++row) {
            const T* from = context.data<const T>(a.d_qkv) + row * at.width;
            T* d_q = context.data<T>(a.d_q) + row * at.k;
            T* d_kv = context.data<T>(a.d_kv) + row * s.heads * s.up_dim();
            T* d_rope_key = context.data<T>(a.d_rope_key) + row * s.rope_dim;
            std::copy_n(from, at.k, d_q);
            for (std::int64_t head = 0; head < s.heads; ++head) {
              T* d_up = d_kv + head * s.up_dim();
              std::copy_n(from + at.k + head * s.key_dim(), s.nope_dim, d_up);
              std::copy_n(from + at.v + head * s.value_dim, s.value_dim, d_up + s.nope_dim);
            }
            for (std::int64_t i = 0; i < s.rope_dim; ++i) {
              const T* part = from + at.k + s.nope_dim + i;
              d_rope_key[i] = from_float<T>(
                  sum_terms(s.heads, [=](std::int64_t head) { return to_float(part[head * s.key_dim()]); }));
            }
          }
        });
  });
}

// The product of one head. The operands of head h begin *_step elements after the operands of head h - 1.
struct HeadProduct {
  GemmArgs args;
  std::int64_t a_step, b_step, c_step;
};

// The products for queries, or for values. Each head has three operands: narrow rows (the query's nope part,
// or the value), wide rows (as wide as latents), and the head's rows of the up-projection. For queries, x is
// narrow and out is wide; for values, x is wide and out is narrow.
struct Sides {
  Sides(const CpuContext& context, const LatentShape& s, LatentProject::Side side, const Tensor& x,
        const Tensor& out, const Tensor& up)
      : queries(side == LatentProject::Side::kQueries),
        width(queries ? s.nope_dim : s.value_dim),
        rank(s.rank),
        tokens(x.rows()),
        narrow{context.data<std::byte>(queries ? x : out), queries ? s.key_dim() : s.value_dim,
               (queries ? x : out).cols()},
        wide{context.data<std::byte>(queries ? out : x), queries ? s.rank + s.rope_dim : s.rank,
             (queries ? out : x).cols()},
        // The first nope_dim of a head's rows of the up-projection compute its key, the following rows its
        // value.
        weight{up.data ? context.data<std::byte>(up) + (queries ? 0 : s.nope_dim * s.rank) * size_of(up.dtype)
                       : nullptr,
               s.up_dim() * s.rank, s.rank},
        dtype(x.dtype),
        weight_dtype(up.dtype) {}

  HeadProduct to_wide() const {
    return product(GemmLayout::kNN, {tokens, rank, width}, narrow, weight, wide);
  }
  HeadProduct to_narrow() const {
    return product(GemmLayout::kNT, {tokens, width, rank}, wide, weight, narrow);
  }
  HeadProduct to_weight() const {
    HeadProduct p = product(GemmLayout::kTN, {width, rank, tokens}, narrow, wide, weight);
    p.args.c_dtype = weight_dtype;
    p.args.accumulate = true;
    p.c_step = weight.step * size_of(weight_dtype);
    return p;
  }

  struct Rows {
    std::byte* data;
    std::int64_t step, stride;  // elements between consecutive heads, and between consecutive rows
  };
  struct Extents {
    std::int64_t m, n, k;
  };
  HeadProduct product(GemmLayout layout, Extents extents, const Rows& a, const Rows& b, const Rows& c) const {
    HeadProduct p{};
    p.args.layout = layout;
    p.args.ab_dtype = p.args.c_dtype = dtype;
    p.args.m = extents.m, p.args.n = extents.n, p.args.k = extents.k;
    p.args.a = a.data, p.args.lda = a.stride;
    p.args.b = b.data, p.args.ldb = b.stride;
    p.args.c = c.data, p.args.ldc = c.stride;
    const std::int64_t element = size_of(dtype);
    p.a_step = a.step * element, p.b_step = b.step * element, p.c_step = c.step * element;
    return p;
  }

  bool queries;
  std::int64_t width, rank, tokens;
  Rows narrow, wide, weight;
  DType dtype, weight_dtype;
};

void run_heads(CpuContext& context, HeadProduct product, std::int64_t heads, const Tensor& workspace) {
  GemmArgs& args = product.args;
  args.workspace = context.data<std::byte>(workspace);
  args.workspace_bytes = static_cast<std::size_t>(workspace.bytes());
  const auto* a = static_cast<const std::byte*>(args.a);
  const auto* b = static_cast<const std::byte*>(args.b);
  auto* c = static_cast<std::byte*>(args.c);
  for (std::int64_t head = 0; head < heads; ++head) {
    args.a = a + head * product.a_step;
    args.b = b + head * product.b_step;
    args.c = c + head * product.c_step;
    cpu_gemm(context.pool(), args);
  }
}

std::int64_t bytes_of(const CpuContext& context, const HeadProduct& product) {
  return static_cast<std::int64_t>(cpu_gemm_workspace_bytes(product.args, context.threads()));
}

// Copies the rotated part of each head's query from narrow to wide rows, or from wide to narrow rows. This
// part is not multiplied.
void copy_rope_part(CpuContext& context, const LatentShape& s, const Tensor& from_tensor,
                    const Tensor& to_tensor, bool back) {
  with_float_type(from_tensor.dtype, [&](auto tag) {
    using T = decltype(tag);
    const T* from = context.data<const T>(from_tensor);
    T* to = context.data<T>(to_tensor);
    const std::int64_t wide = s.rank + s.rope_dim, narrow = s.key_dim();
    // Neighbouring heads have the same distance within a token and across tokens, so one index counts the
    // heads of all tokens.
    parallel_ranges(context, from_tensor.rows() * s.heads, 2 * s.rope_dim * sizeof(T),
                    [&](std::int64_t begin, std::int64_t end) {
                      for (std::int64_t i = begin; i < end; ++i) {
                        std::copy_n(from + (back ? i * wide + s.rank : i * narrow + s.nope_dim), s.rope_dim,
                                    to + (back ? i * narrow + s.nope_dim : i * wide + s.rank));
                      }
                    });
  });
}

HeadProduct product_of(const CpuContext& context, const LatentProject& call) {
  const Sides sides(context, call.shape, call.side, call.x, call.out, call.up);
  return sides.queries ? sides.to_wide() : sides.to_narrow();
}
HeadProduct product_of(const CpuContext& context, const LatentProjectBackwardInput& call) {
  const Sides sides(context, call.shape, call.side, call.d_x, call.d_out, call.up);
  return sides.queries ? sides.to_narrow() : sides.to_wide();
}
HeadProduct product_of(const CpuContext& context, const LatentProjectBackwardWeight& call) {
  return Sides(context, call.shape, call.side, call.x, call.d_out, call.d_up).to_weight();
}

template <class Call>
std::int64_t project_workspace(CpuContext& context, const Call& call) {
  return bytes_of(context, product_of(context, call));
}

template <class Call>
void project(CpuContext& context, const Call& call) {
  run_heads(context, product_of(context, call), call.shape.heads, call.workspace);
  if (call.side != LatentProject::Side::kQueries) return;
  if constexpr (std::is_same_v<Call, LatentProject>) {
    copy_rope_part(context, call.shape, call.x, call.out, false);
  } else if constexpr (std::is_same_v<Call, LatentProjectBackwardInput>) {
    copy_rope_part(context, call.shape, call.d_out, call.d_x, true);
  }
}

}  // namespace

void register_latent_attention(KernelTable& table) {
  table.add<LatentQkv, CpuContext, &latent_qkv>();
  table.add<LatentQkvBackward, CpuContext, &latent_qkv_backward>();
  table.add<LatentProject, CpuContext, &project<LatentProject>, &project_workspace<LatentProject>>();
  table.add<LatentProjectBackwardInput, CpuContext, &project<LatentProjectBackwardInput>,
            &project_workspace<LatentProjectBackwardInput>>();
  table.add<LatentProjectBackwardWeight, CpuContext, &project<LatentProjectBackwardWeight>,
            &project_workspace<LatentProjectBackwardWeight>>();
}

}  // namespace primus::turbo::PRIMUS_CPU_ISA
