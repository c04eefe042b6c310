#include "turbo/soft_cap/soft_cap.h"

#include "turbo/check.h"

namespace primus::turbo {

void SoftCap::check() const {
  PRIMUS_CHECK(kId, is_float(x));
  PRIMUS_CHECK(kId, same(y, x));
  PRIMUS_CHECK(kId, cap > 0);
}

void SoftCapBackward::check() const {
  PRIMUS_CHECK(kId, is_float(y));
  PRIMUS_CHECK(kId, same(d_y, y) && same(d_x, y));
  PRIMUS_CHECK(kId, cap > 0);
}

}  // namespace primus::turbo
