#include "turbo/layer_norm/layer_norm.h"

#include "turbo/check.h"

namespace primus::turbo {

void LayerNorm::check() const {
  PRIMUS_CHECK(kId, is_float(x) && same(y, x) && x.cols() > 0 && eps >= 0);
  PRIMUS_CHECK(kId, is_vector(weight, x.dtype, x.cols()) && is_vector(bias, DType::kF32, x.cols()));
}

}  // namespace primus::turbo
