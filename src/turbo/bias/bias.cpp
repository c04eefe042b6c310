#include "turbo/bias/bias.h"

#include <cassert>

namespace primus::turbo {

void AddBias::check() const {
  assert(x.dtype == DType::kF32 || x.dtype == DType::kBF16);
  assert(y.dtype == x.dtype && y.shape == x.shape);
  assert(bias.dtype == x.dtype && bias.elements() == x.cols());
}

void AddBiasBackwardWeight::check() const {
  assert(d_y.dtype == DType::kF32 || d_y.dtype == DType::kBF16);
  assert(d_bias.dtype == DType::kF32 && d_bias.elements() == d_y.cols());
}

}  // namespace primus::turbo
