#include "turbo/delta_gates/delta_gates.h"

#include "turbo/check.h"

namespace primus::turbo {
namespace {

bool are_gates(const Tensor& ba, const Tensor& a_log, const Tensor& dt_bias) {
  return is_float(ba) && ba.shape.rank() == 2 && ba.cols() > 0 && ba.cols() % 2 == 0 &&
         is_vector(a_log, DType::kF32, ba.cols() / 2) && is_vector(dt_bias, DType::kF32, ba.cols() / 2);
}

bool of_heads(const Tensor& x, const Tensor& ba) {
  return x.dtype == DType::kF32 && x.shape == Shape{ba.rows(), ba.cols() / 2};
}

}  // namespace

void DeltaGatesForward::check() const {
  PRIMUS_CHECK(kId, are_gates(ba, a_log, dt_bias) && of_heads(g, ba) && of_heads(beta, ba));
}

void DeltaGatesBackwardInput::check() const {
  PRIMUS_CHECK(kId, are_gates(ba, a_log, dt_bias) && of_heads(d_g, ba) && of_heads(d_beta, ba));
  PRIMUS_CHECK(kId, same(ba, d_ba));
}

void DeltaGatesBackwardWeight::check() const {
  PRIMUS_CHECK(kId, are_gates(ba, a_log, dt_bias) && of_heads(d_g, ba));
  PRIMUS_CHECK(kId, is_vector(d_weights, DType::kF32, ba.cols()));
}

}  // namespace primus::turbo
