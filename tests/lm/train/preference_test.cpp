// Tests the losses that compare texts, in training: every mesh gives the results of one device, adapters are
// their own reference, and wrong settings are refused. tests/lm/verify compares the losses with TRL.
#include <gmock/gmock.h>

#include "base/error.h"
#include "lm/train/objective_training.h"
#include "lm/train/objectives/rules/preference_rule.h"

namespace primus {
namespace {

using data::DocumentRole;
using test::every_mesh;
using test::expect_meshes_equal;
using test::TestBatch;
using test::tiny_llama;
using test::tiny_lora;
using test::tiny_settings;
using test::train;
using test::Trained;
using testing::HasSubstr;

// Returns two rows of 32 tokens. With KTO, the documents are single answers and one mismatched answer per
// row.
data::Batch texts(std::int64_t number, bool paired) {
  TestBatch batch(64, tiny_llama().vocab, static_cast<std::uint64_t>(number));
  batch.pack({0, 6, 15, 22, 26, 32, 39, 50, 53});
  constexpr DocumentRole kNone = DocumentRole::kNone, kChosen = DocumentRole::kChosen,
                         kRejected = DocumentRole::kRejected;
  const DocumentRole last = paired ? kRejected : DocumentRole::kMismatched;
  batch.document_roles = {kChosen, kRejected, kChosen, last, kNone, kChosen, kRejected, kChosen, last};
  for (std::size_t d = 0; d < batch.document_roles.size(); ++d)
    batch.document_values.push_back(0.1F * static_cast<float>(d));  // margins of scores
  for (std::size_t d = 0; d < batch.document_roles.size(); ++d) {
    const auto begin = static_cast<std::size_t>(batch.document_starts[d]);
    const auto end = static_cast<std::size_t>(batch.document_starts[d + 1]);
    // The first labels are the prompt, and the last input of a document has no label.
    for (std::size_t t = begin; t < end; ++t)
      batch.loss_mask[t] = batch.document_roles[d] != kNone && t >= begin + 1 && t + 1 < end ? 1.0F : 0.0F;
  }
  return batch;
}

SessionSettings preferences(const PreferenceSettings& preferences, ModelConfig model = tiny_llama()) {
  model.scores = preferences.method == PreferenceMethod::kReward;
  SessionSettings settings = tiny_settings(DType::kF32, model);
  settings.evaluation = false;
  settings.step.sequence = 32;
  settings.step.packed_documents = true;
  settings.loss_rule = preference_rule(preferences, [](TrainingSession& session, ModelInstance& reference) {
    reference.store().initialize(session.rank().context(), 8);
    reference.parallel().distribute_values();
  });
  return settings;
}

data::Batch pairs(std::int64_t number) { return texts(number, true); }

struct Case {
  const char* name;
  PreferenceSettings settings;
  bool pairs = true;
};

std::vector<Case> cases() {
  return {{"dpo", {.beta = 0.3, .ld_alpha = 0.5}},
          {"dpo, mixed", {.loss_types = {"aot", "sft", "bco_pair"}, .loss_weights = {1, 0.5, 2}}},
          {"dpo, weighted", {.beta = 0.3, .ld_alpha = 0.5, .use_weighting = true}},
          {"kto", {.method = PreferenceMethod::kKto, .undesirable_weight = 1.5}, false},
          {"orpo", {.method = PreferenceMethod::kOrpo}},
          {"reward", {.method = PreferenceMethod::kReward, .center_rewards_coefficient = 0.05}},
          {"simpo", {.method = PreferenceMethod::kCpo, .loss_types = {"simpo"}, .beta = 2}}};
}

void expect_one_device(const Case& c, const std::vector<std::pair<int, engine::MeshShape>>& meshes) {
  const auto batch = [&](std::int64_t number) { return texts(number, c.pairs); };
  const Trained one = train(preferences(c.settings), batch, 1, {});
  ASSERT_EQ(one.losses.size(), 3U);
  EXPECT_LT(one.losses[2], one.losses[0]) << c.name;
  expect_meshes_equal(one, preferences(c.settings), batch, c.name, meshes);
}

// Each loss is trained on one mesh, and each mesh trains at least one loss.
TEST(Preferences, EachLossIsOneDeviceOnAMesh) {
  const std::vector<Case> all = cases();
  const std::vector<std::pair<int, engine::MeshShape>> meshes = every_mesh();
  ASSERT_GE(all.size(), meshes.size());
  for (std::size_t i = 0; i < all.size(); ++i) expect_one_device(all[i], {meshes[i % meshes.size()]});
}

TEST(Preferences, EveryMeshIsOneDevice) {
  for (const Case& c : cases()) expect_one_device(c, every_mesh());
}

// With shards of all parameters, the reference is gathered, too.
TEST(Preferences, ShardedParametersGiveTheSame) {
  const Trained one = train(preferences({}), pairs, 1, {});
  SessionSettings settings = preferences({});
  settings.sharding = engine::Sharding::kParameters;
  settings.reduce_each_microbatch = true;
  const Trained sharded = train(settings, pairs, 2, {});
  for (std::size_t s = 0; s < one.losses.size(); ++s)
    EXPECT_NEAR(sharded.losses[s], one.losses[s], 1e-5 * one.losses[s]);
}

// Adapters start at zero, so at first the model equals its reference. No second model exists.
TEST(Preferences, AdaptersAreTheirOwnReference) {
  SessionSettings settings = tiny_settings(DType::kF32, tiny_lora());
  settings.evaluation = false;
  settings.step.sequence = 32;
  settings.step.packed_documents = true;
  settings.loss_rule = preference_rule({});
  const Trained trained = train(settings, pairs, 1, {});
  EXPECT_NEAR(trained.losses[0], std::log(2.0), 1e-6);
  EXPECT_LT(trained.losses[2], trained.losses[0]);
  EXPECT_EQ(trained.metrics[0].back().first, "logps/rejected");
}

TEST(Preferences, WrongSettingsAreRefused) {
  const auto refusal = [](const PreferenceSettings& settings) -> std::string {
    try {
      check_preferences(settings);
    } catch (const Error& error) {
      return error.render();
    }
    return {};
  };
  EXPECT_EQ(refusal({}), "");
  EXPECT_THAT(refusal({.loss_types = {"sigmoid", "simpo"}}), HasSubstr("'simpo' does not exist"));
  EXPECT_THAT(refusal({.loss_types = {"sigmoid"}, .loss_weights = {1, 2}}),
              HasSubstr("1 loss types have 2 weights"));
  EXPECT_THAT(refusal({.beta = 0}), HasSubstr("beta is 0"));
  EXPECT_THAT(refusal({.loss_types = {"exo_pair"}}), HasSubstr("label_smoothing is 0"));
  EXPECT_THAT(refusal({.loss_types = {"robust"}, .label_smoothing = 0.5}), HasSubstr("below 0.5"));
  EXPECT_THAT(refusal({.ld_alpha = 2}), HasSubstr("ld_alpha is 2"));
  EXPECT_THAT(refusal({.f_divergence_type = "kl"}), HasSubstr("choose reverse_kl"));
  EXPECT_EQ(refusal({.use_weighting = true}), "");
  EXPECT_THAT(refusal({.loss_types = {"sft"}, .use_weighting = true}), HasSubstr("mean over tokens"));
  EXPECT_THAT(refusal({.method = PreferenceMethod::kOrpo, .use_weighting = true}),
              HasSubstr("a setting of DPO"));
  EXPECT_THAT(refusal({.method = PreferenceMethod::kCpo, .loss_types = {"ipo", "hinge"}}),
              HasSubstr("computes one"));
}

}  // namespace
}  // namespace primus
