// Tests on-policy distillation in training steps: which steps generate answers, their loss and gradients, and
// their equality on every mesh.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <numeric>
#include <set>

#include "base/system/stop_request.h"
#include "lm/train/finite_differences.h"
#include "lm/train/objectives/rollouts/answer_generator.h"
#include "lm/train/objectives/rollouts/rollouts.h"
#include "lm/train/objectives/rules/distillation_rule.h"
#include "lm/train/objectives/rules/own_answers_rule.h"
#include "lm/train/rank_training.h"

namespace primus {
namespace {

using data::DocumentRole;
using test::on_ranks;
using test::tiny_llama;
using test::tiny_settings;
using testing::Contains;
using testing::Each;
using testing::ElementsAre;
using testing::Not;
using testing::Pair;

constexpr std::int64_t kAnswers = 8, kMaxAnswer = 8;
constexpr std::int32_t kEnd = 5;
// The tokens of the conversations, and whether they are learned. The last one has two answers.
const std::vector<data::LearnedRow> kConversations = {{{11, 12, 13, 6, 7, 5}, {0, 0, 0, 1, 1, 1}},
                                                      {{14, 15, 16, 17, 8, 5}, {0, 0, 0, 0, 1, 1}},
                                                      {{18, 19, 9, 9, 9, 9, 9, 5}, {0, 0, 1, 1, 1, 1, 1, 1}},
                                                      {{20, 10, 5, 21, 22, 7, 5}, {0, 1, 1, 0, 0, 1, 1}}};
const std::vector<std::vector<std::int32_t>> kPrompts = {
    {11, 12, 13}, {14, 15, 16, 17}, {18, 19}, {20, 10, 5, 21, 22}};

MakeLossRule distillation() {
  ModelConfig teacher = tiny_llama();
  teacher.hidden *= 2;
  return distillation_rule({.form = {.beta = 0.5F, .temperature = 1.5F},
                            .teacher = [teacher] { return teacher; },
                            .load =
                                [](TrainingSession& session, ModelInstance& model) {
                                  model.store().initialize(session.rank().context(), 8);
                                  model.parallel().distribute_values();
                                },
                            .folder = "teacher"});
}

OwnAnswerSettings answers(double share) {
  return {.share = share, .max_completion_length = kMaxAnswer, .sampling = {.temperature = 1.5, .seed = 3}};
}

SessionSettings settings_of(double share, const ModelConfig& model = tiny_llama()) {
  SessionSettings settings = tiny_settings(DType::kF32, model);
  settings.evaluation = false;
  settings.step.sequence = 32;
  settings.step.packed_documents = true;
  settings.step.microbatches = kAnswers / settings.step.micro_batch;
  settings.loss_rule = own_answers_rule(answers(share), distillation());
  return settings;
}

OwnAnswerSource source() {
  return {
      .prompt = [](std::int64_t record) { return kPrompts[static_cast<std::size_t>(record)]; },
      .conversation = [](std::int64_t record) { return kConversations[static_cast<std::size_t>(record)]; },
      .stop_ids = {kEnd}};
}

// Returns the rows of a rank's microbatches. Their tokens are not read.
std::vector<data::Batch> rows_of(const StepSettings& step, int data_ranks, int data_rank) {
  std::vector<data::Batch> batches(static_cast<std::size_t>(step.microbatches));
  for (std::int64_t row = 0; row < step.microbatches * step.micro_batch; ++row) {
    data::Batch& batch = batches[static_cast<std::size_t>(row / step.micro_batch)];
    const RolloutRows rows{
        .micro_batch = step.micro_batch, .sequence = step.sequence, .microbatches = step.microbatches};
    batch.document_starts.push_back(static_cast<std::int32_t>(row % step.micro_batch * step.sequence));
    batch.document_roles.push_back(DocumentRole::kPrompt);
    batch.document_records.push_back(number_of_answer(row, rows, data_ranks, data_rank) %
                                     std::ssize(kConversations));
  }
  for (data::Batch& batch : batches)
    batch.document_starts.push_back(static_cast<std::int32_t>(step.micro_batch * step.sequence));
  return batches;
}

using Texts = std::multiset<std::vector<std::int32_t>>;

// Returns the texts with answers that the microbatches contain.
void collect_texts(std::span<const data::Batch> batches, Texts& texts) {
  for (const data::Batch& batch : batches) {
    for (std::size_t d = 0; d < batch.document_roles.size(); ++d) {
      if (batch.document_roles[d] != DocumentRole::kAnswer) continue;
      std::vector<std::int32_t> text(batch.tokens.begin() + batch.document_starts[d],
                                     batch.tokens.begin() + batch.document_starts[d + 1]);
      text.push_back(batch.labels[static_cast<std::size_t>(batch.document_starts[d + 1]) - 1]);
      texts.insert(std::move(text));
    }
  }
}

struct Trained {
  std::vector<double> losses, norms;
  std::vector<std::vector<std::pair<std::string, double>>> metrics;
  std::vector<Texts> texts;  // for each step
  std::vector<engine::MemoryPlan> memory, used;
};

Trained train(SessionSettings settings, int ranks, const engine::MeshShape& shape, int steps = 4) {
  const int data_ranks = shape.data(ranks);
  settings.step.microbatches = kAnswers / (settings.step.micro_batch * data_ranks);
  reserve_decoder(settings, 16, data_ranks, generates_together(settings, shape, ranks));
  Trained out;
  out.texts.resize(static_cast<std::size_t>(steps));
  out.memory.resize(static_cast<std::size_t>(ranks));
  out.used.resize(static_cast<std::size_t>(ranks));
  std::mutex mutex;
  on_ranks(ranks, shape, [&](engine::Rank& rank) {
    const auto r = static_cast<std::size_t>(rank.mesh().rank());
    out.memory[r] = measure_session(rank, settings, test::all_families()).memory;
    rank.reserve(out.memory[r]);
    TrainingSession session(rank, settings, test::all_families());
    session.store().initialize(rank.context(), 7);
    session.parallel().distribute_values();
    dynamic_cast<OwnAnswersRule&>(*session.rule()).connect(source());
    session.rule()->load_weights(session);
    for (int s = 0; s < steps; ++s) {
      std::vector<data::Batch> batches = rows_of(settings.step, data_ranks, rank.mesh().data_rank());
      const std::int64_t filled = session.before_step(s + 1, batches);
      session.step().begin(s + 1, filled);
      for (std::int64_t i = 0; i < filled; ++i)
        session.step().microbatch(i, batches[static_cast<std::size_t>(i)]);
      session.step().finish_gradients();
      const StepResult result = session.step().result();
      session.step().update(s + 1, 3e-3, 0);
      const engine::MeshPlace& place = rank.mesh().place();
      const std::lock_guard lock(mutex);
      if (place.tensor == 0 && place.context == 0 && place.stage == 0)
        collect_texts(batches, out.texts[static_cast<std::size_t>(s)]);
      if (r != 0) continue;
      out.losses.push_back(result.loss);
      out.norms.push_back(result.gradient_norm);
      out.metrics.push_back(result.metrics);
    }
    rank.synchronize();
    const std::lock_guard lock(mutex);
    out.used[r] = rank.high_water();
  });
  return out;
}

TEST(OwnAnswers, TheShareOfTheStepsGenerates) {
  std::vector<bool> half;
  for (std::int64_t step = 1; step <= 1000; ++step) {
    EXPECT_FALSE(generates_answers(answers(0), step));
    EXPECT_TRUE(generates_answers(answers(1), step));
    half.push_back(generates_answers(answers(0.5), step));
    // A larger share adds steps.
    if (half.back()) {
      EXPECT_TRUE(generates_answers(answers(0.75), step));
    }
  }
  // Four standard deviations of 1000 draws.
  EXPECT_NEAR(static_cast<double>(std::ranges::count(half, true)), 500, 63);
  OwnAnswerSettings other = answers(0.5);
  other.sampling.seed = 4;
  std::vector<bool> drawn;
  for (std::int64_t step = 1; step <= 1000; ++step) drawn.push_back(generates_answers(other, step));
  EXPECT_NE(drawn, half);
}

// A step with the trained model's own answers has the loss and the gradients of distillation on the same
// answers, one in each row.
TEST(OwnAnswers, AStepHasTheGradientsOfDistillationOnItsAnswers) {
  SessionSettings settings = settings_of(1);
  reserve_decoder(settings, 16, 1, false);
  SessionSettings plain = settings;
  plain.loss_rule = distillation();
  std::vector<data::Batch> packed;
  const auto step = [&](const SessionSettings& of, std::vector<data::Batch>& batches, bool own) {
    double loss = 0;
    std::vector<std::vector<float>> gradients;
    on_ranks(1, {}, [&](engine::Rank& rank) {
      const std::unique_ptr<TrainingSession> session = open_session(rank, of, test::all_families());
      session->store().initialize(rank.context(), 7);
      if (own) dynamic_cast<OwnAnswersRule&>(*session->rule()).connect(source());
      session->rule()->load_weights(*session);
      const std::int64_t filled = session->before_step(1, batches);
      if (own) {
        EXPECT_LT(filled, settings.step.microbatches);
      }
      session->step().begin(1, filled);
      for (std::int64_t i = 0; i < filled; ++i)
        session->step().microbatch(i, batches[static_cast<std::size_t>(i)]);
      session->step().finish_gradients();
      loss = session->step().result().loss;
      for (const engine::Parameter& p : session->store().parameters())
        gradients.push_back(test::values_of(rank, p.gradient));
    });
    return std::pair(loss, gradients);
  };
  packed = rows_of(settings.step, 1, 0);
  const auto [own_loss, own] = step(settings, packed, true);
  Texts texts;
  collect_texts(packed, texts);
  ASSERT_EQ(texts.size(), static_cast<std::size_t>(kAnswers));
  std::vector<data::Batch> rows(packed.size());
  double learned = 0;
  auto text = texts.begin();
  for (data::Batch& batch : rows) {
    const std::int64_t sequence = settings.step.sequence;
    batch.tokens.resize(static_cast<std::size_t>(2 * sequence));
    batch.labels = batch.tokens;
    batch.loss_mask.resize(batch.tokens.size());
    for (std::int64_t m = 0; m < 2; ++m, ++text) {
      const auto prompt = std::ranges::find_if(kPrompts, [&](const std::vector<std::int32_t>& ids) {
        return std::ranges::equal(ids, std::span(*text).first(std::min(ids.size(), text->size())));
      });
      ASSERT_NE(prompt, kPrompts.end());
      for (std::size_t t = 0; t + 1 < text->size(); ++t) {
        const auto at = static_cast<std::size_t>(m * sequence) + t;
        batch.tokens[at] = (*text)[t];
        batch.labels[at] = (*text)[t + 1];
        if (t + 1 < prompt->size()) continue;
        batch.loss_mask[at] = 1;
        learned += 1;
      }
      for (const std::int64_t start : {m * sequence, m * sequence + std::ssize(*text) - 1})
        batch.document_starts.push_back(static_cast<std::int32_t>(start));
    }
    batch.document_starts.push_back(static_cast<std::int32_t>(2 * sequence));
  }
  for (data::Batch& batch : rows) batch.loss_divisor = learned / static_cast<double>(rows.size());
  const auto [loss, gradients] = step(plain, rows, false);
  EXPECT_GT(loss, 1e-3);
  EXPECT_NEAR(own_loss, loss, 1e-5 * loss);
  ASSERT_EQ(own.size(), gradients.size());
  double square = 0, difference = 0;
  for (std::size_t p = 0; p < gradients.size(); ++p) {
    for (std::size_t i = 0; i < gradients[p].size(); ++i) {
      square += std::pow(static_cast<double>(gradients[p][i]), 2);
      difference += std::pow(static_cast<double>(own[p][i]) - static_cast<double>(gradients[p][i]), 2);
    }
  }
  EXPECT_LT(std::sqrt(difference), 1e-5 * std::sqrt(square));
}

// The other steps learn all answers of the data, and answers are prompts with at most kMaxAnswer tokens.
TEST(OwnAnswers, StepsLearnOwnOrGivenAnswers) {
  const Trained trained = train(settings_of(0.5), 1, {}, 8);
  Texts given;
  for (std::int64_t i = 0; i < kAnswers; ++i)
    given.insert(kConversations[static_cast<std::size_t>(i % std::ssize(kConversations))].tokens);
  std::set<bool> seen;
  for (std::size_t s = 0; s < trained.texts.size(); ++s) {
    SCOPED_TRACE(s);
    const bool own = generates_answers(answers(0.5), static_cast<std::int64_t>(s) + 1);
    seen.insert(own);
    EXPECT_EQ(trained.metrics[s].back(),
              std::pair(std::string(own ? "loss/own_answers" : "loss/given_answers"), trained.losses[s]));
    if (!own) {
      EXPECT_EQ(trained.texts[s], given);
      EXPECT_EQ(trained.metrics[s].size(), 1U);
      continue;
    }
    double tokens = 0;
    for (const std::vector<std::int32_t>& text : trained.texts[s]) {
      const auto prompt = std::ranges::find_if(kPrompts, [&](const std::vector<std::int32_t>& ids) {
        return std::ranges::equal(ids, std::span(text).first(ids.size()));
      });
      ASSERT_NE(prompt, kPrompts.end());
      const std::span<const std::int32_t> answer = std::span(text).subspan(prompt->size());
      EXPECT_LE(std::ssize(answer), kMaxAnswer);
      // Only the last token ends an answer, and answers without it have the max length.
      EXPECT_THAT(answer.first(answer.size() - 1), Not(Contains(kEnd)));
      if (answer.back() != kEnd) {
        EXPECT_EQ(std::ssize(answer), kMaxAnswer);
      }
      tokens += static_cast<double>(answer.size());
    }
    EXPECT_THAT(trained.metrics[s], Contains(Pair("completions/mean_length", tokens / kAnswers)));
    EXPECT_THAT(trained.metrics[s], Contains(Pair("rollout/tokens_per_second", testing::Gt(0))));
  }
  EXPECT_EQ(seen.size(), 2U);
}

TEST(OwnAnswers, AnswersThatWereCutOffCanBeMasked) {
  OwnAnswerSettings rule = answers(1);
  rule.mask_truncated_completions = true;
  rule.max_completion_length = 1;
  SessionSettings settings = settings_of(1);
  settings.loss_rule = own_answers_rule(rule, distillation());
  // No answer of one token ends with the only stop token, so nothing is learned.
  const Trained trained = train(settings, 1, {}, 1);
  EXPECT_THAT(trained.metrics[0], Contains(Pair("completions/clipped_ratio", 1)));
  EXPECT_THAT(trained.losses, ElementsAre(0));
  EXPECT_THAT(trained.norms, ElementsAre(0));
}

TEST(OwnAnswers, EveryMeshIsOneDevice) {
  ModelConfig mixture = test::tiny_mixture();
  mixture.moe.experts = 4;
  mixture.moe.training = {};
  struct Case {
    const char* name;
    int ranks;
    engine::MeshShape shape;
    ModelConfig model;
  };
  const std::vector<Case> cases = {{"data", 2, {}, tiny_llama()},
                                   {"tensor", 2, {.tensor = 2}, tiny_llama()},
                                   {"pipeline", 2, {.pipeline = 2}, tiny_llama()},
                                   {"context", 2, {.context = 2}, tiny_llama()},
                                   {"tensor and data", 4, {.tensor = 2}, tiny_llama()},
                                   {"experts", 2, {.expert = 2}, mixture}};
  const Trained llama = train(settings_of(0.5), 1, {});
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const SessionSettings settings = settings_of(0.5, c.model);
    const bool experts = c.shape.expert > 1;
    const Trained other = experts ? train(settings, 1, {}) : Trained();
    const Trained& one = experts ? other : llama;
    const Trained trained = train(settings, c.ranks, c.shape);
    EXPECT_EQ(trained.texts, one.texts);
    ASSERT_EQ(trained.losses.size(), one.losses.size());
    for (std::size_t s = 0; s < one.losses.size(); ++s) {
      EXPECT_NEAR(trained.losses[s], one.losses[s], 1e-5 * one.losses[s]);
      EXPECT_NEAR(trained.norms[s], one.norms[s], 1e-4 * one.norms[s]);
    }
    for (std::size_t r = 0; r < trained.used.size(); ++r) {
      EXPECT_EQ(trained.used[r].persistent, trained.memory[r].persistent);
      // Short prompts need less memory than the decoder's largest pass, which was measured.
      EXPECT_LE(trained.used[r].stash, trained.memory[r].stash);
      EXPECT_LE(trained.used[r].scratch, trained.memory[r].scratch);
    }
  }
}

// A run that is asked to stop leaves the step while it generates. A new run repeats the whole step.
TEST(OwnAnswers, AStopInterruptsGeneration) {
  SessionSettings settings = settings_of(1);
  reserve_decoder(settings, 16, 1, false);
  const auto texts_of = [&](bool interrupted) {
    Texts texts;
    on_ranks(1, {}, [&](engine::Rank& rank) {
      const std::unique_ptr<TrainingSession> session = open_session(rank, settings, test::all_families());
      session->store().initialize(rank.context(), 7);
      dynamic_cast<OwnAnswersRule&>(*session->rule()).connect(source());
      session->rule()->load_weights(*session);
      std::atomic<bool> stop = interrupted;
      session->set_stop(&stop);
      std::vector<data::Batch> batches = rows_of(settings.step, 1, 0);
      if (interrupted) {
        EXPECT_THROW(session->before_step(1, batches), StopRequest);
        stop = false;
      }
      session->before_step(1, batches);
      collect_texts(batches, texts);
    });
    return texts;
  };
  EXPECT_EQ(texts_of(true), texts_of(false));
}

}  // namespace
}  // namespace primus
