// Tests policy gradients in training: every mesh gives the results of one device, adapters are their own
// reference, log-probabilities on the host are those of the step, and wrong settings are refused.
// tests/lm/verify compares the losses with TRL.
#include <gmock/gmock.h>

#include "base/error.h"
#include "lm/train/objective_training.h"
#include "lm/train/objectives/rules/held_tokens.h"
#include "lm/train/objectives/rules/policy_rule.h"
#include "lm/train/objectives/rules/token_log_probs.h"
#include "lm/train/objectives/rules/top_entropy.h"

namespace primus {
namespace {

using data::DocumentRole;
using test::every_mesh;
using test::expect_meshes_equal;
using test::on_ranks;
using test::TestBatch;
using test::tiny_llama;
using test::tiny_lora;
using test::tiny_settings;
using test::train;
using test::Trained;
using testing::HasSubstr;

// Returns two rows of 32 tokens with answers and padding. Log-probabilities of an untrained model are near
// -ln vocab.
data::Batch answers(std::int64_t number, bool has_old) {
  TestBatch batch(64, tiny_llama().vocab, static_cast<std::uint64_t>(number));
  batch.pack({0, 6, 15, 22, 26, 32, 39, 50, 53});
  constexpr DocumentRole kNone = DocumentRole::kNone, kAnswer = DocumentRole::kAnswer;
  batch.document_roles = {kAnswer, kAnswer, kAnswer, kAnswer, kNone, kAnswer, kAnswer, kNone, kAnswer};
  batch.document_values = {0.5F, -1, 2, 0.25F, 7, -0.5F, 1.5F, 7, -2};
  const auto level = static_cast<float>(-std::log(static_cast<double>(tiny_llama().vocab)));
  batch.sampled_log_probs.assign(64, 0);
  if (has_old) batch.old_log_probs.assign(64, 0);
  for (std::size_t d = 0; d < batch.document_roles.size(); ++d) {
    const auto begin = static_cast<std::size_t>(batch.document_starts[d]);
    const auto end = static_cast<std::size_t>(batch.document_starts[d + 1]);
    // The first labels are the prompt, and the last input of a document has no label.
    for (std::size_t t = begin; t < end; ++t) {
      batch.loss_mask[t] = batch.document_roles[d] == kAnswer && t >= begin + 1 && t + 1 < end ? 1.0F : 0.0F;
      batch.sampled_log_probs[t] = level + 0.02F * static_cast<float>(t % 5);
      if (has_old) batch.old_log_probs[t] = level + 0.03F * static_cast<float>(t % 4);
    }
  }
  return batch;
}

SessionSettings policy(const PolicySettings& policy, const ModelConfig& model = tiny_llama()) {
  SessionSettings settings = tiny_settings(DType::kF32, model);
  settings.evaluation = false;
  settings.step.sequence = 32;
  settings.step.packed_documents = true;
  settings.loss_rule = policy_rule(policy, [](TrainingSession& session, ModelInstance& reference) {
    reference.store().initialize(session.rank().context(), 8);
    reference.parallel().distribute_values();
  });
  return settings;
}

struct Case {
  const char* name;
  PolicySettings settings;
  bool has_old = true;
};

std::vector<Case> cases() {
  return {{"dapo, on policy", {}, false},
          {"grpo with a reference", {.loss_type = "grpo", .beta = 0.1}},
          {"bnpo with an entropy bonus", {.loss_type = "bnpo", .entropy = {.coef = 0.1}}},
          {"gspo with a correction",
           {.loss_type = "grpo",
            .importance_sampling_level = "sequence",
            .beta = 0.1,
            .vllm_importance_sampling_correction = true,
            .vllm_importance_sampling_mode = "sequence_truncate"}},
          {"vespo",
           {.loss_type = "vespo",
            .vllm_importance_sampling_correction = true,
            .vllm_importance_sampling_mode = "token_truncate"}},
          {"cispo with an off-policy mask",
           {.loss_type = "cispo", .epsilon_high = 5, .off_policy_mask_threshold = 0.05}},
          {"grpo with the tokens of the highest entropies",
           {.loss_type = "grpo", .beta = 0.1, .entropy = {.top_quantile = 0.4}}},
          {"rloo", {.method = PolicyMethod::kRloo}}};
}

void expect_one_device(const Case& c, const std::vector<std::pair<int, engine::MeshShape>>& meshes) {
  const auto batch = [&](std::int64_t number) { return answers(number, c.has_old); };
  const Trained one = train(policy(c.settings), batch, 1, {});
  ASSERT_EQ(one.losses.size(), 3U);
  EXPECT_GT(one.norms[0], 0) << c.name;
  expect_meshes_equal(one, policy(c.settings), batch, c.name, meshes);
}

// Each loss is trained on one mesh, and each mesh trains at least one loss.
TEST(PolicyGradients, EachLossIsOneDeviceOnAMesh) {
  const std::vector<Case> all = cases();
  const std::vector<std::pair<int, engine::MeshShape>> meshes = every_mesh();
  ASSERT_GE(all.size(), meshes.size());
  for (std::size_t i = 0; i < all.size(); ++i) expect_one_device(all[i], {meshes[i % meshes.size()]});
}

TEST(PolicyGradients, EveryMeshIsOneDevice) {
  for (const Case& c : cases()) expect_one_device(c, every_mesh());
}

// Expected values are those of torch.quantile(values, 1 - top).
TEST(TopEntropy, TheThresholdIsAQuantileOfAllValues) {
  const std::vector<float> values = {5, 1, 4, 2, 3};
  EXPECT_EQ(top_threshold(values, 1), 1);
  EXPECT_EQ(top_threshold(values, 0), 5);
  EXPECT_EQ(top_threshold(values, 0.5), 3);
  EXPECT_FLOAT_EQ(top_threshold(values, 0.4), 3.4F);
  EXPECT_FLOAT_EQ(top_threshold(values, 0.9), 1.4F);
  EXPECT_EQ(top_threshold({7}, 0.3), 7);
  EXPECT_EQ(top_threshold({}, 0.3), INFINITY);
  EXPECT_EQ(top_threshold({NAN, 2, NAN, 3, 1}, 0.5), 2);
  // In fp64, 1 - 0.8 is below 0.2, and the result would be below 3.
  std::vector<float> eleven;
  for (int i = 1; i <= 11; ++i) eleven.push_back(static_cast<float>(i));
  EXPECT_EQ(top_threshold(eleven, 0.8), 3);
}

// On policy, each chosen token has the loss -1 / (number of tokens) if all advantages are 1, so the loss
// counts the chosen tokens.
TEST(TopEntropy, TheQuantileCoversAllMicrobatchesOfAStep) {
  double tokens = 0;
  const auto batch = [](std::int64_t number) {
    data::Batch all = answers(number, false);
    all.document_values.assign(all.document_values.size(), 1);
    return all;
  };
  constexpr std::int64_t kMicrobatches = 4;
  for (std::int64_t i = 0; i < kMicrobatches; ++i) {
    for (const float mask : batch(i).loss_mask) tokens += mask;
  }
  for (const double top : {0.0, 0.25, 0.6}) {
    const double chosen = tokens - std::ceil((1 - top) * (tokens - 1));
    for (const int ranks : {1, 2}) {
      const Trained trained = train(policy({.entropy = {.top_quantile = top}}), batch, ranks, {});
      EXPECT_NEAR(trained.losses[0] * tokens, -chosen, 1e-4) << top;
    }
  }
}

// Adapters start at zero, so at first the divergence from the reference is 0. No second model exists.
TEST(PolicyGradients, AdaptersAreTheirOwnReference) {
  SessionSettings settings = policy({.beta = 0.1}, tiny_lora());
  settings.loss_rule = policy_rule({.beta = 0.1});
  const Trained trained = train(settings, [](std::int64_t number) { return answers(number, false); }, 1, {});
  ASSERT_EQ(trained.metrics[0].front().first, "kl");
  EXPECT_NEAR(trained.metrics[0].front().second, 0, 1e-9);
  EXPECT_GT(trained.metrics[2].front().second, 0);
}

TEST(HeldTokens, OneContextRankHoldsAllTokensOfOddSequences) {
  const HeldTokens held({}, {}, 3);
  const std::vector<float> all = {1, 2, 3, 4, 5, 6};
  EXPECT_EQ(held.select(all), all);
  std::vector<float> scattered(6);
  held.scatter(all, scattered);
  EXPECT_EQ(scattered, all);
  const std::vector<std::int32_t> starts = {0, 2, 3, 5, 6};
  EXPECT_EQ(held.starts(starts), starts);
}

// Records the log-probabilities on the host, and trains as policy_rule() does.
class Recorder final : public LossRule {
 public:
  Recorder(std::unique_ptr<LossRule> rule, std::vector<float>& found)
      : rule_(std::move(rule)), found_(found) {}
  void prepare(TrainingSession& session) override {
    log_probs_.emplace(session, ScoredModel{session.trained()});
    rule_->prepare(session);
  }
  void before_step(const BeforeStep& step) override {
    for (data::Batch& batch : step.batches) batch.old_log_probs = log_probs_->compute(batch);
    if (step.batches.empty()) log_probs_->compute({});
    if (step.session.rank().mesh().rank() == 0 && step.step == 1 && !step.batches.empty())
      found_ = step.batches[0].old_log_probs;
    rule_->before_step(step);
  }
  std::vector<std::string> metrics() const override { return rule_->metrics(); }
  void weigh(const TokenLosses& tokens) override { rule_->weigh(tokens); }

