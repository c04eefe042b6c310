#include "turbo/gate/gate.h"

#include "turbo/check.h"

namespace primus::turbo {
namespace {

bool gates(const Tensor& gate, const Tensor& x) {
  if (x.shape.rank() != 2 || !is_float(x)) return false;
  if (gate.shape == Shape{x.shape[0], 1}) return gate.dtype == x.dtype || gate.dtype == DType::kF32;
  return same(gate, x);
}

// Returns whether x consists of heads of `dim` columns, and rstd has one element per head.
bool has_heads(const Tensor& x, const Tensor& rstd, std::int64_t dim) {
  return is_float(x) && x.shape.rank() == 2 && dim > 0 && x.cols() % dim == 0 && rstd.dtype == DType::kF32 &&
         rstd.shape == Shape{x.rows(), x.cols() / dim};
}

bool weighs(const Tensor& weight, const Tensor& x) {
  return weight.shape.rank() == 1 && weight.dtype == x.dtype;
}

}  // namespace

void GateForward::check() const { PRIMUS_CHECK(kId, gates(gate, x) && same(x, y)); }

void GateBackward::check() const {
  PRIMUS_CHECK(kId, gates(gate, x) && same(x, d_y) && same(x, d_x) && same(gate, d_gate));
}

void GatedNormForward::check() const {
  PRIMUS_CHECK(kId, weighs(weight, x) && has_heads(x, rstd, weight.elements()));
  PRIMUS_CHECK(kId, same(x, gate) && same(x, y));
}

void GatedNormBackwardInput::check() const {
  PRIMUS_CHECK(kId, weighs(weight, x) && has_heads(x, rstd, weight.elements()));
  PRIMUS_CHECK(kId, same(x, gate) && same(x, d_y) && same(x, d_x) && same(x, d_gate));
}

void GatedNormBackwardWeight::check() const {
  PRIMUS_CHECK(kId, is_float(d_weight) && d_weight.shape.rank() == 1);
  PRIMUS_CHECK(kId, has_heads(x, rstd, d_weight.elements()) && same(x, gate) && same(x, d_y));
}

}  // namespace primus::turbo
