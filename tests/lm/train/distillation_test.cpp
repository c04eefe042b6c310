// Tests distillation in training steps: gradients equal finite differences, every mesh gives the results of
// one device, and the loss is 0 for an equal teacher. tests/turbo/distillation_loss tests the formula.
#include <gmock/gmock.h>

#include "base/error.h"
#include "lm/train/finite_differences.h"
#include "lm/train/objective_training.h"
#include "lm/train/objectives/rules/distillation_rule.h"

namespace primus {
namespace {

using test::TestBatch;
using test::tiny_llama;
using test::tiny_settings;
using test::train;
using test::Trained;
using testing::HasSubstr;

// Returns a model that is wider than tiny_llama().
ModelConfig wide_teacher() {
  ModelConfig teacher = tiny_llama();
  teacher.hidden *= 2;
  teacher.layers += 1;
  return teacher;
}

SessionSettings distilled(const turbo::DistillationForm& form, const ModelConfig& teacher,
                          const ModelConfig& student = tiny_llama(), std::uint64_t seed = 8) {
  SessionSettings settings = tiny_settings(DType::kF32, student);
  settings.evaluation = false;
  settings.loss_rule = distillation_rule({.form = form,
                                          .teacher = [teacher] { return teacher; },
                                          .load =
                                              [seed](TrainingSession& session, ModelInstance& model) {
                                                model.store().initialize(session.rank().context(), seed);
                                                model.parallel().distribute_values();
                                              },
                                          .folder = "teacher"});
  return settings;
}

data::Batch batch_of(const SessionSettings& settings, std::int64_t number) {
  return TestBatch(settings.step.micro_batch * settings.step.sequence, settings.model.vocab,
                   static_cast<std::uint64_t>(number));
}

Trained train_on(const SessionSettings& settings, int ranks = 1, const engine::MeshShape& shape = {}) {
  return train(
      settings, [&](std::int64_t number) { return batch_of(settings, number); }, ranks, shape);
}

TEST(Distillation, GradientsEqualFiniteDifferences) {
  for (const turbo::DistillationForm& form : {turbo::DistillationForm{.beta = 0},
                                              {.beta = 1, .temperature = 2},
                                              {.beta = 0.3F, .temperature = 0.7F, .label_share = 0.4F}}) {
    SCOPED_TRACE(form.beta);
    ModelConfig teacher = wide_teacher(), student = tiny_llama();
    student.logit_cap = 5;
    teacher.logit_divisor = 2;
    SessionSettings settings = distilled(form, teacher, student);
    settings.step.microbatches = 1;
    test::on_ranks(1, {}, [&](engine::Rank& rank) {
      const std::unique_ptr<TrainingSession> session = open_session(rank, settings, test::all_families());
      session->store().initialize(rank.context(), 7);
      session->rule()->load_weights(*session);
      std::vector<data::Batch> batches = {batch_of(settings, 3)};
      test::expect_finite_differences(*session, [&] {
        session->before_step(1, batches);
        session->step().begin(1);
        session->step().microbatch(0, batches[0]);
        session->step().finish_gradients();
        return session->step().result().loss;
      });
    });
  }
}

TEST(Distillation, EveryMeshIsOneDevice) {
  const SessionSettings settings =
      distilled({.beta = 0.5F, .temperature = 1.5F, .label_share = 0.2F}, wide_teacher());
  const Trained one = train_on(settings);
  ASSERT_EQ(one.losses.size(), 3U);
  EXPECT_LT(one.losses[2], one.losses[0]);
  test::expect_meshes_equal(
      one, settings, [&](std::int64_t number) { return batch_of(settings, number); }, "distill",
      test::every_mesh());
}

TEST(Distillation, AnEqualTeacherGivesNoLoss) {
  // The student is initialized with seed 7.
  for (const float beta : {0.0F, 0.5F, 1.0F}) {
    const Trained trained = train_on(distilled({.beta = beta}, tiny_llama(), tiny_llama(), 7));
    EXPECT_EQ(trained.losses[0], 0);
    EXPECT_EQ(trained.norms[0], 0);
  }
}

TEST(Distillation, OnlyLabelsGiveTheLossOfPreTraining) {
  SessionSettings plain = tiny_settings(DType::kF32, tiny_llama());
  plain.evaluation = false;
  const test::Outcome expected = test::train_on_ranks(plain, 1, {}, 1, 4);
  const SessionSettings settings = distilled({.label_share = 1}, wide_teacher());
  const test::Outcome actual = test::train_on_ranks(settings, 1, {}, 1, 4);
  EXPECT_NEAR(actual.losses[0], expected.losses[0], 1e-6 * expected.losses[0]);
  EXPECT_NEAR(actual.norms[0], expected.norms[0], 1e-5 * expected.norms[0]);
}

// A teacher may have more rows in its vocabulary, as larger models of a family have for padding.
TEST(Distillation, IgnoresFurtherTokensOfTheTeacher) {
  ModelConfig teacher = wide_teacher();
  teacher.vocab += 64;
  const Trained trained = train_on(distilled({.beta = 0}, teacher));
  EXPECT_GT(trained.losses[0], 0);
  EXPECT_LT(trained.losses[2], trained.losses[0]);
}

TEST(Distillation, UnfitTeachersAndMeshesAreRefused) {
  // Returns the error with which all ranks open a session.
  const auto refusal = [](const SessionSettings& settings, int ranks, const engine::MeshShape& shape) {
    std::string message;
    test::on_ranks(ranks, shape, [&](engine::Rank& rank) {
      try {
        open_session(rank, settings, test::all_families());
      } catch (const Error& error) {
        if (rank.mesh().rank() == 0) message = error.render();
      }
    });
    return message;
  };
  ModelConfig teacher = wide_teacher();
  teacher.vocab -= 64;
  EXPECT_THAT(refusal(distilled({}, teacher), 1, {}), HasSubstr("the trained model has"));
  teacher = wide_teacher();
  teacher.scores = true;
  EXPECT_THAT(refusal(distilled({}, teacher), 1, {}), HasSubstr("computes scores"));
  teacher = wide_teacher();
  teacher.vocab += 64;
  EXPECT_THAT(refusal(distilled({}, teacher), 2, {.tensor = 2}), HasSubstr("tensor_model_parallel_size: 1"));
  SessionSettings sharded = distilled({}, wide_teacher());
  sharded.sharding = engine::Sharding::kParameters;
  sharded.reduce_each_microbatch = true;
  EXPECT_THAT(refusal(sharded, 2, {}), HasSubstr("optim_grads"));
}

}  // namespace
}  // namespace primus
