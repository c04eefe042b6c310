// Columns of one matrix at other places of another: how a fused projection, whose heads have queries and
// gates side by side, comes apart, and its gradient together again.
#pragma once

#include <array>
#include <cstdint>

#include "tensor/tensor.h"
#include "turbo/kernel_table.h"

namespace primus::turbo {

// `groups` groups of `columns` neighbouring columns. Group g begins at column from + g * from_stride of what
// is read, and at to + g * to_stride of what is written.
struct ColumnRun {
  std::int32_t from, to, groups, columns, from_stride, to_stride;
  std::int64_t size() const { return std::int64_t{groups} * columns; }
};

struct CopyColumns {
  static constexpr KernelId kId = KernelId::kCopyColumns;
  static constexpr int kMostRuns = 4;
  Tensor from;  // [rows, m]
  Tensor to;    // [rows, n] of the same type; columns of no run are left as they are
  std::array<ColumnRun, kMostRuns> runs;
  int run_count;
  void check() const;
  double flops() const { return 0; }
};

}  // namespace primus::turbo
