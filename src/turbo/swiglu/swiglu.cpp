#include "turbo/swiglu/swiglu.h"

#include <cassert>

namespace primus::turbo {

void SwigluForward::check() const {
  assert(gate_up.dtype == DType::kF32 || gate_up.dtype == DType::kBF16);
  assert(out.dtype == gate_up.dtype);
  assert(gate_up.cols() == 2 * out.cols() && gate_up.rows() == out.rows());
}

void SwigluBackward::check() const {
  assert(gate_up.dtype == DType::kF32 || gate_up.dtype == DType::kBF16);
  assert(d_out.dtype == gate_up.dtype && d_gate_up.dtype == gate_up.dtype);
  assert(gate_up.cols() == 2 * d_out.cols() && gate_up.rows() == d_out.rows());
  assert(d_gate_up.shape == gate_up.shape);
}

}  // namespace primus::turbo
