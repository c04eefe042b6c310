// Copies groups of columns of one matrix to a second matrix. Used to split a fused projection in which the
// queries and gates of a head are in adjacent columns, and to join the gradients.
#pragma once

#include <array>
#include <cstdint>

#include "tensor/tensor.h"
#include "turbo/kernel_table.h"

namespace primus::turbo {

// `groups` groups of `columns` consecutive columns. Group g begins at column from + g * from_stride of the
// source and at column to + g * to_stride of the destination.
struct ColumnRun {
  std::int32_t from, to, groups, columns, from_stride, to_stride;
  std::int64_t size() const { return std::int64_t{groups} * columns; }
};

struct CopyColumns {
  static constexpr KernelId kId = KernelId::kCopyColumns;
  static constexpr int kMaxRuns = 4;
  Tensor from;  // [rows, m]
  Tensor to;    // [rows, n] of the same type; columns outside all runs are unchanged
  std::array<ColumnRun, kMaxRuns> runs;
  int run_count;
  void check() const;
  double flops() const { return 0; }
};

}  // namespace primus::turbo
