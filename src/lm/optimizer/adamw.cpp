// AdamW: decoupled weight decay (Loshchilov and Hutter, 2019).
#include "turbo/adamw/adamw.h"

#include <cmath>

#include "config/trainer_config.h"
#include "lm/optimizer/update_rule.h"

namespace primus {
namespace {

struct AdamSettings {
  double beta1, beta2, epsilon;
  DType first_moment, second_moment;  // types of the moments, as in turbo::AdamW
};

class AdamWRule final : public UpdateRule {
 public:
  explicit AdamWRule(const AdamSettings& settings) : settings_(settings) {}

  std::string_view name() const override { return "adam"; }
  std::vector<engine::StateSpec> states() const override {
    return {{"exp_avg", settings_.first_moment}, {"exp_avg_sq", settings_.second_moment}};
  }

  void set_scalars(std::int64_t step, std::span<double, turbo::kStepScalars> scalars) const override {
    const auto t = static_cast<double>(step);
    scalars[index(turbo::StepScalar::kBias1)] = 1 - std::pow(settings_.beta1, t);
    scalars[index(turbo::StepScalar::kBias2)] = 1 - std::pow(settings_.beta2, t);
  }

  void update(const UnitUpdate& u) const override {
    for (const UpdateRun& run : update_runs(u)) {
      turbo::launch(u.rank.context(), turbo::AdamW{.param = run.param,
                                                   .grad = run.gradient,
                                                   .exp_avg = run.states[0],
                                                   .exp_avg_sq = run.states[1],
                                                   .grad_scale = u.gradient_scale,
                                                   .working = run.working,
                                                   .remainder = run.remainder,
                                                   .exp_avg_scale = run.scales[0],
                                                   .exp_avg_sq_scale = run.scales[1],
                                                   .scalars = u.scalars,
                                                   .beta1 = static_cast<float>(settings_.beta1),
                                                   .beta2 = static_cast<float>(settings_.beta2),
                                                   .eps = static_cast<float>(settings_.epsilon),
                                                   .weight_decay_factor = run.decay_factor,
                                                   .rounding_stream = run.stream,
                                                   .first_element = run.first_element});
    }
  }

 private:
  AdamSettings settings_;
};

UpdateRules make_rules(const config::TrainerConfig& c) {
  const auto type = [](const std::string& name, DType in_8_bits) {
    return name == "fp8" ? in_8_bits : name == "bf16" ? DType::kBF16 : DType::kF32;
  };
  return {std::make_shared<AdamWRule>(AdamSettings{.beta1 = c.adam_beta1,
                                                   .beta2 = c.adam_beta2,
                                                   .epsilon = c.adam_eps,
                                                   .first_moment = type(c.exp_avg_dtype, DType::kF8E4M3),
                                                   .second_moment = type(c.exp_avg_sq_dtype, DType::kU8)})};
}

}  // namespace

extern const OptimizerEntry kAdamW{.name = "adam", .title = "AdamW", .make = make_rules};

}  // namespace primus
