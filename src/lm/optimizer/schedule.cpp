#include "lm/optimizer/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "config/trainer_config.h"

namespace primus {
namespace {

double half_cosine(double ratio) { return 0.5 * (std::cos(std::numbers::pi * ratio) + 1.0); }

}  // namespace

Schedule::Schedule(const config::TrainerConfig& c, bool from_weights)
    : style_(c.lr_decay_style == "linear"                ? Style::kLinear
             : c.lr_decay_style == "cosine"              ? Style::kCosine
             : c.lr_decay_style == "inverse-square-root" ? Style::kInverseSquareRoot
             : c.lr_decay_style == "WSD"                 ? Style::kWsd
                                                         : Style::kConstant),
      anneal_(c.lr_wsd_decay_style == "linear"       ? Anneal::kLinear
              : c.lr_wsd_decay_style == "cosine"     ? Anneal::kCosine
              : c.lr_wsd_decay_style == "minus_sqrt" ? Anneal::kMinusSqrt
                                                     : Anneal::kExponential),
      max_(c.lr),
      min_(c.min_lr),
      warmup_(c.lr_warmup_fraction ? *c.lr_warmup_fraction * static_cast<double>(c.lr_decay_iters)
                                   : static_cast<double>(c.lr_warmup_iters)),
      initial_(c.lr_warmup_init.value_or(from_weights ? max_ / (warmup_ + 1) : 0.0)),
      decay_(static_cast<double>(c.lr_decay_iters)),
      wsd_decay_(static_cast<double>(c.lr_wsd_decay_iters.value_or(0))),
      start_weight_decay_(c.start_weight_decay.value_or(c.weight_decay)),
      end_weight_decay_(c.end_weight_decay.value_or(c.weight_decay)),
      train_iters_(static_cast<double>(c.train_iters)),
      increase_(c.weight_decay_incr_style == "linear"   ? Increase::kLinear
                : c.weight_decay_incr_style == "cosine" ? Increase::kCosine
                                                        : Increase::kConstant) {}

double Schedule::decay_coefficient(double steps) const {
  const double ratio = decay_ > warmup_ ? (steps - warmup_) / (decay_ - warmup_) : 1.0;
  if (style_ == Style::kLinear) return 1.0 - ratio;
  if (style_ == Style::kCosine) return half_cosine(ratio);
  // Warm-up-stable-decay: the rate is constant until the last wsd_decay_ steps.
  const double start = decay_ - wsd_decay_;
  if (steps <= start) return 1.0;
  const double part = (steps - start) / wsd_decay_;
  switch (anneal_) {
    case Anneal::kLinear:
      return 1.0 - part;
    case Anneal::kCosine:
      return half_cosine(part);
    case Anneal::kMinusSqrt:
      return 1.0 - std::sqrt(part);
    case Anneal::kExponential:
      break;
  }
  return 2.0 * std::pow(0.5, part) - 1.0;
}

double Schedule::learning_rate_at(double steps) const {
  if (warmup_ > 0 && steps <= warmup_) return initial_ + (max_ - initial_) * steps / warmup_;
  if (style_ == Style::kConstant) return max_;
  if (steps > decay_) return min_;
  if (style_ == Style::kInverseSquareRoot) {
    return std::max(min_, max_ * std::sqrt(std::max(warmup_, 1.0)) / std::sqrt(std::max(steps, 1.0)));
  }
  return min_ + decay_coefficient(steps) * (max_ - min_);
}

double Schedule::weight_decay_at(double steps) const {
  if (increase_ == Increase::kConstant || steps > train_iters_) return end_weight_decay_;
  const double ratio = steps / train_iters_;
  const double coefficient = increase_ == Increase::kLinear ? ratio : half_cosine(1.0 - ratio);
  return start_weight_decay_ + coefficient * (end_weight_decay_ - start_weight_decay_);
}

}  // namespace primus
