// Divides the rows of a pass into runs of texts of one model (engine/operators/row_adapters.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/operators/row_adapters.h"

namespace primus {

// Consecutive rows of a pass that belong to texts of one model.
struct RowsOfModel {
  std::size_t model = 0;
  std::int64_t rows = 0;
};

// Returns the runs of a pass with these rows, in this order, except those of model 0, which has no adapters.
// `sizes`: the permitted values of AdapterRun::count, ascending. `rows`: the number of rows in the pass, one
// of the sizes.
std::vector<engine::AdapterRun> adapter_runs(std::span<const RowsOfModel> parts,
                                             std::span<const std::int64_t> sizes, std::int64_t rows);

}  // namespace primus
