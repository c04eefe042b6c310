#include "turbo/selected_attention/selected_attention.h"

#include "turbo/check.h"

namespace primus::turbo {
namespace {

bool is_selection(const SelectedAttentionShape& s, const Tensor& selected) {
  return selected.dtype == DType::kI32 && selected.shape == Shape{s.tokens, s.selected};
}

bool are_keys(const SelectedAttentionShape& s, const Tensor& q, const Tensor& kv) {
  return is_float(q) && q.shape == Shape{s.tokens, s.heads * s.key_dim} && kv.dtype == q.dtype &&
         kv.shape == Shape{s.rows, s.key_dim};
}

bool is_out(const SelectedAttentionShape& s, const Tensor& out, const Tensor& q) {
  return out.dtype == q.dtype && out.shape == Shape{s.tokens, s.heads * s.value_dim};
}

bool is_lse(const SelectedAttentionShape& s, const Tensor& lse) {
  return lse.dtype == DType::kF32 && lse.shape == Shape{s.heads, s.tokens};
}

double forward_flops(const SelectedAttentionShape& s) {
  return 2 * static_cast<double>(s.tokens * s.selected) *
         static_cast<double>(s.heads * (s.key_dim + s.value_dim));
}

}  // namespace

void SelectedAttentionShape::check(KernelId kernel) const {
  PRIMUS_CHECK(kernel, tokens > 0 && rows > 0 && selected > 0 && heads > 0 && scale > 0);
  PRIMUS_CHECK(kernel, value_dim > 0 && key_dim >= value_dim);
}

void SelectedAttentionForward::check() const {
  shape.check(kId);
  PRIMUS_CHECK(kId, are_keys(shape, q, kv) && is_selection(shape, selected) && is_out(shape, out, q));
  PRIMUS_CHECK(kId, sinks.absent() || is_vector(sinks, q.dtype, shape.heads));
  PRIMUS_CHECK(kId, lse.absent() || is_lse(shape, lse));
}

double SelectedAttentionForward::flops() const { return forward_flops(shape); }

void SelectedAttentionBackward::check() const {
  shape.check(kId);
  PRIMUS_CHECK(kId, are_keys(shape, q, kv) && is_selection(shape, selected) && is_lse(shape, lse));
  PRIMUS_CHECK(kId, is_out(shape, out, q) && is_out(shape, d_out, q) && same(d_q, q) && same(d_kv, kv));
  PRIMUS_CHECK(kId, queries_at_once >= 0);
}

double SelectedAttentionBackward::flops() const { return 2.5 * forward_flops(shape); }

}  // namespace primus::turbo
