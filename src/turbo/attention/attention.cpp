#include "turbo/attention/attention.h"

#include <algorithm>

namespace primus::turbo {
namespace {

[[maybe_unused]] bool valid(const AttentionShape& s) {
  return s.batch >= 0 && s.seq_q >= 0 && s.seq_k >= s.seq_q && s.capacity_k >= s.seq_k && s.kv_heads > 0 &&
         s.heads > 0 && s.heads % s.kv_heads == 0 && s.head_dim > 0 && s.value_dim > 0 && s.scale > 0 &&
         s.window >= 0;
}

[[maybe_unused]] bool valid_strides(const AttentionShape& s, std::int64_t q, std::int64_t k, std::int64_t v) {
  return q >= s.heads * s.head_dim && k >= s.kv_heads * s.head_dim && v >= s.kv_heads * s.value_dim;
}

[[maybe_unused]] bool float_types(DType type, std::initializer_list<DType> others) {
  return (type == DType::kF32 || type == DType::kBF16) &&
         std::all_of(others.begin(), others.end(), [type](DType other) { return other == type; });
}

// Pairs of query and key that are not masked, per head and sequence. The sum over queries at positions p of
// the keys in (p - window, p] or (p - window, seq_k).
double visible_pairs(const AttentionShape& s) {
  double pairs = 0;
  for (std::int64_t i = 0; i < s.seq_q; ++i) {
    const std::int64_t position = s.seq_k - s.seq_q + i;
    const std::int64_t first = s.window > 0 ? std::max<std::int64_t>(0, position - s.window + 1) : 0;
    pairs += static_cast<double>((s.causal ? position + 1 : s.seq_k) - first);
  }
  return pairs;
}

double forward_flops(const AttentionShape& s) {
  return 2 * static_cast<double>(s.batch * s.heads * (s.head_dim + s.value_dim)) * visible_pairs(s);
}

}  // namespace

void AttentionForward::check() const {
  assert(valid(shape) && valid_strides(shape, q_stride, k_stride, v_stride));
  assert(float_types(q.dtype, {k.dtype, v.dtype, out.dtype}));
  assert(out.elements() == shape.batch * shape.seq_q * shape.heads * shape.value_dim);
  assert(lse.absent() || lse.dtype == DType::kF32);
  assert(lse.absent() || lse.elements() == shape.heads * shape.batch * shape.seq_q);
}

double AttentionForward::flops() const { return forward_flops(shape); }

void AttentionBackward::check() const {
  assert(valid(shape) && shape.seq_k == shape.seq_q && shape.capacity_k == shape.seq_k);
  assert(valid_strides(shape, q_stride, k_stride, v_stride));
  assert(valid_strides(shape, d_q_stride, d_k_stride, d_v_stride));
  assert(float_types(q.dtype, {k.dtype, v.dtype, out.dtype, d_out.dtype, d_q.dtype, d_k.dtype, d_v.dtype}));
  assert(out.elements() == shape.batch * shape.seq_q * shape.heads * shape.value_dim);
  assert(d_out.elements() == out.elements());
  assert(lse.dtype == DType::kF32 && lse.elements() == shape.heads * shape.batch * shape.seq_q);
}

double AttentionBackward::flops() const { return 2.5 * forward_flops(shape); }

}  // namespace primus::turbo
