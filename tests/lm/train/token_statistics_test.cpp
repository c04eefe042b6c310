// Tests losses that read or weigh the entropies of the tokens' distributions: gradients equal finite
// differences, and every mesh gives the results of one device.
#include "lm/train/finite_differences.h"
#include "lm/train/rank_training.h"

namespace primus {
namespace {

using test::TestBatch;
using test::tiny_llama;
using test::tiny_settings;

// Adds a bonus for the entropy of each learned token. The weight of a token's loss grows with the probability
// that two samples of its distribution are equal. Works only on the CPU, where the host may read and write
// device memory between kernels.
class EntropyRule final : public LossRule {
 public:
  // `by_collisions`: the weights depend on the model, but are constants for the gradient.
  explicit EntropyRule(bool by_collisions) : by_collisions_(by_collisions) {}
  TokenNeeds needs() const override { return {.statistics = true, .entropy_weights = true}; }
  void weigh(const TokenLosses& tokens) override {
    EXPECT_EQ(tokens.entropies.elements(), tokens.losses.elements());
    if (tokens.rank.measuring()) return;
    tokens.rank.compute().synchronize();
    auto* const weights = static_cast<float*>(tokens.weights.data);
    auto* const bonus = static_cast<float*>(tokens.entropy_weights.data);
    const auto* const entropies = static_cast<const float*>(tokens.entropies.data);
    const auto* const collisions = static_cast<const float*>(tokens.collisions.data);
    for (std::int64_t t = 0; t < tokens.losses.elements(); ++t) {
      EXPECT_EQ(bonus[t], 0);
      EXPECT_GT(entropies[t], 0);
      EXPECT_GE(collisions[t], std::exp(-entropies[t]) * 0.9999F);  // Jensen's inequality
      bonus[t] = -0.5F * weights[t];
      if (by_collisions_) weights[t] *= 1 + collisions[t];
      if (t % 3 == 0) weights[t] = 0;  // only the entropy counts
    }
  }

 private:
  bool by_collisions_;
};

SessionSettings with_entropies(const ModelConfig& model, bool by_collisions) {
  SessionSettings settings = tiny_settings(DType::kF32, model);
  settings.evaluation = false;
  settings.loss_rule = [by_collisions] { return std::make_unique<EntropyRule>(by_collisions); };
  return settings;
}

TEST(TokenStatistics, GradientsOfEntropiesEqualFiniteDifferences) {
  for (const double cap : {0.0, 5.0}) {
    ModelConfig model = tiny_llama();
    model.logit_cap = cap;
    SessionSettings settings = with_entropies(model, false);
    settings.step.microbatches = 1;
    test::on_ranks(1, {}, [&](engine::Rank& rank) {
      const std::unique_ptr<TrainingSession> session = open_session(rank, settings, test::all_families());
      session->store().initialize(rank.context(), 7);
      const TestBatch batch(settings.step.micro_batch * settings.step.sequence, model.vocab, 3);
      test::expect_finite_differences(*session, [&] {
        session->step().begin(1);
        session->step().microbatch(0, batch);
        session->step().finish_gradients();
        return session->step().result().loss;
      });
    });
  }
}

TEST(TokenStatistics, EveryMeshIsOneDevice) {
  const std::vector<std::pair<int, engine::MeshShape>> meshes = {
      {2, {}}, {2, {.tensor = 2}}, {2, {.pipeline = 2}}, {4, {.tensor = 2, .pipeline = 2}}};
  const SessionSettings settings = with_entropies(tiny_llama(), true);
  const test::Outcome one = test::train_on_ranks(settings, 1, {}, 3, 4);
  for (const auto& [ranks, shape] : meshes) {
    SCOPED_TRACE(testing::Message() << ranks << " ranks, tensor " << shape.tensor << ", pipeline "
                                    << shape.pipeline);
    const test::Outcome many = test::train_on_ranks(settings, ranks, shape, 3, 4);
    for (std::size_t s = 0; s < one.losses.size(); ++s) {
      EXPECT_NEAR(many.losses[s], one.losses[s], 1e-5 * std::abs(one.losses[s]));
      EXPECT_NEAR(many.norms[s], one.norms[s], 1e-4 * one.norms[s]);
    }
  }
}

}  // namespace
}  // namespace primus
