#include "turbo/swiglu/swiglu.h"

#include <cassert>

namespace primus::turbo {
namespace {

void check_shapes([[maybe_unused]] const Tensor& gate_up, [[maybe_unused]] const Tensor& out) {
  assert(gate_up.dtype == DType::kF32 || gate_up.dtype == DType::kBF16);
  assert(out.dtype == gate_up.dtype);
  assert(gate_up.cols() == 2 * out.cols() && gate_up.rows() == out.rows());
}

void check_shapes(const Tensor& gate_up, const Tensor& out, [[maybe_unused]] const Tensor& d_gate_up) {
  check_shapes(gate_up, out);
  assert(d_gate_up.dtype == gate_up.dtype && d_gate_up.shape == gate_up.shape);
}

}  // namespace

void SwigluForward::check() const { check_shapes(gate_up, out); }
void SwigluBackward::check() const { check_shapes(gate_up, d_out, d_gate_up); }

void WeightedSwigluForward::check() const {
  check_shapes(gate_up, out);
  assert(weights.dtype == DType::kF32 && weights.elements() == out.rows());
  assert(slots.dtype == DType::kI32 && slots.elements() == out.rows() && offsets.dtype == DType::kI32);
}

void WeightedSwigluBackward::check() const {
  WeightedSwigluForward{gate_up, weights, offsets, slots, weigh_input, d_out}.check();
  check_shapes(gate_up, d_out, d_gate_up);
  assert(d_weights.absent() || (d_weights.dtype == DType::kF32 && d_weights.shape == weights.shape));
  assert(previous_weights.absent() || previous_weights.shape == weights.shape);
}

void ClampedSwigluForward::check() const {
  assert(limit > 0);
  check_shapes(gate_up, out);
}

void ClampedSwigluBackward::check() const {
  assert(limit > 0);
  check_shapes(gate_up, d_out, d_gate_up);
}

}  // namespace primus::turbo
