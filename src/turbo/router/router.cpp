#include "turbo/router/router.h"

#include <cassert>
#include <stdexcept>
#include <string>

#include "turbo/step_scalars.h"

namespace primus::turbo {
namespace {

// Kernels keep a token's scores in arrays of fixed size: what is larger must not get there in any build.
void require(bool condition, const char* what) {
  if (!condition) throw std::logic_error(std::string("router: ") + what);
}

[[maybe_unused]] bool is_float(const Tensor& tensor) {
  return tensor.dtype == DType::kF32 || tensor.dtype == DType::kBF16;
}

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

void require_rule(const RouterRule& rule, const Tensor& logits) {
  require(is_logits(logits) && rule.fits(logits.cols()), "the rule does not fit the experts");
}

}  // namespace

bool RouterRule::fits(std::int64_t experts) const {
  return experts >= 1 && experts <= kMaxExperts && groups >= 1 && groups <= kMaxTopK &&
         experts % groups == 0 && top_groups >= 1 && top_groups <= groups && top_k >= 1 &&
         top_k <= kMaxTopK && top_k <= experts / groups * top_groups;
}

void RouterJitter::check() const {
  assert(is_float(x) && is_float(out) && x.shape == out.shape && jitter > 0);
  require(is_random(random, x.rows()), "random");
  assert(previous.absent() || (previous.dtype == out.dtype && previous.shape == out.shape));
}

void RouterForward::check() const {
  require_rule(rule, logits);
  require(bias.absent() || (bias.dtype == DType::kF32 && bias.elements() == logits.cols()), "bias");
  require(rule.forced != RouterRule::Forced::kUniform || is_random(random, logits.rows()), "random");
  require(given.absent() || is_slots(given, DType::kI32, logits, rule.top_k), "given experts");
  require(is_slots(experts, DType::kI32, logits, rule.top_k), "experts");
  require(is_slots(weights, DType::kF32, logits, rule.top_k), "weights");
}

void RouterLoad::check() const {
  require(is_logits(logits) && is_load(load, logits), "load");
  require(top_k >= 1 && top_k <= RouterRule::kMaxTopK && top_k <= logits.cols(), "top_k");
  require(chosen.absent() || is_slots(chosen, DType::kI32, logits, top_k), "chosen");
}

void RouterLosses::check() const {
  require_rule(rule, logits);
  require(load.absent() || is_load(load, logits), "load");
  require(losses.dtype == DType::kF32 && losses.elements() == 2, "losses");
}

void RouterBackward::check() const {
  require_rule(rule, logits);
  require(load.absent() || is_load(load, logits), "load");
  require(is_slots(experts, DType::kI32, logits, rule.top_k), "experts");
  require(is_slots(d_weights, DType::kF32, logits, rule.top_k), "d_weights");
  require(d_logits.dtype == DType::kF32 && d_logits.shape == logits.shape, "d_logits");
  require(previous.absent() || (previous.dtype == DType::kF32 && previous.shape == logits.shape), "previous");
}

void ExpertLoad::check() const {
  assert(experts.dtype == DType::kI32 && rows.dtype == DType::kI32 && rows.shape == experts.shape);
  assert(load.dtype == DType::kI32);
}

void ExpertBiasUpdate::check() const {
  assert(load.dtype == DType::kI32 && bias.dtype == DType::kF32 && load.elements() == bias.elements() + 1);
}

}  // namespace primus::turbo
