// Decides which picked rows a grouped GEMM first copies to contiguous memory. The copy saves time on GPUs
// that read contiguous rows faster than scattered rows (Hopper's warpgroups).
#pragma once

#include <algorithm>
#include <cstdint>

#include "turbo/grouped_linear/grouped_linear.h"

namespace primus::turbo {

struct GatheredRows {
  // The operand whose rows may be copied: a or b of the call. Null: no rows are copied.
  const Tensor* operand = nullptr;
  bool gathers = false;
  // Number of rows for which the workspace has room. A call with more rows has at least the same room.
  std::int64_t room = 0;

  std::int64_t bytes() const { return operand ? room * operand->cols() * size_of(operand->dtype) : 0; }
};

// Returns the rows to copy. A copy saves time if many tiles read each row, or if the rows have few bytes
// compared with the weights.
inline GatheredRows gathered_rows(const GroupedGemm& call) {
  constexpr std::int64_t kManyCols = 4096;  // a copy saves time if the other operand has so many columns
  constexpr std::int64_t kShare = 20;  // with fewer, a copy moves at most (bytes of the weights) / kShare
  const bool a = !call.a_rows.absent(), b = !call.b_rows.absent(), forward = call.role == GemmRole::kForward;
  if (call.a.dtype != DType::kBF16 || a == b) return {};
  const Tensor &operand = a ? call.a : call.b, &other = a ? call.b : call.a;
  const std::int64_t rows = call.rows(), cols = forward ? other.shape[1] : other.cols();
  if (cols >= kManyCols) return {&operand, true, rows};
  const std::int64_t few = forward ? other.shape[0] * cols / (2 * kShare) : 0;
  return {&operand, rows <= few, std::min(rows, few)};
}

}  // namespace primus::turbo
