#include <algorithm>

#include "turbo/cpu/register.h"
#include "turbo/cpu/simd.h"
#include "turbo/gemm/gemm.h"
#include "turbo/latent_attention/latent_attention.h"

namespace primus::turbo::PRIMUS_CPU_ISA {
namespace {

// Where keys and values begin in a row of queries, keys and values.
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

// The product of one head; operands of head h lie *_step elements after those of head h - 1.
struct HeadProduct {
  GemmArgs args;
  std::int64_t a_step, b_step, c_step;
};

HeadProduct head_product(const CpuContext& context, const LatentProject& call) {
  const LatentShape& s = call.shape;
  const bool queries = call.side == LatentProject::Side::kQueries;
  const std::int64_t element = size_of(call.x.dtype);
  HeadProduct product{};
  GemmArgs& args = product.args;
  args.ab_dtype = args.c_dtype = call.x.dtype;
  args.accumulate = false;
  args.m = call.x.rows();
  args.n = queries ? s.rank : s.value_dim;
  args.k = queries ? s.nope_dim : s.rank;
  args.layout = queries ? GemmLayout::kNN : GemmLayout::kNT;
  args.lda = call.x.cols();
  args.ldb = s.rank;
  args.ldc = call.out.cols();
  args.a = context.data<const std::byte>(call.x);
  // A head's rows of the up-projection make its key first, then its value.
  args.b = call.up.data
               ? context.data<const std::byte>(call.up) + (queries ? 0 : s.nope_dim * s.rank * element)
               : nullptr;
  args.c = context.data<std::byte>(call.out);
  product.a_step = (queries ? s.key_dim() : s.rank) * element;
  product.b_step = s.up_dim() * s.rank * element;
  product.c_step = (queries ? s.rank + s.rope_dim : s.value_dim) * element;
  return product;
}

void copy_rope_part(CpuContext& context, const LatentProject& call) {
  with_float_type(call.x.dtype, [&](auto tag) {
    using T = decltype(tag);
    const LatentShape& s = call.shape;
    const T* x = context.data<const T>(call.x);
    T* out = context.data<T>(call.out);
    // Heads of all tokens are equally far apart.
    parallel_ranges(context, call.x.rows() * s.heads, 2 * s.rope_dim * sizeof(T),
                    [&](std::int64_t begin, std::int64_t end) {
                      for (std::int64_t i = begin; i < end; ++i) {
                        std::copy_n(x + i * s.key_dim() + s.nope_dim, s.rope_dim,
                                    out + i * (s.rank + s.rope_dim) + s.rank);
                      }
                    });
  });
}

void latent_project(CpuContext& context, const LatentProject& call) {
  HeadProduct product = head_product(context, call);
  GemmArgs& args = product.args;
  args.workspace = context.data<std::byte>(call.workspace);
  args.workspace_bytes = static_cast<std::size_t>(call.workspace.bytes());
  const auto* a = static_cast<const std::byte*>(args.a);
  const auto* b = static_cast<const std::byte*>(args.b);
  auto* c = static_cast<std::byte*>(args.c);
  for (std::int64_t head = 0; head < call.shape.heads; ++head) {
    args.a = a + head * product.a_step;
    args.b = b + head * product.b_step;
    args.c = c + head * product.c_step;
    cpu_gemm(context.pool(), args);
  }
  if (call.side == LatentProject::Side::kQueries) copy_rope_part(context, call);
}

std::int64_t latent_project_workspace(CpuContext& context, const LatentProject& call) {
  return static_cast<std::int64_t>(
      cpu_gemm_workspace_bytes(head_product(context, call).args, context.threads()));
}

}  // namespace

void register_latent_attention(KernelTable& table) {
  table.add<LatentQkv, CpuContext, &latent_qkv>();
  table.add<LatentQkvBackward, CpuContext, &latent_qkv_backward>();
  table.add<LatentProject, CpuContext, &latent_project, &latent_project_workspace>();
}

}  // namespace primus::turbo::PRIMUS_CPU_ISA
