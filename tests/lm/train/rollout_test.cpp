// Tests answers that a model generates in training: their rewards, their places in microbatches, and their
// equality on every mesh. The losses are those of a small rule in this file (REINFORCE).
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <numeric>
#include <set>
#include <sstream>

#include "base/error.h"
#include "base/files/file.h"
#include "base/files/scratch_folder.h"
#include "base/system/stop_request.h"
#include "lm/train/objectives/rollouts/answer_generator.h"
#include "lm/train/objectives/rollouts/rollouts.h"
#include "lm/train/objectives/rules/policy_rule.h"
#include "lm/train/objectives/rules/ppo_rule.h"
#include "lm/train/objectives/rules/rollout_rule.h"
#include "lm/train/rank_training.h"
#include "turbo/operator_test.h"

namespace primus {
namespace {

using data::DocumentRole;
using test::on_ranks;
using test::tiny_llama;
using test::tiny_settings;
using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::int64_t kGroup = 4, kAnswers = 16, kMaxAnswer = 8;
constexpr std::int32_t kEnd = 5;
const std::vector<std::vector<std::int32_t>> kPrompts = {{11, 12, 13}, {14, 15, 16, 17}, {18, 19}, {20}};

// The loss -sum(advantage * ln p) / (answers * kMaxAnswer) over the tokens of all answers. This code works
// only on the CPU.
class Reinforce : public LossRule {
 public:
  void prepare(TrainingSession& session) override {
    const engine::Mesh& mesh = session.rank().mesh();
    const StepSettings& step = session.settings().step;
    sequence_ = step.sequence;
    answers_ = static_cast<double>(step.micro_batch * step.microbatches * mesh.data_ranks());
    for (const std::int64_t position :
         engine::context_positions(step.sequence, mesh.shape().context, mesh.place().context))
      held_.push_back(static_cast<std::size_t>(position));
  }
  void before_step(const BeforeStep& step) override {
    factors_.clear();
    for (const data::Batch& batch : step.batches) {
      std::vector<float> all(batch.loss_mask), held;
      for (std::size_t d = 0; d < batch.document_roles.size(); ++d) {
        for (auto t = batch.document_starts[d]; t < batch.document_starts[d + 1]; ++t)
          all[static_cast<std::size_t>(t)] *= batch.document_values[d];
      }
      for (std::size_t row = 0; row < all.size(); row += static_cast<std::size_t>(sequence_)) {
        for (const std::size_t position : held_) held.push_back(all[row + position]);
      }
      factors_.push_back(held);
    }
  }
  std::vector<std::string> metrics() const override { return {"loss"}; }
  void weigh(const TokenLosses& tokens) override {
    if (tokens.rank.measuring()) return;
    tokens.rank.compute().synchronize();
    // A step that computes all microbatches, although it may skip some.
    if (tokens.microbatch >= std::ssize(factors_))
      return tokens.rank.compute().fill_zero(tokens.weights.data, tokens.weights.bytes());
    const std::vector<float>& factors = factors_[static_cast<std::size_t>(tokens.microbatch)];
    ASSERT_EQ(tokens.losses.elements(), std::ssize(factors));
    double loss = 0;
    for (std::size_t t = 0; t < factors.size(); ++t) {
      const double weight = static_cast<double>(factors[t]) / (answers_ * static_cast<double>(kMaxAnswer));
      static_cast<float*>(tokens.weights.data)[t] = static_cast<float>(weight);
      loss += weight * static_cast<double>(static_cast<const float*>(tokens.losses.data)[t]);
    }
    *static_cast<float*>(tokens.metrics.data) += static_cast<float>(loss);
  }

 private:
  std::int64_t sequence_ = 1;
  double answers_ = 1;
  std::vector<std::size_t> held_;
  std::vector<std::vector<float>> factors_;
};

// Also counts the tokens of answers, and those whose log-probability in the training pass has other bits than
// the log-probability that the sampler returned.
class CountDifferences final : public Reinforce {
 public:
  void before_step(const BeforeStep& step) override {
    Reinforce::before_step(step);
    batches_.assign(step.batches.begin(), step.batches.end());
  }
  std::vector<std::string> metrics() const override { return {"loss", "answer_tokens", "differing_tokens"}; }
  void weigh(const TokenLosses& tokens) override {
    Reinforce::weigh(tokens);
    if (tokens.rank.measuring()) return;
    const data::Batch& batch = batches_[static_cast<std::size_t>(tokens.microbatch)];
    const auto* const losses = static_cast<const float*>(tokens.losses.data);
    auto* const sums = static_cast<float*>(tokens.metrics.data);
    for (std::size_t t = 0; t < batch.loss_mask.size(); ++t) {
      if (batch.loss_mask[t] == 0) continue;
      sums[1] += 1;
      sums[2] += -losses[t] != batch.sampled_log_probs[t] ? 1.0F : 0.0F;
    }
  }

 private:
  std::vector<data::Batch> batches_;
};

// Also reports the number of microbatches that before_step() receives.
class CountMicrobatches final : public Reinforce {
 public:
  void before_step(const BeforeStep& step) override {
    Reinforce::before_step(step);
    microbatches_ = step.batches.size();
  }
  std::vector<std::string> metrics() const override { return {"loss", "microbatches"}; }
  void weigh(const TokenLosses& tokens) override {
    Reinforce::weigh(tokens);
    if (tokens.rank.measuring() || tokens.microbatch > 0) return;
    static_cast<float*>(tokens.metrics.data)[1] += static_cast<float>(microbatches_);
  }

 private:
  std::size_t microbatches_ = 0;
};

// Returns each answer's reward minus the mean of its group; 0 without a reward.
Advantages group_advantages(std::span<const std::optional<double>> rewards, std::int64_t functions,
                            std::span<const double> /*divergences*/) {
  EXPECT_EQ(functions, 1);
  Advantages all;
  double total = 0, rewarded = 0;
  for (std::size_t begin = 0; begin < rewards.size(); begin += kGroup) {
    double sum = 0, count = 0;
    for (std::size_t i = begin; i < begin + kGroup; ++i) {
      sum += rewards[i].value_or(0);
      count += rewards[i] ? 1 : 0;
    }
    for (std::size_t i = begin; i < begin + kGroup; ++i)
      all.values.push_back(rewards[i] ? *rewards[i] - sum / count : 0);
    total += sum;
    rewarded += count;
  }
  all.reward.mean = total / rewarded;
  all.functions.push_back(all.reward);
  return all;
}

// Scores texts, which are lists of ids: the share of ids below 10 among kMaxAnswer tokens.
class LowIds final : public RewardFunction {
 public:
  explicit LowIds(std::function<bool(const ScoredAnswer&)> fails) : fails_(std::move(fails)) {}
  std::string_view name() const override { return "low"; }
  std::vector<Reward> score(std::span<const ScoredAnswer> answers) override {
    std::vector<Reward> rewards;
    for (const ScoredAnswer& answer : answers) {
      if (fails_ && fails_(answer)) {
        rewards.push_back({.value = {}, .problem = "the program failed"});
        continue;
      }
      std::istringstream text(answer.completion);
      double low = 0;
      for (int id = 0; text >> id;) low += id < 10 ? 1 : 0;
      rewards.push_back({.value = low / static_cast<double>(kMaxAnswer)});
    }
    return rewards;
  }

