#include "turbo/moe_permute/moe_permute.h"

#include "turbo/check.h"

namespace primus::turbo {
namespace {

bool is_slots_of(const Tensor& slots, DType dtype, const Tensor& rows) {
  return slots.absent() || (slots.dtype == dtype && slots.shape == rows.shape);
}

}  // namespace

void PlanRouting::check() const {
  PRIMUS_CHECK(kId, experts.dtype == DType::kI32 && experts.shape.rank() == 2);
  PRIMUS_CHECK(kId, is_slots_of(weights, DType::kF32, experts));
  PRIMUS_CHECK(kId, is_slots_of(kept, DType::kI32, experts));
  PRIMUS_CHECK(kId, plan.dtype == DType::kI32);
  const std::int64_t maximum = RoutingPlan::shape(expert_count, experts.shape[0], experts.shape[1])[0];
  PRIMUS_CHECK(kId, plan.elements() == maximum || (partial() && plan.elements() < maximum));
  PRIMUS_CHECK(kId,
               plan.elements() > expert_count + experts.elements() && (maximum - plan.elements()) % 2 == 0);
  PRIMUS_CHECK(kId, all == 0 ? first == 0 : first >= 0 && first + expert_count <= all);
  PRIMUS_CHECK(kId, head.absent() == rest.absent());
  PRIMUS_CHECK(kId, head.absent() || (head.dtype == DType::kI32 && rest.dtype == DType::kI32 &&
                                      head.elements() >= expert_count + 1 + experts.elements() &&
                                      (plan.elements() - head.elements()) % 2 == 0 &&
                                      head.elements() <= plan.elements() && rest.shape == plan.shape));
  PRIMUS_CHECK(kId, capacity >= 0 && sequences > 0 && experts.shape[0] % sequences == 0);
}

void PlanDispatch::check() const {
  PRIMUS_CHECK(kId, experts.dtype == DType::kI32 && experts.shape.rank() == 2);
  PRIMUS_CHECK(kId, is_slots_of(kept, DType::kI32, experts));
  PRIMUS_CHECK(kId, ranks > 0 && rank >= 0 && rank < ranks && experts.shape[0] % ranks == 0);
  PRIMUS_CHECK(kId, experts_of_rank > 0 && ranks_of_expert > 0 && first >= 0 && span > 0);
  PRIMUS_CHECK(kId, held.absent() || held.dtype == DType::kI32);
  PRIMUS_CHECK(kId, maximum >= 0 && maximum <= tokens());
  PRIMUS_CHECK(
      kId, plan.dtype == DType::kI32 &&
               plan.shape == DispatchPlan::shape(ranks, tokens(), experts.shape[1], maximum, held_rows()));
}

void GatherRows::check() const {
  PRIMUS_CHECK(kId, is_float(x) && out.dtype == x.dtype && out.cols() == x.cols());
  PRIMUS_CHECK(kId, rows.dtype == DType::kI32 && rows.shape.rank() == 2 && rows.shape[0] == x.rows());
  PRIMUS_CHECK(kId, slots.dtype == DType::kI32 && slots.elements() <= rows.elements());
  PRIMUS_CHECK(kId, offsets.dtype == DType::kI32 && out.rows() == slots.elements());
  PRIMUS_CHECK(kId, !weights.absent() && is_slots_of(weights, DType::kF32, rows));
}

void CombineRows::check() const {
  PRIMUS_CHECK(kId, is_float(x) && out.dtype == x.dtype && out.cols() == x.cols());
  PRIMUS_CHECK(kId, rows.dtype == DType::kI32 && rows.shape.rank() == 2);
  PRIMUS_CHECK(kId, out.rows() == rows.shape[0] && is_slots_of(weights, DType::kF32, rows));
  PRIMUS_CHECK(kId, previous.absent() || (same(previous, out)));
  PRIMUS_CHECK(kId, more.absent() == more_rows.absent());
  PRIMUS_CHECK(kId, more.absent() || (more.dtype == x.dtype && more.cols() == x.cols()));
  PRIMUS_CHECK(kId, is_slots_of(more_rows, DType::kI32, rows));
}

void RowDots::check() const {
  PRIMUS_CHECK(kId, is_float(by_token) && by_row.dtype == by_token.dtype && by_row.cols() == by_token.cols());
  PRIMUS_CHECK(kId, rows.dtype == DType::kI32 && rows.shape.rank() == 2 && rows.shape[0] == by_token.rows());
  PRIMUS_CHECK(kId, rows.elements() >= by_row.rows());
  PRIMUS_CHECK(kId, !out.absent() && is_slots_of(out, DType::kF32, rows));
  PRIMUS_CHECK(kId, is_slots_of(previous, DType::kF32, rows));
}

}  // namespace primus::turbo
