#include "turbo/moe_permute/moe_permute.h"

#include <cassert>

namespace primus::turbo {
namespace {

[[maybe_unused]] bool is_float(const Tensor& tensor) {
  return tensor.dtype == DType::kF32 || tensor.dtype == DType::kBF16;
}

[[maybe_unused]] bool is_slots_of(const Tensor& slots, DType dtype, const Tensor& rows) {
  return slots.absent() || (slots.dtype == dtype && slots.shape == rows.shape);
}

}  // namespace

void PlanRouting::check() const {
  assert(experts.dtype == DType::kI32 && experts.shape.rank() == 2);
  assert(is_slots_of(weights, DType::kF32, experts));
  assert(plan.dtype == DType::kI32);
  assert(plan.shape == RoutingPlan::shape(expert_count, experts.shape[0], experts.shape[1]));
  assert(capacity >= 0 && sequences > 0 && experts.shape[0] % sequences == 0);
}

void GatherRows::check() const {
  assert(is_float(x) && out.dtype == x.dtype && out.cols() == x.cols());
  assert(rows.dtype == DType::kI32 && rows.shape.rank() == 2 && rows.shape[0] == x.rows());
  assert(slots.elements() == rows.elements() && out.rows() == rows.elements());
  assert(!weights.absent() && is_slots_of(weights, DType::kF32, rows));
}

void CombineRows::check() const {
  assert(is_float(x) && out.dtype == x.dtype && out.cols() == x.cols());
  assert(rows.dtype == DType::kI32 && rows.shape.rank() == 2 && rows.elements() == x.rows());
  assert(out.rows() == rows.shape[0] && is_slots_of(weights, DType::kF32, rows));
  assert(previous.absent() || (previous.dtype == out.dtype && previous.shape == out.shape));
}

void RowDots::check() const {
  assert(is_float(by_token) && by_row.dtype == by_token.dtype && by_row.cols() == by_token.cols());
  assert(rows.dtype == DType::kI32 && rows.shape.rank() == 2 && rows.shape[0] == by_token.rows());
  assert(rows.elements() == by_row.rows() && is_slots_of(out, DType::kF32, rows));
  assert(is_slots_of(previous, DType::kF32, rows));
}

}  // namespace primus::turbo