 private:
  std::unique_ptr<LossRule> rule_;
  std::vector<float>& found_;
  std::optional<TokenLogProbs> log_probs_;
};

// The old log-probabilities that TokenLogProbs computes are those of the step: ratios are 1, and the steps
// equal steps without old log-probabilities.
TEST(PolicyGradients, OldLogProbabilitiesAreThoseOfTheStep) {
  const auto batch = [](std::int64_t number) { return answers(number, false); };
  const Trained expected = train(policy({}), batch, 1, {});
  std::vector<float> first;
  for (const auto& [ranks, shape] : std::vector<std::pair<int, engine::MeshShape>>{
           {1, {}}, {2, {.context = 2}}, {2, {.pipeline = 2}}, {4, {.tensor = 2, .pipeline = 2}}}) {
    std::vector<float> found;
    SessionSettings settings = policy({});
    const MakeLossRule make = settings.loss_rule;
    settings.loss_rule = [&] { return std::make_unique<Recorder>(make(), found); };
    const Trained trained = train(settings, batch, ranks, shape);
    ASSERT_EQ(found.size(), 64U);
    if (first.empty()) first = found;
    for (std::size_t t = 0; t < found.size(); ++t) EXPECT_NEAR(found[t], first[t], 1e-5) << t;
    for (std::size_t s = 0; s < 3; ++s)
      EXPECT_NEAR(trained.norms[s], expected.norms[s], 1e-4 * expected.norms[s]);
  }
}

TEST(PolicyGradients, TemperatureDividesTheLogits) {
  ModelConfig model = tiny_llama();
  model.logit_divisor = 2;
  EXPECT_EQ(with_temperature(model, 0.5).logit_divisor, 1);
  model.logit_cap = 30;
  EXPECT_EQ(with_temperature(model, 1).logit_divisor, 2);
  EXPECT_THROW(with_temperature(model, 0.7), Error);
}

TEST(PolicyGradients, WrongSettingsAreRefused) {
  const auto refusal = [](const PolicySettings& settings) -> std::string {
    try {
      check_policy(settings);
    } catch (const Error& error) {
      return error.render();
    }
    return {};
  };
  EXPECT_EQ(refusal({}), "");
  EXPECT_EQ(refusal({.method = PolicyMethod::kRloo, .beta = 0.05}), "");
  EXPECT_THAT(refusal({.loss_type = "ppo"}), HasSubstr("choose dapo, grpo"));
  EXPECT_THAT(refusal({.importance_sampling_level = "answer"}), HasSubstr("choose token, sequence"));
  EXPECT_THAT(refusal({.beta = -1}), HasSubstr("beta is -1"));
  EXPECT_THAT(refusal({.loss_type = "cispo"}), HasSubstr("set epsilon_high"));
  EXPECT_THAT(refusal({.loss_type = "sapo", .delta = 2}),
              HasSubstr("delta has no effect with the loss sapo"));
  EXPECT_THAT(refusal({.method = PolicyMethod::kRloo, .loss_type = "grpo"}),
              HasSubstr("loss_type has no effect with RLOO"));
  EXPECT_THAT(refusal({.method = PolicyMethod::kRloo, .entropy = {.top_quantile = 0.2}}),
              HasSubstr("top_entropy_quantile has no effect with RLOO"));
  EXPECT_THAT(refusal({.entropy = {.top_quantile = 1.5}}), HasSubstr("top_entropy_quantile is 1.5"));
  EXPECT_THAT(refusal({.loss_type = "vespo", .importance_sampling_level = "sequence"}), HasSubstr("vespo"));
  EXPECT_THAT(refusal({.loss_type = "vespo", .vllm_importance_sampling_correction = true}),
              HasSubstr("choose token_truncate or token_mask"));
  EXPECT_THAT(refusal({.has_sampled_log_probs = false, .vllm_importance_sampling_correction = true}),
              HasSubstr("log-probabilities of the sampler"));
  EXPECT_THAT(refusal({.temperature = 0}), HasSubstr("temperature is 0"));
}

}  // namespace
}  // namespace primus
