#include "lm/train/objectives/rules/dft_rule.h"

#include <array>

#include "lm/train/step/session.h"
#include "turbo/preference_loss/preference_loss.h"

namespace primus {
namespace {

class DftRule final : public LossRule {
 public:
  // DocumentWeights has one slope per document. One document with slope -1 covers all tokens of a microbatch.
  void prepare(TrainingSession& session) override {
    engine::Rank& rank = session.rank();
    slopes_ = rank.persistent(DType::kF32, {1, 2});
    starts_ = rank.persistent(DType::kI32, {2});
    if (rank.measuring()) return;
    const StepSettings& step = session.settings().step;
    const std::int64_t tokens = step.micro_batch * step.sequence / rank.mesh().shape().context;
    const std::array<float, 2> slopes = {-1, 0};
    const std::array<std::int32_t, 2> starts = {0, static_cast<std::int32_t>(tokens)};
    rank.compute().copy_to_device(slopes_.data, slopes.data(), slopes_.bytes());
    rank.compute().copy_to_device(starts_.data, starts.data(), starts_.bytes());
    rank.compute().synchronize();  // waits for the copies, because the host arrays end here
  }

  void weigh(const TokenLosses& tokens) override {
    turbo::launch(tokens.rank.context(), turbo::DocumentWeights{.slopes = slopes_,
                                                                .factors = tokens.weights,
                                                                .likelihood_factors = {},
                                                                .starts = starts_,
                                                                .weights = tokens.weights,
                                                                .losses = tokens.losses});
  }

 private:
  Tensor slopes_, starts_;
};

}  // namespace

MakeLossRule dft_rule() {
  return [] { return std::make_unique<DftRule>(); };
}

}  // namespace primus
