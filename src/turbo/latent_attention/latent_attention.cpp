#include "turbo/latent_attention/latent_attention.h"

#include "turbo/check.h"

namespace primus::turbo {
namespace {

bool valid(const LatentShape& s) {
  return s.heads > 0 && s.rank > 0 && s.nope_dim > 0 && s.rope_dim > 0 && s.value_dim > 0;
}

bool has_width(const Tensor& t, const Tensor& like, std::int64_t cols) {
  return t.dtype == like.dtype && t.rows() == like.rows() && t.cols() == cols;
}

}  // namespace

void LatentQkv::check() const {
  const LatentShape& s = shape;
  PRIMUS_CHECK(kId, valid(s) && is_float(q));
  PRIMUS_CHECK(kId, has_width(q, q, s.heads * s.key_dim()) && has_width(kv, q, s.heads * s.up_dim()));
  PRIMUS_CHECK(kId, has_width(rope_key, q, s.rope_dim));
  PRIMUS_CHECK(kId, has_width(qkv, q, s.heads * (2 * s.key_dim() + s.value_dim)));
}

void LatentQkvBackward::check() const {
  const LatentShape& s = shape;
  PRIMUS_CHECK(kId, valid(s) && is_float(d_qkv));
  PRIMUS_CHECK(kId, has_width(d_qkv, d_qkv, s.heads * (2 * s.key_dim() + s.value_dim)));
  PRIMUS_CHECK(kId,
               has_width(d_q, d_qkv, s.heads * s.key_dim()) && has_width(d_kv, d_qkv, s.heads * s.up_dim()));
  PRIMUS_CHECK(kId, has_width(d_rope_key, d_qkv, s.rope_dim));
}

void LatentProject::check() const {
  const LatentShape& s = shape;
  PRIMUS_CHECK(kId, valid(s) && is_float(x));
  PRIMUS_CHECK(kId, up.dtype == x.dtype && up.rows() == s.heads * s.up_dim() && up.cols() == s.rank);
  if (side == Side::kQueries) {
    PRIMUS_CHECK(
        kId, has_width(x, x, s.heads * s.key_dim()) && has_width(out, x, s.heads * (s.rank + s.rope_dim)));
  } else {
    PRIMUS_CHECK(kId, has_width(x, x, s.heads * s.rank) && has_width(out, x, s.heads * s.value_dim));
  }
}

double LatentProject::flops() const {
  const std::int64_t other = side == Side::kQueries ? shape.nope_dim : shape.value_dim;
  return 2 * static_cast<double>(x.rows() * shape.heads) * static_cast<double>(shape.rank * other);
}

}  // namespace primus::turbo
