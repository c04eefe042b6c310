// SGD with momentum, as in torch.optim.SGD; without momentum, SGD keeps no state.
#include "turbo/sgd/sgd.h"

#include "config/trainer_config.h"
#include "lm/optimizer/update_rule.h"

namespace primus {
namespace {

class SgdRule final : public UpdateRule {
 public:
  explicit SgdRule(double momentum) : momentum_(momentum) {}

  std::string_view name() const override { return "sgd"; }
  std::vector<engine::StateSpec> states() const override {
    return momentum_ == 0 ? std::vector<engine::StateSpec>{}
                          : std::vector<engine::StateSpec>{{"momentum_buffer"}};
  }

  void update(const UnitUpdate& u) const override {
    for (const UpdateRun& run : update_runs(u)) {
      turbo::launch(u.rank.context(),
                    turbo::SgdMomentum{.param = run.param,
                                       .grad = run.gradient,
                                       .momentum_buffer = run.states.empty() ? Tensor() : run.states[0],
                                       .grad_scale = u.gradient_scale,
                                       .working = run.working,
                                       .remainder = run.remainder,
                                       .scalars = u.scalars,
                                       .momentum = static_cast<float>(momentum_),
                                       .weight_decay_factor = run.decay_factor});
    }
  }

 private:
  double momentum_;
};

UpdateRules make_rules(const config::TrainerConfig& c) { return {std::make_shared<SgdRule>(c.sgd_momentum)}; }

}  // namespace

extern const OptimizerEntry kSgd{.name = "sgd", .title = "SGD", .make = make_rules};

}  // namespace primus