 private:
  std::function<bool(const ScoredAnswer&)> fails_;
};

SessionSettings rollouts(const ModelConfig& model = tiny_llama()) {
  SessionSettings settings = tiny_settings(DType::kF32, model);
  settings.evaluation = false;
  settings.step.sequence = 32;
  settings.step.packed_documents = true;
  RolloutSettings rule{.max_completion_length = kMaxAnswer, .advantages = group_advantages};
  settings.loss_rule = rollout_rule(rule, [] { return std::make_unique<Reinforce>(); });
  return settings;
}

std::string prompt_text(std::int64_t record) { return fmt::format("prompt {}", record); }

RolloutSource source_of(std::function<bool(const ScoredAnswer&)> fails = {},
                        std::function<void(const std::string&)> warn = {}) {
  RolloutSource source{
      .prompt = [](std::int64_t record) { return std::span(kPrompts[static_cast<std::size_t>(record)]); },
      .prompt_text = prompt_text,
      .record = [](std::int64_t record) -> nlohmann::json {
        return {{"n", record}};
      },
      .text = [](std::span<const std::int32_t> ids) { return fmt::format("{}", fmt::join(ids, " ")); },
      .stop_ids = {kEnd},
      .warn = std::move(warn)};
  source.rewards.push_back(std::make_unique<LowIds>(std::move(fails)));
  return source;
}

// Returns the prompts of a rank's microbatches; kGroup consecutive answers of the step have the same prompt.
std::vector<data::Batch> prompts_of(const StepSettings& step, std::int64_t number, int data_ranks,
                                    int data_rank) {
  std::vector<data::Batch> batches;
  for (std::int64_t i = 0; i < step.microbatches; ++i) {
    data::Batch& batch = batches.emplace_back();
    const auto tokens = static_cast<std::size_t>(step.micro_batch * step.sequence);
    batch.tokens.resize(tokens);
    batch.labels.resize(tokens);
    batch.loss_mask.resize(tokens);
    batch.positions.resize(tokens);
    for (std::int64_t m = 0; m < step.micro_batch; ++m) {
      const std::int64_t answer = (i * data_ranks + data_rank) * step.micro_batch + m;
      const std::int64_t record = (answer / kGroup + number) % std::ssize(kPrompts);
      const auto begin = static_cast<std::int32_t>(m * step.sequence);
      const std::vector<std::int32_t>& prompt = kPrompts[static_cast<std::size_t>(record)];
      std::ranges::copy(prompt, batch.tokens.begin() + begin);
      for (const std::int32_t start : {begin, begin + static_cast<std::int32_t>(prompt.size())})
        batch.document_starts.push_back(start);
      for (const DocumentRole role : {DocumentRole::kPrompt, DocumentRole::kNone})
        batch.document_roles.push_back(role);
      batch.document_values.insert(batch.document_values.end(), {0, 0});
      batch.document_records.insert(batch.document_records.end(), {record, -1});
    }
    batch.document_starts.push_back(static_cast<std::int32_t>(tokens));
  }
  return batches;
}

struct Trained {
  std::vector<double> losses, norms, rewards;
  std::vector<std::vector<std::pair<std::string, double>>> metrics;
  // For each step: all answers with prompt and record, in ascending order.
  std::vector<std::multiset<std::vector<std::int32_t>>> answers;
  std::vector<std::int64_t> filled;  // number of microbatches of each step on a rank
  std::map<std::string, std::vector<float>> weights;
  std::vector<engine::MemoryPlan> memory, used;
};

using MakeDevice = std::function<std::unique_ptr<Device>()>;

std::unique_ptr<Device> cpu() { return turbo::make_cpu_device(1); }
std::unique_ptr<Device> batch_invariant_cpu() { return turbo::make_cpu_device(1, true); }

// `skips`: whether steps skip microbatches without answers.
Trained train(
    SessionSettings settings, int ranks, const engine::MeshShape& shape, int steps = 3, bool skips = true,
    double rate = 3e-3, const MakeDevice& device = cpu,
    const std::function<RolloutSource()>& source = [] { return source_of(); }) {
  const int data_ranks = shape.data(ranks);
  settings.step.microbatches = kAnswers / (settings.step.micro_batch * data_ranks);
  const bool together = shape.expert > 1 || (settings.sharding == engine::Sharding::kParameters && ranks > 1);
  reserve_decoder(settings, 16, data_ranks, together);
  Trained out;
  out.answers.resize(static_cast<std::size_t>(steps));
  out.memory.resize(static_cast<std::size_t>(ranks));
  out.used.resize(static_cast<std::size_t>(ranks));
  std::mutex mutex;
  const auto body = [&](engine::Rank& rank) {
    const auto r = static_cast<std::size_t>(rank.mesh().rank());
    out.memory[r] = measure_session(rank, settings, test::all_families()).memory;
    rank.reserve(out.memory[r]);
    TrainingSession session(rank, settings, test::all_families());
    session.store().initialize(rank.context(), 7);
    session.parallel().distribute_values();
    dynamic_cast<RolloutRule&>(*session.rule()).connect(source());
    session.rule()->load_weights(session);
    for (int s = 0; s < steps; ++s) {
      std::vector<data::Batch> batches = prompts_of(settings.step, s, data_ranks, rank.mesh().data_rank());
      const std::int64_t filled = session.before_step(s + 1, batches);
      const std::int64_t count = skips ? filled : settings.step.microbatches;
      session.step().begin(s + 1, count);
      for (std::int64_t i = 0; i < count; ++i)
        session.step().microbatch(i, batches[static_cast<std::size_t>(i)]);
      session.step().finish_gradients();
      const StepResult result = session.step().result();
      session.step().update(s + 1, rate, 0);
      const engine::MeshPlace& place = rank.mesh().place();
      const std::lock_guard lock(mutex);
      for (const data::Batch& batch : batches) {
        if (place.tensor > 0 || place.context > 0 || place.stage > 0) break;
        for (std::size_t d = 0; d < batch.document_roles.size(); ++d) {
          if (batch.document_roles[d] != DocumentRole::kAnswer) continue;
          std::vector<std::int32_t> text = {static_cast<std::int32_t>(batch.document_records[d])};
          const auto begin = batch.tokens.begin() + batch.document_starts[d];
          const std::int32_t size = batch.document_starts[d + 1] - batch.document_starts[d];
          text.insert(text.end(), begin, begin + size);
          text.push_back(batch.labels[static_cast<std::size_t>(batch.document_starts[d + 1]) - 1]);
          out.answers[static_cast<std::size_t>(s)].insert(text);
        }
      }
      if (r != 0) continue;
      out.filled.push_back(filled);
      out.losses.push_back(result.loss);
      out.norms.push_back(result.gradient_norm);
      out.metrics.push_back(result.metrics);
      out.rewards.push_back(result.metrics.front().second);
    }
    rank.synchronize();
    const std::lock_guard lock(mutex);
    out.used[r] = rank.high_water();
    test::Outcome outcome;
    outcome.weights = std::move(out.weights);
    test::collect(rank, session.store(), outcome);
    out.weights = std::move(outcome.weights);
  };
  on_ranks(ranks, shape, body, false, device);
  return out;
}

TEST(Rollouts, TextsGoIntoTheFirstRowWithRoom) {
  EXPECT_THAT(first_fit(std::vector<std::int64_t>{5, 6, 3, 4, 2, 8}, 10), ElementsAre(0, 10, 5, 16, 8, 20));
  EXPECT_TRUE(first_fit({}, 10).empty());
  const RolloutRows rows{.micro_batch = 2, .sequence = 10, .microbatches = 3};
  EXPECT_EQ(filled_microbatches(std::vector<std::int64_t>{5, 6, 3, 4, 2, 8}, rows), 2);
  EXPECT_EQ(filled_microbatches(std::vector<std::int64_t>{5, 6, 3, 4}, rows), 1);
}

// Tokens that the model has not generated are read, but not learned.
TEST(Rollouts, AppendedTokensAreMasked) {
  const std::vector<Rollout> texts = {{.record = 7,
                                       .prompt = {1, 2},
                                       .answer = {3, 4, 8, 9, 5},
                                       .log_probs = {-1, -2, 0, 0, -5},
                                       .generated = {1, 1, 0, 0, 1},
                                       .old_log_probs = {-6, -7, -8, -9, -10},
                                       .finished = true}};
  EXPECT_EQ(texts[0].generated_tokens(), 3);
  EXPECT_THAT(texts[0].last_turn(), ElementsAre(5));
  std::vector<data::Batch> batches(1);
  pack_rollouts(texts, std::vector<double>{0.5}, {.micro_batch = 1, .sequence = 8, .microbatches = 1}, false,
                batches);
  const data::Batch& batch = batches.front();
  EXPECT_THAT(batch.tokens, ElementsAre(1, 2, 3, 4, 8, 9, 0, 0));
  EXPECT_THAT(batch.labels, ElementsAre(2, 3, 4, 8, 9, 5, 0, 0));
  EXPECT_THAT(batch.loss_mask, ElementsAre(0, 1, 1, 0, 0, 1, 0, 0));
  EXPECT_THAT(batch.sampled_log_probs, ElementsAre(0, -1, -2, 0, 0, -5, 0, 0));
  EXPECT_THAT(batch.old_log_probs, ElementsAre(0, -6, -7, 0, 0, -10, 0, 0));
  EXPECT_THAT(batch.document_starts, ElementsAre(0, 6, 8));
}

TEST(Rollouts, AnswersAreDocumentsOfTheMicrobatches) {
  const std::vector<Rollout> texts = {
      {.record = 7, .prompt = {1, 2}, .answer = {3, 4}, .log_probs = {-1, -2}, .finished = true},
      {.record = 8, .prompt = {5}, .answer = {6, 7, 8}, .log_probs = {-3, -4, -5}, .finished = false}};
  std::vector<data::Batch> batches(2);
  const RolloutRows rows{.micro_batch = 1, .sequence = 8, .microbatches = 2};
  const std::vector<double> advantages = {0.5, -0.25};
  pack_rollouts(texts, advantages, rows, false, batches);
  const data::Batch& batch = batches.front();
  EXPECT_THAT(batch.tokens, ElementsAre(1, 2, 3, 5, 6, 7, 0, 0));
  EXPECT_THAT(batch.labels, ElementsAre(2, 3, 4, 6, 7, 8, 0, 0));
  EXPECT_THAT(batch.loss_mask, ElementsAre(0, 1, 1, 1, 1, 1, 0, 0));
  EXPECT_THAT(batch.sampled_log_probs, ElementsAre(0, -1, -2, -3, -4, -5, 0, 0));
  EXPECT_THAT(batch.positions, ElementsAre(0, 1, 2, 0, 1, 2, 0, 1));
  EXPECT_THAT(batch.document_starts, ElementsAre(0, 3, 6, 8));
  EXPECT_THAT(batch.document_roles,
              ElementsAre(DocumentRole::kAnswer, DocumentRole::kAnswer, DocumentRole::kNone));
  EXPECT_THAT(batch.document_values, ElementsAre(0.5F, -0.25F, 0.0F));
  EXPECT_THAT(batch.document_records, ElementsAre(7, 8, -1));
  EXPECT_TRUE(batch.old_log_probs.empty());
  EXPECT_THAT(batches.back().document_roles, ElementsAre(DocumentRole::kNone));
  EXPECT_THAT(batches.back().loss_mask, Each(0.0F));
  std::vector<Rollout> old = texts;
  old[0].old_log_probs = {-6, -7};
  old[1].old_log_probs = {-8, -9, -10};
  pack_rollouts(old, advantages, rows, false, batches);
  EXPECT_THAT(batch.old_log_probs, ElementsAre(0, -6, -7, -8, -9, -10, 0, 0));
  EXPECT_THAT(batches.back().old_log_probs, Each(0.0F));
  pack_rollouts(old, advantages, rows, true, batches);
  EXPECT_THAT(batch.old_log_probs, ElementsAre(0, -6, -7, 0, 0, 0, 0, 0));
  pack_rollouts(texts, advantages, rows, true, batches);
  EXPECT_THAT(batch.loss_mask, ElementsAre(0, 1, 1, 0, 0, 0, 0, 0));
  EXPECT_THAT(batch.sampled_log_probs, ElementsAre(0, -1, -2, 0, 0, 0, 0, 0));
}

TEST(Rollouts, EveryMeshGeneratesTheSameAnswers) {
  ModelConfig mixture = test::tiny_mixture();
  mixture.moe.experts = 4;
  mixture.moe.training = {};
  struct Case {
    const char* name;
    int ranks;
    engine::MeshShape shape;
    ModelConfig model;
    engine::Sharding sharding = engine::Sharding::kNone;
  };
  const std::vector<Case> cases = {{"data", 2, {}, tiny_llama()},
                                   {"tensor", 2, {.tensor = 2}, tiny_llama()},
                                   {"pipeline", 2, {.pipeline = 2}, tiny_llama()},
                                   {"context", 2, {.context = 2}, tiny_llama()},
                                   {"tensor and data", 4, {.tensor = 2}, tiny_llama()},
                                   {"tensor and pipeline", 4, {.tensor = 2, .pipeline = 2}, tiny_llama()},
                                   {"shards", 2, {}, tiny_llama(), engine::Sharding::kParameters},
                                   {"experts", 2, {.expert = 2}, mixture}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    SessionSettings settings = rollouts(c.model);
    const Trained one = train(settings, 1, {});
    settings.sharding = c.sharding;
    settings.reduce_each_microbatch = c.sharding == engine::Sharding::kParameters;
    const Trained trained = train(settings, c.ranks, c.shape);
    ASSERT_EQ(trained.losses.size(), one.losses.size());
    EXPECT_EQ(trained.answers, one.answers);
    for (std::size_t s = 0; s < one.losses.size(); ++s) {
      EXPECT_NEAR(trained.losses[s], one.losses[s], 1e-5);
      EXPECT_NEAR(trained.norms[s], one.norms[s], 1e-4 * one.norms[s]);
      EXPECT_NEAR(trained.rewards[s], one.rewards[s], 1e-6);
    }
    for (std::size_t r = 0; r < trained.used.size(); ++r) {
      EXPECT_EQ(trained.used[r].persistent, trained.memory[r].persistent);
      // Short prompts need less memory than the decoder's largest pass, which was measured.
      EXPECT_LE(trained.used[r].stash, trained.memory[r].stash);
      EXPECT_LE(trained.used[r].scratch, trained.memory[r].scratch);
    }
  }
}

// The score of a reward model of another size, which reads the tokens of the run, is the only reward.
TEST(Rollouts, RewardModelsGiveTheSameRewardsOnEveryMesh) {
  SessionSettings settings = tiny_settings(DType::kF32);
  settings.evaluation = false;
  settings.step.sequence = 32;
  settings.step.packed_documents = true;
  ModelConfig scores = tiny_llama();
  scores.layers = 2;
  scores.hidden = 32;
  scores.scores = true;
  RolloutSettings rule{.max_completion_length = kMaxAnswer, .advantages = group_advantages};
  rule.reward_models.push_back({.name = "reward_model",
                                .model = scores,
                                .rows = 2,
                                .sequence = 16,
                                .load = [](TrainingSession& session, ModelInstance& model) {
                                  model.store().initialize(session.rank().context(), 3);
                                }});
  settings.loss_rule = rollout_rule(rule, [] { return std::make_unique<Reinforce>(); });
  const auto source = [] {
    RolloutSource all = source_of();
    all.model_tokens.emplace_back([](const Rollout& rollout, const ScoredAnswer&) {
      RewardTokens tokens{.ids = rollout.prompt};
      tokens.ids.insert(tokens.ids.end(), rollout.answer.begin(), rollout.answer.end());
      return tokens;
    });
    return all;
  };
  const auto train_on = [&](int ranks, const engine::MeshShape& shape) {
    return train(settings, ranks, shape, 3, true, 3e-3, cpu, source);
  };
  const Trained one = train_on(1, {});
  EXPECT_NE(one.rewards[0], one.rewards[1]);
  struct Case {
    const char* name;
    int ranks;
    engine::MeshShape shape = {};
    engine::Sharding sharding = engine::Sharding::kNone;
  };
  for (const Case& c : {Case{"data", 2}, Case{"tensor and data", 4, {.tensor = 2}},
                        Case{"tensor and pipeline", 4, {.tensor = 2, .pipeline = 2}},
                        Case{"shards", 2, {}, engine::Sharding::kParameters}}) {
    SCOPED_TRACE(c.name);
    settings.sharding = c.sharding;
    // Blocks of the trained model. The two layers of the reward model are divided evenly.
    settings.step.pipeline.blocks =
        c.shape.pipeline > 1 ? std::vector<std::int64_t>{3, 1} : std::vector<std::int64_t>{};
    settings.reduce_each_microbatch = c.sharding == engine::Sharding::kParameters;
    const Trained trained = train_on(c.ranks, c.shape);
    EXPECT_EQ(trained.answers, one.answers);
    for (std::size_t s = 0; s < one.losses.size(); ++s) {
      EXPECT_NEAR(trained.losses[s], one.losses[s], 1e-5);
      EXPECT_NEAR(trained.rewards[s], one.rewards[s], 1e-5);
    }
    for (std::size_t r = 0; r < trained.used.size(); ++r) {
      EXPECT_EQ(trained.used[r].persistent, trained.memory[r].persistent);
      EXPECT_LE(trained.used[r].stash, trained.memory[r].stash);
      EXPECT_LE(trained.used[r].scratch, trained.memory[r].scratch);
    }
  }
}

// Steps 1 and 4 generate answers, and each pair of steps after them learns from the same answers.
TEST(Rollouts, SeveralStepsLearnFromTheSameAnswersOnEveryMesh) {
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
                                   {"pipeline and context", 4, {.context = 2, .pipeline = 2}, tiny_llama()},
                                   {"experts", 2, {.expert = 2}, mixture}};
  const auto settings_of = [](const ModelConfig& model) {
    SessionSettings settings = rollouts(model);
    settings.loss_rule =
        rollout_rule({.max_completion_length = kMaxAnswer, .iterations = 3, .advantages = group_advantages},
                     policy_rule({.max_completion_length = kMaxAnswer}));
    return settings;
  };
  const auto ratio_of = [](const Trained& trained, std::size_t step) {
    for (const auto& [name, value] : trained.metrics[step])
      if (name == "ratio/mean") return value;
    return 0.0;
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const SessionSettings settings = settings_of(c.model);
    const Trained one = train(settings, 1, {}, 4), trained = train(settings, c.ranks, c.shape, 4);
    EXPECT_EQ(trained.answers, one.answers);
    EXPECT_EQ(one.answers[1], one.answers[0]);
    EXPECT_EQ(one.answers[2], one.answers[0]);
    EXPECT_NE(one.answers[3], one.answers[0]);
    for (std::size_t s = 0; s < one.losses.size(); ++s) {
      EXPECT_NEAR(trained.losses[s], one.losses[s], 1e-5);
      EXPECT_NEAR(trained.norms[s], one.norms[s], 1e-4 * one.norms[s]);
      EXPECT_NEAR(ratio_of(trained, s), ratio_of(one, s), 1e-5);
    }
    EXPECT_NEAR(ratio_of(one, 0), 1, 1e-6);
    EXPECT_GT(std::abs(ratio_of(one, 1) - 1), 1e-4);
    for (std::size_t r = 0; r < trained.used.size(); ++r)
      EXPECT_EQ(trained.used[r].persistent, trained.memory[r].persistent);
    // Without updates, the old log-probabilities are the current ones.
    const Trained resting = train(settings, c.ranks, c.shape, 3, true, 0);
    for (std::size_t s = 0; s < 3; ++s) EXPECT_NEAR(ratio_of(resting, s), 1, 1e-6);
  }
}

// Two epochs of two mini-batches learn from the answers of a step. No function scores the answers to prompt
// 2, which are then no part of the losses.
SessionSettings with_value_model(const ModelConfig& model) {
  SessionSettings settings = rollouts(model);
  const RolloutSettings rule{
      .max_completion_length = kMaxAnswer,
      .iterations = 2,
      .advantages =
          [](std::span<const std::optional<double>> rewards, std::int64_t functions,
             std::span<const double>) {
            return compute_advantages({.num_generations = 1, .sums = true}, rewards, functions);
          },
      .estimate =
          [](LossRule& inner, TrainingSession& session, std::span<data::Batch> batches) {
            dynamic_cast<PpoRule&>(inner).estimate(session, batches);
          },
      .missing_eos_penalty = 0.25,
      .parts = 2};
  const auto initialize = [](std::uint64_t seed) {
    return [seed](TrainingSession& session, ModelInstance& instance) {
      instance.store().initialize(session.rank().context(), seed);
      instance.parallel().distribute_values();
    };
  };
  settings.loss_rule = rollout_rule(
      rule, ppo_rule({.whiten_rewards = true, .reports_entropy = true, .max_completion_length = kMaxAnswer},
                     initialize(8), {.config = value_model_of, .load = initialize(9)}));
  return settings;
}

void expect_equal(const Trained& trained, const Trained& one) {
  EXPECT_EQ(trained.answers, one.answers);
  ASSERT_EQ(trained.losses.size(), one.losses.size());
  for (std::size_t s = 0; s < one.losses.size(); ++s) {
    EXPECT_NEAR(trained.losses[s], one.losses[s], 1e-5);
    EXPECT_NEAR(trained.norms[s], one.norms[s], 1e-4 * one.norms[s]);
    for (const auto& [name, value] : one.metrics[s]) {
      if (name.starts_with("rollout/")) continue;
      const auto same = std::ranges::find(trained.metrics[s], name, [](const auto& m) { return m.first; });
      ASSERT_NE(same, trained.metrics[s].end()) << name;
      EXPECT_NEAR(same->second, value, 1e-4 * std::max(1.0, std::abs(value))) << name;
    }
  }
  for (std::size_t r = 0; r < trained.used.size(); ++r) {
    EXPECT_EQ(trained.used[r].persistent, trained.memory[r].persistent);
    EXPECT_LE(trained.used[r].stash, trained.memory[r].stash);
    EXPECT_LE(trained.used[r].scratch, trained.memory[r].scratch);
  }
}

struct MeshCase {
  const char* name;
  int ranks;
  engine::MeshShape shape = {};
  engine::Sharding sharding = engine::Sharding::kNone;
};

// Trains a policy with a value model on one device and on each mesh.
void expect_value_models_equal(const ModelConfig& model, const std::vector<MeshCase>& cases) {
  const auto source = [] {
    return source_of([](const ScoredAnswer& answer) { return answer.prompt == prompt_text(2); });
  };
  SessionSettings settings = with_value_model(model);
  const Trained one = train(settings, 1, {}, 5, true, 3e-3, cpu, source);
  ASSERT_EQ(one.losses.size(), 5U);
  EXPECT_NE(one.answers[1], one.answers[0]);  // the other half of the answers
  EXPECT_EQ(one.answers[2], one.answers[0]);
  EXPECT_EQ(one.answers[3], one.answers[1]);
  EXPECT_NE(one.answers[4], one.answers[0]);
  for (const MeshCase& c : cases) {
    SCOPED_TRACE(c.name);
    settings.sharding = c.sharding;
    settings.reduce_each_microbatch = c.sharding == engine::Sharding::kParameters;
    expect_equal(train(settings, c.ranks, c.shape, 5, true, 3e-3, cpu, source), one);
  }
}

TEST(Rollouts, AValueModelTrainsTheSameOnTwoMeshes) {
  expect_value_models_equal(tiny_llama(), {{"shards", 2, {}, engine::Sharding::kParameters},
                                           {"tensor and pipeline", 4, {.tensor = 2, .pipeline = 2}}});
}

TEST(Rollouts, AValueModelTrainsTheSameOnEveryMesh) {
  expect_value_models_equal(tiny_llama(),
                            {{"data", 2},
                             {"states", 2, {}, engine::Sharding::kStates},
                             {"shards", 2, {}, engine::Sharding::kParameters},
                             {"tensor", 2, {.tensor = 2}},
                             {"context", 2, {.context = 2}},
                             {"pipeline", 2, {.pipeline = 2}},
                             {"tensor and pipeline", 4, {.tensor = 2, .pipeline = 2}},
                             {"tensor and context", 4, {.tensor = 2, .context = 2}},
                             {"tensor and data", 4, {.tensor = 2}},
                             {"context and data", 4, {.context = 2}},
                             {"pipeline and data", 4, {.pipeline = 2}},
                             {"shards and tensor", 4, {.tensor = 2}, engine::Sharding::kParameters}});
  ModelConfig mixture = test::tiny_mixture();
  mixture.moe.experts = 4;
  mixture.moe.training = {};
  expect_value_models_equal(
      mixture, {{"experts", 2, {.expert = 2}}, {"experts and pipeline", 4, {.pipeline = 2, .expert = 2}}});
}

// The kernels of GPUs: on the emulator, or on the GPU of PRIMUS_TEST_GPU. A guarded device also detects code
// of the host that reads the memory of the device.
TEST(Rollouts, AValueModelTrainsTheSameOnGpus) {
  ModelConfig model = tiny_llama();
  model.layers = 2;
  model.hidden = 16;
  model.ffn = 24;
  model.heads = 2;
  model.kv_heads = 2;
  model.head_dim = 8;
  model.vocab = 40;
  SessionSettings settings = with_value_model(model);
  const auto source = [] {
    return source_of([](const ScoredAnswer& answer) { return answer.prompt == prompt_text(2); });
  };
  const Trained expected = train(settings, 1, {}, 5, true, 3e-3, cpu, source);
  ASSERT_EQ(expected.losses.size(), 5U);
  for (const turbo::test::DeviceUnderTest& device : turbo::test::devices_under_test()) {
    if (device.plugin.empty() && device.emulated_warp == 0) continue;
    SCOPED_TRACE(device.name());
    const auto make = [&] { return turbo::test::OperatorBench::make_device(device); };
    expect_equal(train(settings, 1, {}, 5, true, 3e-3, make, source), expected);
    // The communicators of this test read the memory of the device.
    if (device.guarded || !device.plugin.empty()) continue;
    using Shape = engine::MeshShape;
    for (const Shape& shape : {Shape{.tensor = 2}, Shape{.context = 2}, Shape{.pipeline = 2}})
      expect_equal(train(settings, 2, shape, 5, true, 3e-3, make, source), expected);
    SessionSettings sharded = settings;
    sharded.sharding = engine::Sharding::kParameters;
    sharded.reduce_each_microbatch = true;
    expect_equal(train(sharded, 2, {}, 5, true, 3e-3, make, source), expected);
  }
}

// The environment appends the tokens 30 and 31 after each turn, and gives a reward after the third turn.
TEST(Rollouts, EpisodesHaveTheSameTokensOnEveryMesh) {
  const ScratchFolder folder("episodes");
  write_file(folder.path() / "env.sh", R"sh(while read -r line; do
  number=${line#*episode\":}
  number=${number%%,*}
  if [[ $line == *'"turn":3,'* || $line == *'"last":true'* ]]; then
    echo "{\"done\": true, \"reward\": 0.${number: -1}}"
  else
    echo '{"messages": [{"role": "user", "content": "30 31"}]}'
  fi
done
)sh");
  const auto source = [&] {
    RolloutSource all = source_of();
    all.rewards.clear();
    all.rewards.push_back(make_episode_reward("environment"));
    all.stop_ids.clear();
    for (std::int32_t id = 0; id < 12; ++id) all.stop_ids.push_back(id);
    all.episodes = {.environment = std::make_shared<Environment>(EnvironmentSettings{
                        .command = "bash env.sh", .workers = 2, .folder = folder.path().string()}),
                    .conversation = [](std::int64_t record) -> data::Conversation {
                      return {.messages = {{std::string(data::kUser), prompt_text(record), {}}}};
                    },
                    .record = all.record,
                    .continuation =
                        [](const data::Conversation& conversation, std::size_t answer) {
                          EXPECT_EQ(conversation.messages.at(answer).role, data::kAssistant);
                          std::istringstream text(conversation.messages.back().text);
                          std::vector<std::int32_t> ids;
                          for (std::int32_t id = 0; text >> id;) ids.push_back(id);
                          return ids;
                        },
                    .text = all.text};
    return all;
  };
  ModelConfig mixture = test::tiny_mixture();
  mixture.moe.experts = 4;
  mixture.moe.training = {};
  struct Case {
    const char* name;
    int ranks;
    engine::MeshShape shape;
    ModelConfig model;
    engine::Sharding sharding = engine::Sharding::kNone;
  };
  const std::vector<Case> cases = {{"data", 2, {}, tiny_llama()},
                                   {"tensor", 2, {.tensor = 2}, tiny_llama()},
                                   {"pipeline and context", 4, {.context = 2, .pipeline = 2}, tiny_llama()},
                                   {"shards", 2, {}, tiny_llama(), engine::Sharding::kParameters},
                                   {"experts", 2, {.expert = 2}, mixture}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    SessionSettings settings = rollouts(c.model);
    settings.loss_rule = rollout_rule(
        {.max_completion_length = 12, .iterations = 2, .max_turns = 5, .advantages = group_advantages},
        policy_rule({.entropy = {.reported = true}, .max_completion_length = 12}));
    const Trained one = train(settings, 1, {}, 3, true, 3e-3, cpu, source);
    settings.sharding = c.sharding;
    settings.reduce_each_microbatch = c.sharding == engine::Sharding::kParameters;
    const Trained trained = train(settings, c.ranks, c.shape, 3, true, 3e-3, cpu, source);
    EXPECT_EQ(trained.answers, one.answers);
    EXPECT_EQ(one.answers[1], one.answers[0]);
    EXPECT_NE(one.answers[2], one.answers[0]);
    for (std::size_t s = 0; s < one.losses.size(); ++s) {
      EXPECT_NEAR(trained.losses[s], one.losses[s], 1e-5);
      EXPECT_NEAR(trained.norms[s], one.norms[s], 1e-4 * one.norms[s]);
      const std::map<std::string, double> metrics(trained.metrics[s].begin(), trained.metrics[s].end());
      const std::map<std::string, double> metrics_of_one(one.metrics[s].begin(), one.metrics[s].end());
      for (const char* name :
           {"reward", "episodes/turns", "completions/mean_length", "ratio/mean", "entropy"})
        EXPECT_NEAR(metrics.at(name), metrics_of_one.at(name), 1e-5) << name;
      EXPECT_GT(metrics.at("episodes/turns"), 1);
      EXPECT_EQ(metrics.at("episodes/failed"), 0);
    }
    for (std::size_t r = 0; r < trained.used.size(); ++r)
      EXPECT_EQ(trained.used[r].persistent, trained.memory[r].persistent);
  }
}

// Gives each answer to prompts 1 and 2 the reward 0, and scores the others as LowIds does.
class LowIdsOfSomePrompts final : public RewardFunction {
 public:
  std::string_view name() const override { return "some"; }
  std::vector<Reward> score(std::span<const ScoredAnswer> answers) override {
    std::vector<Reward> rewards = low_.score(answers);
    for (std::size_t i = 0; i < answers.size(); ++i) {
      const std::string& prompt = answers[i].prompt;
      if (prompt == prompt_text(1) || prompt == prompt_text(2)) rewards[i].value = 0;
    }
    return rewards;
  }

 private:
  LowIds low_{{}};
};

// Repeats one attempt per call.
class LowIdsAtTheSecondAttempt final : public RewardFunction {
 public:
  std::string_view name() const override { return "second"; }
  std::vector<Reward> score(std::span<const ScoredAnswer> answers) override {
    ++retries_.count;
    if (!std::exchange(reported_, true)) retries_.problems.emplace_back("the server is busy");
    return low_.score(answers);
  }
  std::optional<RewardRetries> take_retries() override { return std::exchange(retries_, {}); }

 private:
  LowIds low_{{}};
  RewardRetries retries_;
  bool reported_ = false;
};

TEST(Rollouts, RepeatedAttemptsAreCountedAndEachReasonIsLoggedOnce) {
  for (const int ranks : {1, 2}) {
    std::mutex mutex;
    std::vector<std::string> warnings;
    const auto source = [&] {
      RolloutSource all = source_of({}, [&](const std::string& text) {
        const std::scoped_lock lock(mutex);
        warnings.push_back(text);
      });
      all.rewards.clear();
      all.rewards.push_back(std::make_unique<LowIdsAtTheSecondAttempt>());
      return all;
    };
    const Trained trained = train(rollouts(), ranks, {}, 2, true, 3e-3, cpu, source);
    for (const auto& step : trained.metrics) {
      const std::map<std::string, double> metrics(step.begin(), step.end());
      EXPECT_EQ(metrics.at("rewards/second/retries"), ranks);
    }
    EXPECT_THAT(warnings, testing::SizeIs(static_cast<std::size_t>(ranks)));
    EXPECT_THAT(warnings, Each(HasSubstr("second failed and was repeated, because the server is busy")));
  }
  const Trained never = train(rollouts(), 1, {}, 1);
  const std::map<std::string, double> metrics(never.metrics[0].begin(), never.metrics[0].end());
  EXPECT_FALSE(metrics.contains("rewards/low/retries"));
}

TEST(Rollouts, DynamicSamplingGeneratesTheSameAnswersOnEveryMesh) {
  ModelConfig mixture = test::tiny_mixture();
  mixture.moe.experts = 4;
  mixture.moe.training = {};
  struct Case {
    const char* name;
    int ranks;
    engine::MeshShape shape;
    ModelConfig model;
    engine::Sharding sharding = engine::Sharding::kNone;
  };
  const std::vector<Case> cases = {{"data", 2, {}, tiny_llama()},
                                   {"tensor", 2, {.tensor = 2}, tiny_llama()},
                                   {"pipeline and context", 4, {.context = 2, .pipeline = 2}, tiny_llama()},
                                   {"shards", 2, {}, tiny_llama(), engine::Sharding::kParameters},
                                   {"experts", 2, {.expert = 2}, mixture}};
  const auto source = [] {
    RolloutSource all = source_of();
    all.prompt_at = [](std::int64_t number) { return number % std::ssize(kPrompts); };
    all.rewards.clear();
    all.rewards.push_back(std::make_unique<LowIdsOfSomePrompts>());
    return all;
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    SessionSettings settings = rollouts(c.model);
    const RolloutSettings rule{
        .max_completion_length = kMaxAnswer,
        .num_generations = kGroup,
        .sampling_attempts = 10,
        .advantages = [](std::span<const std::optional<double>> rewards, std::int64_t functions,
                         std::span<const double>) {
          return compute_advantages({.num_generations = kGroup, .scale_rewards = "none"}, rewards, functions);
        }};
    settings.loss_rule = rollout_rule(rule, [] { return std::make_unique<Reinforce>(); });
    const Trained one = train(settings, 1, {}, 3, true, 3e-3, cpu, source);
    settings.sharding = c.sharding;
    settings.reduce_each_microbatch = c.sharding == engine::Sharding::kParameters;
    const Trained trained = train(settings, c.ranks, c.shape, 3, true, 3e-3, cpu, source);
    EXPECT_EQ(trained.answers, one.answers);
    for (std::size_t s = 0; s < one.losses.size(); ++s) {
      EXPECT_NEAR(trained.losses[s], one.losses[s], 1e-5);
      EXPECT_NEAR(trained.norms[s], one.norms[s], 1e-4 * one.norms[s]);
      // The steps keep only groups of prompts 0 and 3, because all rewards of the other prompts are equal.
      EXPECT_EQ(one.answers[s].size(), static_cast<std::size_t>(kAnswers));
      for (const std::vector<std::int32_t>& answer : one.answers[s])
        EXPECT_TRUE(answer.front() == 0 || answer.front() == 3) << answer.front();
      const std::map<std::string, double> metrics(trained.metrics[s].begin(), trained.metrics[s].end());
      EXPECT_EQ(metrics.at("frac_reward_zero_std"), 0);
      EXPECT_GE(metrics.at("dynamic_sampling/batches"), 3);
      EXPECT_GT(metrics.at("dynamic_sampling/discarded"), 0.3);
      EXPECT_LT(metrics.at("dynamic_sampling/reward"), metrics.at("reward"));
    }
    for (std::size_t r = 0; r < trained.used.size(); ++r)
      EXPECT_EQ(trained.used[r].persistent, trained.memory[r].persistent);
  }
}

// A source whose prompts are those of prompts_of(), and whose functions can be called in the background.
RolloutSource source_ahead() {
  RolloutSource all = source_of();
  all.prompt_at = [](std::int64_t number) {
    const std::int64_t groups = kAnswers / kGroup;
    return (number % groups + number / groups) % std::ssize(kPrompts);
  };
  all.make_rewards = [] {
    std::vector<std::unique_ptr<RewardFunction>> rewards;
    rewards.push_back(std::make_unique<LowIds>(nullptr));
    return rewards;
  };
  return all;
}

SessionSettings rollouts_ahead(std::int64_t batches, const ModelConfig& model = tiny_llama(),
                               std::int64_t iterations = 1) {
  SessionSettings settings = rollouts(model);
  const RolloutSettings rule{.max_completion_length = kMaxAnswer,
                             .iterations = iterations,
                             .num_generations = kGroup,
                             .ahead = {.batches = batches},
                             .advantages = group_advantages};
  settings.loss_rule = rollout_rule(rule, [] { return std::make_unique<Reinforce>(); });
  return settings;
}

// The batches of steps 1 to N + 1 are generated with the initial weights, and batch n with the weights after
// step n - 1 - N. Weights that never change show which prompts and random numbers a batch has; weights that
// change show when it was generated.
TEST(Rollouts, AnswersAheadFollowAFixedSchedule) {
  const int steps = 6;
  const double rate = 3e-2;
  const auto run = [&](std::int64_t batches, double at) {
    return train(rollouts_ahead(batches), 1, {}, steps, true, at, cpu, source_ahead);
  };
  const Trained frozen = run(0, 0), none = train(rollouts(), 1, {}, steps, true, rate), zero = run(0, rate);
  EXPECT_EQ(zero.answers, none.answers);
  EXPECT_EQ(zero.weights, none.weights);
  EXPECT_FALSE(std::ranges::any_of(
      none.metrics[0], [](const auto& metric) { return metric.first.starts_with("rollout/staleness"); }));
  for (const std::int64_t ahead : {1, 2}) {
    SCOPED_TRACE(ahead);
    EXPECT_EQ(run(ahead, 0).answers, frozen.answers);
    const Trained trained = run(ahead, rate);
    for (int s = 0; s < steps; ++s) {
      const auto step = static_cast<std::size_t>(s);
      const std::map<std::string, double> metrics(trained.metrics[step].begin(), trained.metrics[step].end());
      // By hand: 0, 1, 1, 1, ... and 0, 1, 2, 2, ... updates.
      EXPECT_EQ(metrics.at("rollout/staleness"), std::min<std::int64_t>(s, ahead)) << s;
      if (s <= ahead) {
        EXPECT_EQ(trained.answers[step], frozen.answers[step]) << s;
      } else {
        EXPECT_NE(trained.answers[step], frozen.answers[step]) << s;
      }
    }
    // The first update is the same in both runs. The run with fresh answers uses its weights in step 2, and
    // the other run in the step after the batches of the initial weights.
    EXPECT_EQ(trained.answers[0], none.answers[0]);
    EXPECT_NE(trained.answers[1], none.answers[1]);
  }
}

TEST(Rollouts, AnswersAheadAreTheSameOnEveryMesh) {
  ModelConfig mixture = test::tiny_mixture();
  mixture.moe.experts = 4;
  mixture.moe.training = {};
  struct Case {
    const char* name;
    int ranks;
    engine::MeshShape shape;
    ModelConfig model;
    engine::Sharding sharding = engine::Sharding::kNone;
  };
  const std::vector<Case> cases = {{"data", 2, {}, tiny_llama()},
                                   {"tensor and data", 4, {.tensor = 2}, tiny_llama()},
                                   {"pipeline and context", 4, {.context = 2, .pipeline = 2}, tiny_llama()},
                                   {"shards", 2, {}, tiny_llama(), engine::Sharding::kParameters},
                                   {"experts", 2, {.expert = 2}, mixture}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    SessionSettings settings = rollouts_ahead(2, c.model);
    const Trained one = train(settings, 1, {}, 4, true, 3e-3, cpu, source_ahead);
    settings.sharding = c.sharding;
    settings.reduce_each_microbatch = c.sharding == engine::Sharding::kParameters;
    const Trained trained = train(settings, c.ranks, c.shape, 4, true, 3e-3, cpu, source_ahead);
    EXPECT_EQ(trained.answers, one.answers);
    for (std::size_t s = 0; s < one.losses.size(); ++s) {
      EXPECT_NEAR(trained.losses[s], one.losses[s], 1e-5);
      EXPECT_NEAR(trained.norms[s], one.norms[s], 1e-4 * one.norms[s]);
      EXPECT_NEAR(trained.rewards[s], one.rewards[s], 1e-6);
    }
    for (std::size_t r = 0; r < trained.used.size(); ++r)
      EXPECT_EQ(trained.used[r].persistent, trained.memory[r].persistent);
  }
}

TEST(Rollouts, SkippedMicrobatchesChangeNothing) {
  for (const int ranks : {1, 2}) {
    const Trained skipped = train(rollouts(), ranks, {}), whole = train(rollouts(), ranks, {}, 3, false);
    EXPECT_THAT(skipped.filled, Each(testing::Lt(kAnswers / (2 * ranks))));
    EXPECT_EQ(skipped.losses, whole.losses);
    EXPECT_EQ(skipped.norms, whole.norms);
    EXPECT_EQ(skipped.answers, whole.answers);
    EXPECT_EQ(skipped.weights, whole.weights);
  }
}

// A reference model reads what the inner rule receives, so skipped microbatches must not be among it.
TEST(Rollouts, TheInnerRuleDoesNotReceiveSkippedMicrobatches) {
  SessionSettings settings = rollouts();
  settings.loss_rule = rollout_rule({.max_completion_length = kMaxAnswer, .advantages = group_advantages},
                                    [] { return std::make_unique<CountMicrobatches>(); });
  const Trained trained = train(settings, 1, {});
  for (std::size_t s = 0; s < trained.filled.size(); ++s) {
    const std::map<std::string, double> metrics(trained.metrics[s].begin(), trained.metrics[s].end());
    EXPECT_EQ(metrics.at("microbatches"), static_cast<double>(trained.filled[s]));
    EXPECT_LT(trained.filled[s], kAnswers / 2);
  }
}

TEST(Rollouts, EverySampleDiffersAndMetricsDescribeThem) {
  const Trained trained = train(rollouts(), 1, {}, 2);
  // There are 16 answers to 4 prompts, drawn with different seeds.
  EXPECT_GT(trained.answers[0].size(), 0U);
  EXPECT_EQ(std::set(trained.answers[0].begin(), trained.answers[0].end()).size(), 16U);
  EXPECT_NE(trained.answers[0], trained.answers[1]);
  std::map<std::string, double> metrics(trained.metrics[0].begin(), trained.metrics[0].end());
  double tokens = 0, cut = 0;
  for (const std::vector<std::int32_t>& answer : trained.answers[0]) {
    const auto prompt = kPrompts[static_cast<std::size_t>(answer[0])].size();
    tokens += static_cast<double>(answer.size() - 1 - prompt);
    cut += answer.back() == kEnd ? 0 : 1;
  }
  EXPECT_NEAR(metrics.at("completions/mean_length"), tokens / 16, 1e-9);
  EXPECT_NEAR(metrics.at("completions/clipped_ratio"), cut / 16, 1e-9);
  EXPECT_EQ(metrics.at("completions/without_reward"), 0);
  EXPECT_EQ(metrics.at("rewards/low/without"), 0);
  EXPECT_EQ(metrics.at("reward"), metrics.at("rewards/low/mean"));
  EXPECT_GT(metrics.at("rollout/tokens_per_second"), 0);
}

TEST(Rollouts, TheModelLearnsWhatIsRewarded) {
  const Trained trained = train(rollouts(), 1, {}, 40, true, 1e-2);
  EXPECT_LT(trained.rewards.front(), 0.3);
  // The mean reward of the last 80 answers.
  EXPECT_GT(std::accumulate(trained.rewards.end() - 5, trained.rewards.end(), 0.0) / 5, 0.8);
}

// Runs steps whose rewards fail for some answers. Returns the error, and the microbatches of the last step.
std::string step_with_failures(std::function<bool(const ScoredAnswer&)> fails,
                               std::vector<data::Batch>& batches, const std::atomic<bool>* stop = nullptr,
                               const std::vector<std::int64_t>& steps = {1},
                               std::function<void(const std::string&)> warn = {}) {
  SessionSettings settings = rollouts();
  settings.step.microbatches = kAnswers / settings.step.micro_batch;
  reserve_decoder(settings, 16, 1, false);
  engine::Rank rank(turbo::make_cpu_device(1));
  const std::unique_ptr<TrainingSession> session = open_session(rank, settings, test::all_families());
  session->store().initialize(rank.context(), 7);
  session->set_stop(stop);
  dynamic_cast<RolloutRule&>(*session->rule()).connect(source_of(std::move(fails), std::move(warn)));
  try {
    for (const std::int64_t step : steps) {
      batches = prompts_of(settings.step, 0, 1, 0);
      session->before_step(step, batches);
    }
  } catch (const Error& error) {
    return error.render();
  } catch (const StopRequest&) {
    return "stopped";
  }
  return {};
}

TEST(Rollouts, AnswersWithoutARewardAreNotCounted) {
  std::vector<data::Batch> batches;
  const auto fails = [](const ScoredAnswer& answer) { return answer.prompt == prompt_text(1); };
  EXPECT_EQ(step_with_failures(fails, batches), "");
  for (const data::Batch& batch : batches) {
    for (std::size_t d = 0; d < batch.document_roles.size(); ++d) {
      if (batch.document_records[d] != 1) continue;
      EXPECT_EQ(batch.document_values[d], 0);
    }
  }
  EXPECT_THAT(step_with_failures([](const ScoredAnswer&) { return true; }, batches),
              AllOf(HasSubstr("none of the 16 answers"), HasSubstr("low: the program failed")));
}

TEST(Rollouts, TheFirstFailureOfAFunctionIsLogged) {
  std::vector<data::Batch> batches;
  std::vector<std::string> warnings;
  const auto fails = [](const ScoredAnswer& answer) { return answer.prompt == prompt_text(1); };
  const auto warn = [&warnings](const std::string& text) { warnings.push_back(text); };
  EXPECT_EQ(step_with_failures(fails, batches, nullptr, {1, 2}, warn), "");
  EXPECT_THAT(warnings, ElementsAre(AllOf(HasSubstr("step 1"), HasSubstr("low gave no reward to 4 of 16"),
                                          HasSubstr("the program failed"))));
}

TEST(Rollouts, ARunEndsAfterThreeStepsWithoutRewards) {
  std::vector<data::Batch> batches;
  std::vector<std::string> warnings;
  bool works = false;
  const auto fails = [&works](const ScoredAnswer&) { return !works; };
  const auto warn = [&](const std::string& text) {
    warnings.push_back(text);
    works = warnings.size() == 3;
  };
  // The function and steps 2 and 3 give a warning each. After the third warning, the function succeeds, so
  // step 4 has rewards.
  EXPECT_EQ(step_with_failures(fails, batches, nullptr, {2, 3, 4}, warn), "");
  EXPECT_THAT(warnings.back(), AllOf(HasSubstr("step 3: none of the 16"), HasSubstr("the program failed")));
  EXPECT_EQ(step_with_failures([](const ScoredAnswer&) { return true; }, batches, nullptr, {2, 3}), "");
  for (const data::Batch& batch : batches) EXPECT_THAT(batch.document_values, Each(0.0F));
  EXPECT_THAT(step_with_failures([](const ScoredAnswer&) { return true; }, batches, nullptr, {2, 3, 4}),
              AllOf(HasSubstr("last 3 steps"), HasSubstr("low: the program failed")));
}

TEST(Rollouts, RewardFunctionsGetTheNumberOfTokens) {
  std::vector<data::Batch> batches;
  std::set<bool> finished;
  const auto check = [&finished](const ScoredAnswer& answer) {
    std::istringstream text(answer.completion);
    std::int64_t tokens = 0;
    for (int id = 0; text >> id;) ++tokens;
    EXPECT_EQ(answer.tokens, tokens);  // without the token that ends the answer
    finished.insert(answer.finished);
    return false;
  };
  EXPECT_EQ(step_with_failures(check, batches), "");
  EXPECT_FALSE(finished.empty());
}

TEST(Rollouts, GenerationStopsWhenTheRunIsAskedToStop) {
  std::vector<data::Batch> batches;
  const std::atomic<bool> stop = true;
  EXPECT_EQ(step_with_failures({}, batches, &stop), "stopped");
}

// One rank is asked to stop, before it generates answers or while it computes rewards. All ranks leave the
// step together, and can then repeat it.
TEST(Rollouts, AllRanksLeaveTheStepIfOneIsAskedToStop) {
  struct Case {
    engine::MeshShape shape;
    engine::Sharding sharding = engine::Sharding::kNone;
    int asked = 0;  // the rank that is asked to stop
  };
  const std::vector<Case> cases = {{{}, engine::Sharding::kNone, 0},
                                   {{}, engine::Sharding::kNone, 1},
                                   {{.tensor = 2}, engine::Sharding::kNone, 0},
                                   {{.tensor = 2}, engine::Sharding::kNone, 1},
                                   {{.pipeline = 2}, engine::Sharding::kNone, 0},
                                   {{}, engine::Sharding::kParameters, 0}};
  for (const Case& c : cases) {
    for (const bool in_rewards : {false, true}) {
      SCOPED_TRACE(testing::Message() << c.shape.tensor << " tensor ranks, " << c.shape.pipeline
                                      << " stages, rank " << c.asked << (in_rewards ? ", in rewards" : ""));
      SessionSettings settings = rollouts();
      const int data_ranks = 2 / (c.shape.tensor * c.shape.pipeline);
      settings.sharding = c.sharding;
      settings.step.microbatches = kAnswers / settings.step.micro_batch / data_ranks;
      reserve_decoder(settings, 16, data_ranks, generates_together(settings, c.shape, 2));
      on_ranks(2, c.shape, [&](engine::Rank& rank) {
        const std::unique_ptr<TrainingSession> session = open_session(rank, settings, test::all_families());
        session->store().initialize(rank.context(), 7);
        std::atomic<bool> stop = false;
        const auto ask = [&] { stop = rank.mesh().rank() == c.asked; };
        bool calls = in_rewards;
        session->set_stop(&stop);
        dynamic_cast<RolloutRule&>(*session->rule()).connect(source_of([&](const ScoredAnswer&) {
          if (std::exchange(calls, false)) ask();
          return false;
        }));
        if (!in_rewards) ask();
        std::vector<data::Batch> batches = prompts_of(settings.step, 0, data_ranks, rank.mesh().data_rank());
        const bool tells = rank.mesh().place().tensor == 0 && rank.mesh().place().stage == 0;
        // A rank that calls no reward functions is not asked within one.
        if (!in_rewards || c.asked == 0 || data_ranks == 2) {
          EXPECT_THROW(session->before_step(1, batches), StopRequest);
        } else {
          EXPECT_NO_THROW(session->before_step(1, batches));
        }
        EXPECT_EQ(in_rewards && tells, in_rewards && !calls);
        stop = false;
        batches = prompts_of(settings.step, 0, data_ranks, rank.mesh().data_rank());
        EXPECT_NO_THROW(session->before_step(1, batches));
      });
    }
  }
}

// The log-probabilities of sampler and trainer have the same bits on each mesh, although the sampler reads
// prompts in passes with other numbers of rows, and generates one token of each answer at a time.
TEST(Rollouts, BatchInvariantSamplersAndTrainersAgreeBitForBitOnEveryMesh) {
  ModelConfig mixture = test::tiny_mixture();
  mixture.moe.experts = 6;
  mixture.moe.training = {.balance_loss = 0.02, .z_loss = 0.01};
  struct Case {
    int ranks;
    engine::MeshShape shape;
    engine::Sharding sharding = engine::Sharding::kNone;
  };
  const std::vector<Case> dense = {{1, {}},
                                   {2, {}},
                                   {2, {}, engine::Sharding::kParameters},
                                   {2, {.tensor = 2}},
                                   {2, {.pipeline = 2}},
                                   {4, {.tensor = 2, .pipeline = 2}}};
  const std::vector<Case> routed = {{1, {}}, {2, {.expert = 2}}, {2, {.tensor = 2, .expert = 2}}};
  for (const bool routes : {false, true}) {
    for (const DType compute : {DType::kF32, DType::kBF16}) {
      for (const Case& c : routes ? routed : dense) {
        SCOPED_TRACE(testing::Message() << (routes ? "mixture, " : "dense, ") << name_of(compute) << ", "
                                        << c.ranks << " ranks, tensor " << c.shape.tensor << ", pipeline "
                                        << c.shape.pipeline << ", expert " << c.shape.expert);
        SessionSettings settings = rollouts(routes ? mixture : tiny_llama());
        settings.compute = compute;
        settings.sharding = c.sharding;
        settings.loss_rule =
            rollout_rule({.max_completion_length = kMaxAnswer, .advantages = group_advantages},
                         [] { return std::make_unique<CountDifferences>(); });
        const Trained trained = train(settings, c.ranks, c.shape, 2, true, 3e-3, batch_invariant_cpu);
        for (const auto& metrics : trained.metrics) {
          const std::map<std::string, double> values(metrics.begin(), metrics.end());
          EXPECT_GT(values.at("answer_tokens"), 40);
          EXPECT_EQ(values.at("differing_tokens"), 0);
        }
      }
    }
  }
}

}  // namespace
}  // namespace primus
