#include "lm/decode/adapter_runs.h"

#include <algorithm>

#include "base/check.h"

namespace primus {

std::vector<engine::AdapterRun> adapter_runs(std::span<const RowsOfModel> parts,
                                             std::span<const std::int64_t> sizes, std::int64_t rows) {
  std::vector<engine::AdapterRun> runs;
  std::int64_t row = 0;
  for (const RowsOfModel& part : parts) {
    const std::int64_t begin = row;
    row += part.rows;
    if (part.model == 0) continue;
    if (!runs.empty() && runs.back().model == part.model && runs.back().end == begin) {
      runs.back().end = row;
    } else {
      runs.push_back({.model = part.model, .begin = begin, .end = row});
    }
  }
  PRIMUS_CHECK("adapter_runs", row <= rows);
  for (engine::AdapterRun& run : runs) {
    run.count = *std::ranges::lower_bound(sizes, run.end - run.begin);
    run.first = std::min(run.begin, rows - run.count);
  }
  return runs;
}

}  // namespace primus
