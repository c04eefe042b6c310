// Sums over long vectors. The result does not depend on the number of threads.
#pragma once

#include <algorithm>
#include <array>

#include "turbo/cpu/simd.h"

namespace primus::turbo::PRIMUS_CPU_ISA {

// Divides [0, n) into at most 256 slices, which depend only on n. Calls slice_sum(begin, end) for each slice
// on the pool, and adds the results in order.
template <class Partial, class SliceSum>
Partial ordered_sum(const CpuContext& context, std::int64_t n, SliceSum slice_sum) {
  constexpr std::int64_t kSlices = 256, kSmallest = 16384;
  const std::int64_t grain = std::max((n + kSlices - 1) / kSlices, kSmallest);
  std::array<Partial, kSlices> partials{};
  context.pool().parallel_for(n, grain, [&](std::int64_t begin, std::int64_t end, int) {
    partials[static_cast<std::size_t>(begin / grain)] = slice_sum(begin, end);
  });
  Partial sum{};
  for (const Partial partial : partials) sum += partial;
  return sum;
}

// Returns term(begin) + ... + term(end - 1). Terms are doubles, and are accumulated in many vector lanes.
template <class Term>
PRIMUS_INLINE double sum_doubles(std::int64_t begin, std::int64_t end, Term term) {
  constexpr int kLanes = 32;
  double lanes[kLanes] = {};
  std::int64_t i = begin;
  for (; i + kLanes <= end; i += kLanes) {
    PRIMUS_SIMD()
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += term(i + lane);
  }
  for (int lane = 0; i < end; ++i, ++lane) lanes[lane] += term(i);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
}

// Sums rows into out[n]: add_row(line, row) adds the contribution of row `row` to line[0 .. n). Rows are
// divided into slices, which depend only on the number of rows. Each slice is summed row by row into its own
// line of the workspace. Then the lines are added in order. `out`: n elements of fp32 or bf16. For bf16, the
// fp32 sum is rounded once.
struct RowSlices {
  explicit RowSlices(std::int64_t rows) : rows_per_slice(std::max<std::int64_t>((rows + 255) / 256, 32)) {
    count = (rows + rows_per_slice - 1) / rows_per_slice;
  }
  std::int64_t rows_per_slice, count;
};

inline std::int64_t row_sum_workspace(std::int64_t rows, std::int64_t n) {
  return RowSlices(rows).count * n * static_cast<std::int64_t>(sizeof(float));
}

template <class AddRow>
void row_sum(const CpuContext& context, std::int64_t rows, std::int64_t n, float* workspace,
             const Tensor& out_tensor, bool accumulate, AddRow add_row) {
  const RowSlices slices(rows);
  context.pool().parallel_for(rows, slices.rows_per_slice, [&](std::int64_t begin, std::int64_t end, int) {
    float* line = workspace + begin / slices.rows_per_slice * n;
    std::fill_n(line, n, 0.0F);
    for (std::int64_t row = begin; row < end; ++row) add_row(line, row);
  });
  const std::int64_t bytes_per_column = slices.count * static_cast<std::int64_t>(sizeof(float));
  parallel_ranges(context, n, bytes_per_column, [&](std::int64_t begin, std::int64_t end) {
    with_float_type(out_tensor.dtype, [&](auto tag) {
      using T = decltype(tag);
      constexpr std::int64_t kColumns = 256;
      T* out = context.data<T>(out_tensor);
      for (std::int64_t at = begin; at < end; at += kColumns) {
        const std::int64_t count = std::min(kColumns, end - at);
        float sums[kColumns] = {};
        if (accumulate) {
          for (std::int64_t i = 0; i < count; ++i) sums[i] = to_float(out[at + i]);
        }
        for (std::int64_t slice = 0; slice < slices.count; ++slice) {
          const float* line = workspace + slice * n + at;
          PRIMUS_SIMD()
          for (std::int64_t i = 0; i < count; ++i) sums[i] += line[i];
        }
        for (std::int64_t i = 0; i < count; ++i) out[at + i] = from_float<T>(sums[i]);
      }
    });
  });
}

}  // namespace primus::turbo::PRIMUS_CPU_ISA
