#include "turbo/router/router.h"

#include "turbo/check.h"
#include "turbo/step_scalars.h"

namespace primus::turbo {
namespace {

bool is_logits(const Tensor& logits) {
  return logits.dtype == DType::kF32 && logits.shape.rank() == 2 && logits.cols() <= RouterRule::kMaxExperts;
}

bool is_slots(const Tensor& slots, DType dtype, const Tensor& logits, std::int32_t top_k) {
  return slots.dtype == dtype && slots.shape == Shape{logits.rows(), top_k};
}

bool is_load(const Tensor& load, const Tensor& logits) {
  return load.dtype == DType::kI32 && load.shape.rank() == 2 && load.cols() == logits.cols() &&
         load.rows() > 0 && logits.rows() % load.rows() == 0;
}

bool is_random(const RouterRandom& random, std::int64_t tokens) {
  return random.given() && is_step_scalars(random.scalars) && random.tokens.dtype == DType::kI32 &&
         random.tokens.elements() == tokens;
}

// Returns whether the rule is within the limits of the kernels, whose arrays for the scores of a token have a
// fixed size.
bool is_rule(const RouterRule& rule, const Tensor& logits) {
  return is_logits(logits) && rule.fits(logits.cols());
}

}  // namespace

bool RouterRule::fits(std::int64_t experts) const {
  return experts >= 1 && experts <= kMaxExperts && groups >= 1 && groups <= kMaxTopK &&
         experts % groups == 0 && top_groups >= 1 && top_groups <= groups && top_k >= 1 &&
         top_k <= kMaxTopK && top_k <= experts / groups * top_groups;
}

void RouterJitter::check() const {
  PRIMUS_CHECK(kId, is_float(x) && is_float(out) && x.shape == out.shape && jitter > 0);
  PRIMUS_CHECK(kId, is_random(random, x.rows()));
  PRIMUS_CHECK(kId, previous.absent() || (same(previous, out)));
}

void RouterForward::check() const {
  PRIMUS_CHECK(kId, is_rule(rule, logits));
  PRIMUS_CHECK(kId, bias.absent() || (bias.dtype == DType::kF32 && bias.elements() == logits.cols()));
  PRIMUS_CHECK(kId, rule.forced != RouterRule::Forced::kUniform || is_random(random, logits.rows()));
  PRIMUS_CHECK(kId, given.absent() || is_slots(given, DType::kI32, logits, rule.top_k));
  PRIMUS_CHECK(kId, is_slots(experts, DType::kI32, logits, rule.top_k));
  PRIMUS_CHECK(kId, is_slots(weights, DType::kF32, logits, rule.top_k));
}

void RouterTable::check() const {
  PRIMUS_CHECK(kId, table.dtype == DType::kF32 && table.shape.rank() == 2);
  PRIMUS_CHECK(kId, tokens.dtype == DType::kI32 && experts.dtype == DType::kI32);
  PRIMUS_CHECK(kId, experts.shape == Shape{tokens.elements(), table.cols()});
}

void RouterLoad::check() const {
  PRIMUS_CHECK(kId, is_logits(logits) && is_load(load, logits));
  PRIMUS_CHECK(kId, top_k >= 1 && top_k <= RouterRule::kMaxTopK && top_k <= logits.cols());
  PRIMUS_CHECK(kId, chosen.absent() || is_slots(chosen, DType::kI32, logits, top_k));
}

void RouterLosses::check() const {
  PRIMUS_CHECK(kId, is_rule(rule, logits));
  PRIMUS_CHECK(kId, load.absent() || is_load(load, logits));
  PRIMUS_CHECK(kId, losses.dtype == DType::kF32 && losses.elements() == 2);
}

void RouterBackward::check() const {
  PRIMUS_CHECK(kId, is_rule(rule, logits));
  PRIMUS_CHECK(kId, load.absent() || is_load(load, logits));
  PRIMUS_CHECK(kId, is_slots(experts, DType::kI32, logits, rule.top_k));
  PRIMUS_CHECK(kId, is_slots(d_weights, DType::kF32, logits, rule.top_k));
  PRIMUS_CHECK(kId, d_logits.dtype == DType::kF32 && d_logits.shape == logits.shape);
  PRIMUS_CHECK(kId, previous.absent() || (previous.dtype == DType::kF32 && previous.shape == logits.shape));
}

void ExpertLoad::check() const {
  PRIMUS_CHECK(kId, experts.dtype == DType::kI32 && rows.dtype == DType::kI32 && rows.shape == experts.shape);
  PRIMUS_CHECK(kId, load.shape.rank() == 1 && load.dtype == DType::kI32);
}

void RunningLoad::check() const {
  PRIMUS_CHECK(kId, load.dtype == DType::kI32 && load.shape.rank() == 2 && load.shape[0] == 1);
  PRIMUS_CHECK(kId, is_vector(running, DType::kI32, load.shape[1]));
}

void ExpertBiasUpdate::check() const {
  PRIMUS_CHECK(
      kId, load.dtype == DType::kI32 && bias.dtype == DType::kF32 && load.elements() == bias.elements() + 1);
}

}  // namespace primus::turbo
