#include "turbo/sgd/sgd.h"

#include "lm/optimizer/update_rule.h"

namespace primus {
namespace {

class SgdRule final : public UpdateRule {
 public:
  SgdRule(double momentum, bool decay_all) : momentum_(momentum), decay_all_(decay_all) {}

  std::string_view name() const override { return "sgd"; }
  std::vector<engine::StateSpec> states() const override {
    return momentum_ == 0 ? std::vector<engine::StateSpec>{}
                          : std::vector<engine::StateSpec>{{"momentum_buffer"}};
  }

  void update(const UnitUpdate& u) const override {
    for (const UpdateRun& run : update_runs(u, decay_all_)) {
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
  bool decay_all_;
};

}  // namespace

std::unique_ptr<UpdateRule> sgd_rule(double momentum, bool decay_all) {
  return std::make_unique<SgdRule>(momentum, decay_all);
}

}  // namespace primus
