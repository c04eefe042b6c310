#include "turbo/position_scale/position_scale.h"

#include <cassert>

namespace primus::turbo {

void PositionScale::check() const {
  assert(x.dtype == DType::kF32 || x.dtype == DType::kBF16);
  assert(y.dtype == x.dtype && y.shape == x.shape);
  assert(positions.dtype == DType::kI32 && positions.elements() == x.rows());
  assert(cols >= 0 && cols <= x.cols() && floor_scale > 0);
}

}  // namespace primus::turbo
