#include "turbo/bias/bias.h"

#include "turbo/check.h"

namespace primus::turbo {

void AddBias::check() const {
  PRIMUS_CHECK(kId, is_float(x));
  PRIMUS_CHECK(kId, same(y, x));
  PRIMUS_CHECK(kId, bias.dtype == x.dtype && bias.elements() == x.cols());
}

void AddBiasBackwardWeight::check() const {
  PRIMUS_CHECK(kId, is_float(d_y));
  PRIMUS_CHECK(kId, is_float(d_bias) && d_bias.elements() == d_y.cols());
}

}  // namespace primus::turbo
