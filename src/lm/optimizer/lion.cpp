// Lion (Chen et al., 2023).
#include "turbo/lion/lion.h"

#include "config/trainer_config.h"
#include "lm/optimizer/update_rule.h"

namespace primus {
namespace {

class LionRule final : public UpdateRule {
 public:
  LionRule(double beta1, double beta2) : beta1_(beta1), beta2_(beta2) {}

  std::string_view name() const override { return "lion"; }
  std::vector<engine::StateSpec> states() const override { return {{"exp_avg"}}; }

  void update(const UnitUpdate& u) const override {
    for (const UpdateRun& run : update_runs(u)) {
      turbo::launch(u.rank.context(), turbo::Lion{.param = run.param,
                                                  .grad = run.gradient,
                                                  .exp_avg = run.states[0],
                                                  .grad_scale = u.gradient_scale,
                                                  .working = run.working,
                                                  .remainder = run.remainder,
                                                  .scalars = u.scalars,
                                                  .beta1 = static_cast<float>(beta1_),
                                                  .beta2 = static_cast<float>(beta2_),
                                                  .weight_decay_factor = run.decay_factor});
    }
  }

 private:
  double beta1_, beta2_;
};

UpdateRules make_rules(const config::TrainerConfig& c) {
  return {std::make_shared<LionRule>(c.lion_beta1, c.lion_beta2)};
}

}  // namespace

extern const OptimizerEntry kLion{.name = "lion", .title = "Lion", .make = make_rules};

}  // namespace primus
