#include "turbo/column_runs/column_runs.h"

#include <algorithm>

#include "turbo/check.h"

namespace primus::turbo {
namespace {

// Returns whether all groups are within `columns` columns and do not overlap.
bool fits(std::int64_t first, std::int64_t stride, const ColumnRun& run, std::int64_t columns) {
  return first >= 0 && (run.groups == 1 || stride >= run.columns) &&
         first + (run.groups - 1) * stride + run.columns <= columns;
}

}  // namespace

void CopyColumns::check() const {
  PRIMUS_CHECK(kId, is_float(from) && from.dtype == to.dtype);
  PRIMUS_CHECK(kId, from.shape.rank() == 2 && to.shape.rank() == 2 && from.rows() == to.rows());
  PRIMUS_CHECK(kId, run_count >= 1 && run_count <= kMaxRuns);
  PRIMUS_CHECK(kId, std::all_of(runs.begin(), runs.begin() + run_count, [&](const ColumnRun& run) {
                 return run.groups > 0 && run.columns > 0 &&
                        fits(run.from, run.from_stride, run, from.cols()) &&
                        fits(run.to, run.to_stride, run, to.cols());
               }));
}

}  // namespace primus::turbo
