#include "turbo/lion/lion.h"

#include "lm/optimizer/update_rule.h"

namespace primus {
namespace {

class LionRule final : public UpdateRule {
 public:
  LionRule(const LionSettings& settings, bool decay_all) : settings_(settings), decay_all_(decay_all) {}

  std::string_view name() const override { return "lion"; }
  std::vector<engine::StateSpec> states() const override { return {{"exp_avg"}}; }

  void update(const UnitUpdate& u) const override {
    for (const UpdateRun& run : update_runs(u, decay_all_)) {
      turbo::launch(u.rank.context(), turbo::Lion{.param = run.param,
                                                  .grad = run.gradient,
                                                  .exp_avg = run.states[0],
                                                  .grad_scale = u.gradient_scale,
                                                  .working = run.working,
                                                  .remainder = run.remainder,
                                                  .scalars = u.scalars,
                                                  .beta1 = static_cast<float>(settings_.beta1),
                                                  .beta2 = static_cast<float>(settings_.beta2),
                                                  .weight_decay_factor = run.decay_factor});
    }
  }

 private:
  LionSettings settings_;
  bool decay_all_;
};

}  // namespace

std::unique_ptr<UpdateRule> lion_rule(const LionSettings& settings, bool decay_all) {
  return std::make_unique<LionRule>(settings, decay_all);
}

}  // namespace primus
