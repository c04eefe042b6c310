#include "turbo/router/router.h"

#include <cassert>

namespace primus::turbo {
namespace {

[[maybe_unused]] bool is_float(const Tensor& tensor) {
  return tensor.dtype == DType::kF32 || tensor.dtype == DType::kBF16;
}

[[maybe_unused]] bool is_logits(const Tensor& logits) {
  return logits.dtype == DType::kF32 && logits.shape.rank() == 2 && logits.cols() <= RouterRule::kMaxExperts;
}

[[maybe_unused]] bool is_slots(const Tensor& slots, DType dtype, const Tensor& logits, std::int32_t top_k) {
  return slots.dtype == dtype && slots.shape == Shape{logits.rows(), top_k};
}

[[maybe_unused]] bool fits(const RouterRule& rule, const Tensor& logits) {
  return is_logits(logits) && rule.top_k >= 1 && rule.top_k <= RouterRule::kMaxTopK && rule.groups >= 1 &&
         rule.groups <= RouterRule::kMaxTopK && logits.cols() % rule.groups == 0 && rule.top_groups >= 1 &&
         rule.top_groups <= rule.groups && rule.top_k <= logits.cols() / rule.groups * rule.top_groups;
}

[[maybe_unused]] bool is_load(const Tensor& load, const Tensor& logits) {
  return load.dtype == DType::kI32 && load.shape.rank() == 2 && load.cols() == logits.cols() &&
         load.rows() > 0 && logits.rows() % load.rows() == 0;
}

}  // namespace

void RouterInput::check() const {
  assert(is_float(x) && is_float(out) && x.shape == out.shape);
  assert(previous.absent() || (previous.dtype == out.dtype && previous.shape == out.shape));
}

void RouterForward::check() const {
  assert(fits(rule, logits));
  assert(bias.absent() || (bias.dtype == DType::kF32 && bias.elements() == logits.cols()));
  assert(given.absent() || is_slots(given, DType::kI32, logits, rule.top_k));
  assert(is_slots(experts, DType::kI32, logits, rule.top_k));
  assert(is_slots(weights, DType::kF32, logits, rule.top_k));
}

void RouterLoad::check() const {
  assert(is_logits(logits) && is_load(load, logits));
  assert(top_k >= 1 && top_k <= RouterRule::kMaxTopK && top_k <= logits.cols());
  assert(chosen.absent() ||
         (chosen.dtype == DType::kI32 && chosen.rows() == logits.rows() && chosen.cols() == top_k));
}

void RouterLosses::check() const {
  assert(fits(rule, logits) && (load.absent() || is_load(load, logits)));
  assert(losses.dtype == DType::kF32 && losses.elements() == 2);
}

void RouterBackward::check() const {
  assert(fits(rule, logits) && (load.absent() || is_load(load, logits)));
  assert(is_slots(experts, DType::kI32, logits, rule.top_k));
  assert(is_slots(d_weights, DType::kF32, logits, rule.top_k));
  assert(d_logits.dtype == DType::kF32 && d_logits.shape == logits.shape);
  assert(previous.absent() || (previous.dtype == DType::kF32 && previous.shape == logits.shape));
}

void ExpertLoad::check() const {
  assert(experts.dtype == DType::kI32 && rows.dtype == DType::kI32 && rows.shape == experts.shape);
  assert(load.dtype == DType::kI32);
}

void ExpertBiasUpdate::check() const {
  assert(load.dtype == DType::kI32 && bias.dtype == DType::kF32 && load.elements() == bias.elements() + 1);
}

}  // namespace primus::turbo
