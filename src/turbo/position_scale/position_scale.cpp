#include "turbo/position_scale/position_scale.h"

#include "turbo/check.h"

namespace primus::turbo {

void PositionScale::check() const {
  PRIMUS_CHECK(kId, is_float(x));
  PRIMUS_CHECK(kId, same(y, x));
  PRIMUS_CHECK(kId, positions.dtype == DType::kI32 && positions.elements() == x.rows());
  PRIMUS_CHECK(kId, cols >= 0 && cols <= x.cols() && floor_scale > 0);
  PRIMUS_CHECK(kId, first == 0 || first == 1);
}

}  // namespace primus::turbo
