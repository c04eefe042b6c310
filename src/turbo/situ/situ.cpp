#include "turbo/situ/situ.h"

#include "turbo/check.h"

namespace primus::turbo {
namespace {

bool has_gate_and_up(const Tensor& gate_up, const Tensor& out) {
  return is_float(gate_up) && out.dtype == gate_up.dtype && gate_up.cols() == 2 * out.cols() &&
         gate_up.rows() == out.rows();
}

}  // namespace

void SituForward::check() const {
  PRIMUS_CHECK(kId, beta > 0 && linear_beta >= 0);
  PRIMUS_CHECK(kId, has_gate_and_up(gate_up, out));
}

void SituBackward::check() const {
  PRIMUS_CHECK(kId, beta > 0 && linear_beta >= 0);
  PRIMUS_CHECK(kId, has_gate_and_up(gate_up, d_out));
  PRIMUS_CHECK(kId, same(d_gate_up, gate_up));
}

}  // namespace primus::turbo
