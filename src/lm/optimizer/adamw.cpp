#include "turbo/adamw/adamw.h"

#include <cmath>

#include "lm/optimizer/update_rule.h"

namespace primus {
namespace {

class AdamWRule final : public UpdateRule {
 public:
  AdamWRule(const AdamSettings& settings, bool decay_all) : settings_(settings), decay_all_(decay_all) {}

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
    for (const UpdateRun& run : update_runs(u, decay_all_)) {
      turbo::launch(u.rank.context(), turbo::AdamW{.param = run.param,
                                                   .grad = run.gradient,
                                                   .exp_avg = run.states[0],
                                                   .exp_avg_sq = run.states[1],
                                                   .grad_scale = u.gradient_scale,
                                                   .working = run.working,
                                                   .remainder = run.remainder,
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
  bool decay_all_;
};

}  // namespace

std::unique_ptr<UpdateRule> adamw_rule(const AdamSettings& settings, bool decay_all) {
  return std::make_unique<AdamWRule>(settings, decay_all);
}

}  // namespace primus
