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

bool is_side(const LatentShape& s, LatentProject::Side side, const Tensor& x, const Tensor& out) {
  if (side == LatentProject::Side::kQueries)
    return has_width(x, x, s.heads * s.key_dim()) && has_width(out, x, s.heads * (s.rank + s.rope_dim));
  return has_width(x, x, s.heads * s.rank) && has_width(out, x, s.heads * s.value_dim);
}

bool is_up(const LatentShape& s, const Tensor& up) {
  return up.rows() == s.heads * s.up_dim() && up.cols() == s.rank;
}

double project_flops(const LatentShape& s, LatentProject::Side side, std::int64_t tokens) {
  const std::int64_t other = side == LatentProject::Side::kQueries ? s.nope_dim : s.value_dim;
  return 2 * static_cast<double>(tokens * s.heads) * static_cast<double>(s.rank * other);
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
  PRIMUS_CHECK(kId, valid(shape) && is_float(x) && is_side(shape, side, x, out));
  PRIMUS_CHECK(kId, up.dtype == x.dtype && is_up(shape, up));
}

double LatentProject::flops() const { return project_flops(shape, side, x.rows()); }

void LatentProjectBackwardInput::check() const {
  PRIMUS_CHECK(kId, valid(shape) && is_float(d_x) && is_side(shape, side, d_x, d_out));
  PRIMUS_CHECK(kId, up.dtype == d_x.dtype && is_up(shape, up));
}

double LatentProjectBackwardInput::flops() const { return project_flops(shape, side, d_x.rows()); }

void LatentProjectBackwardWeight::check() const {
  PRIMUS_CHECK(kId, valid(shape) && is_float(x) && is_side(shape, side, x, d_out));
  PRIMUS_CHECK(kId, is_float(d_up) && is_up(shape, d_up));
}

double LatentProjectBackwardWeight::flops() const { return project_flops(shape, side, x.rows()); }

}  // namespace primus::turbo
