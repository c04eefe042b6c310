#include "turbo/swiglu/swiglu.h"

#include "turbo/check.h"

namespace primus::turbo {
namespace {

// Returns whether gate_up holds gate and up columns, and out has the shape of their product.
bool is_gated(const Tensor& gate_up, const Tensor& out) {
  return is_float(gate_up) && out.dtype == gate_up.dtype && gate_up.cols() == 2 * out.cols() &&
         gate_up.rows() == out.rows();
}

// Returns whether there is one slot per row, and the number of weights is at least the number of rows.
bool is_weighted(const Tensor& weights, const Tensor& slots, const Tensor& offsets, const Tensor& out) {
  return weights.dtype == DType::kF32 && weights.elements() >= out.rows() && slots.dtype == DType::kI32 &&
         slots.elements() == out.rows() && offsets.dtype == DType::kI32;
}

}  // namespace

void SwigluForward::check() const { PRIMUS_CHECK(kId, is_gated(gate_up, out)); }

void SwigluBackward::check() const {
  PRIMUS_CHECK(kId, is_gated(gate_up, d_out));
  PRIMUS_CHECK(kId, same(d_gate_up, gate_up));
}

void WeightedSwigluForward::check() const {
  PRIMUS_CHECK(kId, is_gated(gate_up, out));
  PRIMUS_CHECK(kId, is_weighted(weights, slots, offsets, out));
}

void WeightedSwigluBackward::check() const {
  PRIMUS_CHECK(kId, is_gated(gate_up, d_out));
  PRIMUS_CHECK(kId, is_weighted(weights, slots, offsets, d_out));
  PRIMUS_CHECK(kId, same(d_gate_up, gate_up));
  PRIMUS_CHECK(kId, d_weights.absent() || same(d_weights, weights));
  PRIMUS_CHECK(kId, previous_weights.absent() || same(previous_weights, weights));
}

void ClampedSwigluForward::check() const {
  PRIMUS_CHECK(kId, limit > 0);
  PRIMUS_CHECK(kId, is_gated(gate_up, out));
}

void ClampedSwigluBackward::check() const {
  PRIMUS_CHECK(kId, limit > 0);
  PRIMUS_CHECK(kId, is_gated(gate_up, d_out));
  PRIMUS_CHECK(kId, same(d_gate_up, gate_up));
}

}  // namespace primus::turbo
