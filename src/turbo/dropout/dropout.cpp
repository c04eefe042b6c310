#include "turbo/dropout/dropout.h"

#include "turbo/check.h"
#include "turbo/step_scalars.h"

namespace primus::turbo {
namespace {

bool in_order(const Dropout& a) {
  for (int i = 1; i < a.run_count; ++i) {
    if (a.runs[i].begin <= a.runs[i - 1].begin) return false;
  }
  return a.runs[0].begin == 0;
}

}  // namespace

void Dropout::check() const {
  PRIMUS_CHECK(kId, is_float(x) && x.shape.rank() == 2);
  PRIMUS_CHECK(kId, same(out, x));
  PRIMUS_CHECK(kId, tokens.dtype == DType::kI32 && tokens.elements() == x.rows());
  PRIMUS_CHECK(kId, is_step_scalars(scalars));
  PRIMUS_CHECK(kId, rate > 0 && rate < 1);
  PRIMUS_CHECK(kId, run_count >= 1 && run_count <= kMaxRuns && in_order(*this));
}

}  // namespace primus::turbo
