#include "turbo/adamw/adamw.h"

#include <cmath>

#include "lm/optimizer/update_rule.h"

namespace primus {
namespace {

class AdamWRule final : public UpdateRule {
 public:
  explicit AdamWRule(const AdamSettings& settings) : settings_(settings) {}

  std::vector<engine::StateSpec> states() const override { return {{"exp_avg"}, {"exp_avg_sq"}}; }

  void set_scalars(std::int64_t step, std::span<double, turbo::kStepScalars> scalars) const override {
    const auto t = static_cast<double>(step);
    scalars[index(turbo::StepScalar::kBias1)] = 1 - std::pow(settings_.beta1, t);
    scalars[index(turbo::StepScalar::kBias2)] = 1 - std::pow(settings_.beta2, t);
  }

  void update(turbo::Context& context, engine::ParameterUnit& unit, const Tensor& gradient_scale,
              const Tensor& scalars) const override {
    const auto run = [&](const engine::FlatRange& elements, float decay_factor) {
      const engine::FlatRange range = elements.intersect(unit.shard);
      if (range.empty()) return;
      const auto part = [&](const Tensor& of_shard) {
        return of_shard.slice(range.begin - unit.shard.begin, range.end - unit.shard.begin);
      };
      turbo::launch(context,
                    turbo::AdamW{.param = part(unit.master),
                                 .grad = part(unit.reduced),
                                 .exp_avg = part(unit.states[0]),
                                 .exp_avg_sq = part(unit.states[1]),
                                 .grad_scale = gradient_scale,
                                 .working = unit.dtype == DType::kF32 ? Tensor() : part(unit.stored_values),
                                 .scalars = scalars,
                                 .beta1 = static_cast<float>(settings_.beta1),
                                 .beta2 = static_cast<float>(settings_.beta2),
                                 .eps = static_cast<float>(settings_.epsilon),
                                 .weight_decay_factor = decay_factor});
    };
    run({0, unit.decayed_elements}, 1);
    run({unit.decayed_elements, unit.elements}, settings_.decay_all_parameters ? 1 : 0);
  }

 private:
  AdamSettings settings_;
};

}  // namespace

AdamSettings AdamSettings::from(const config::TrainerConfig& c) {
  return {.beta1 = c.adam_beta1, .beta2 = c.adam_beta2, .epsilon = c.adam_eps, .clip_norm = c.clip_grad};
}

std::unique_ptr<UpdateRule> adamw_rule(const AdamSettings& settings) {
  return std::make_unique<AdamWRule>(settings);
}

}  // namespace primus
