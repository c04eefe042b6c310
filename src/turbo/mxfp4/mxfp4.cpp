#include "turbo/mxfp4/mxfp4.h"

#include "turbo/check.h"
#include "turbo/step_scalars.h"

namespace primus::turbo {

void RoundMxfp4::check() const {
  PRIMUS_CHECK(kId, is_float(x) && x.shape.rank() >= 1 && out.dtype == x.dtype);
  PRIMUS_CHECK(kId, x.shape.rank() <= 2 || (x.shape.rank() == 3 && blocks == Blocks::kTiles));
  PRIMUS_CHECK(kId, picks.absent() ? out.shape == x.shape
                                   : out.cols() == x.cols() && is_vector(picks, DType::kI32, out.rows()));
  PRIMUS_CHECK(kId, blocks == Blocks::kColumns || (!hadamard && offsets.absent()));
  PRIMUS_CHECK(kId, picks.absent() || !offsets.absent());
  PRIMUS_CHECK(kId, offsets.absent() || (offsets.dtype == DType::kI32 && offsets.elements() > 1));
  if (random.absent()) return;
  PRIMUS_CHECK(kId, blocks != Blocks::kTiles && offsets.absent());
  PRIMUS_CHECK(kId, is_vector(random.tokens, DType::kI32, x.rows()) && is_step_scalars(random.scalars));
  PRIMUS_CHECK(kId, random.run_count >= 1 && random.run_count <= Mxfp4Random::kMaxRuns);
  PRIMUS_CHECK(kId, random.runs[0].begin == 0 && random.width >= x.cols());
}

}  // namespace primus::turbo
