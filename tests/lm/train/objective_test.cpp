// A third objective, defined only in this test: direct preference optimization of pairs. The model generates
// the rejected text of a pair. The objective needs a frozen model, losses weighted on the device, and a
// decoding phase before each step. No code outside this test refers to preferences.
#include "lm/train/objectives/objective.h"

#include <gmock/gmock.h>

#include <cmath>
#include <cstring>

#include "config/experiment.h"
#include "config/stages.h"
#include "lm/train/rank_training.h"
#include "lm/train/step/token_scorer.h"

namespace primus {
namespace {

using test::all_families;
using test::on_ranks;
using test::TestBatch;
using test::tiny_llama;
using test::tiny_lora;
using test::tiny_settings;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr double kBeta = 0.3;

// Log-probabilities summed over both texts: a microbatch is a pair of a chosen and a rejected text.
struct Pair {
  double chosen = 0, rejected = 0;
  double margin() const { return chosen - rejected; }
};

// Returns L = -ln sigmoid(beta (m - m')), where m is the policy's margin of log-probabilities and m' that of
// the reference.
double loss_of(const Pair& policy, const Pair& reference) {
  return std::log1p(std::exp(-kBeta * (policy.margin() - reference.margin())));
}

class PreferenceRule final : public LossRule {
 public:
  explicit PreferenceRule(bool writes) : writes_(writes) {}

  std::vector<FrozenModel> frozen_models(const ModelConfig& model) const override {
    return {{.name = "reference", .model = model}};
  }

  void prepare(TrainingSession& session) override {
    StepSettings step = session.settings().step;
    step.compute = session.settings().compute;
    scorer_.emplace(session.rank(), session.frozen("reference"), step, TokenScorer::Options{});
    reference_ = session.rank().persistent(DType::kF32, {step.microbatches, scorer_->tokens()});
    microbatches_ = step.microbatches * session.rank().mesh().data_ranks();
  }

  void load_weights(TrainingSession& session) override {
    ModelInstance& reference = session.frozen("reference");
    reference.store().initialize(session.rank().context(), 7);
    reference.parallel().distribute_values();
  }

  void before_step(const BeforeStep& step) override {
    const bool measures = step.session.rank().measuring();
    if (writes_ && !measures) {
      if (!step.session.decoding()->parallel) step.session.parallel().wait_for_all_values();
      for (data::Batch& batch : step.batches) write_rejected(*step.session.make_decoder(), batch);
    }
    for (std::size_t i = 0; i < step.batches.size(); ++i) {
      const Tensor row = reference_.slice(static_cast<std::int64_t>(i), static_cast<std::int64_t>(i) + 1);
      scorer_->score(step.batches[i], row.reshaped({scorer_->tokens()}));
    }
  }

  std::vector<std::string> metrics() const override { return {"loss", "margin"}; }

  // This code works only on the CPU, where the host may read device memory between kernels. A GPU would need
  // a kernel.
  void weigh(const TokenLosses& tokens) override {
    if (tokens.rank.measuring()) return;
    tokens.rank.compute().synchronize();
    const auto count = static_cast<std::size_t>(tokens.losses.elements());
    const float* const losses = static_cast<const float*>(tokens.losses.data);
    const float* const reference =
        static_cast<const float*>(reference_.slice(tokens.microbatch, tokens.microbatch + 1).data);
    float* const weights = static_cast<float*>(tokens.weights.data);
    float* const metrics = static_cast<float*>(tokens.metrics.data);
    Pair policy, frozen;
    for (std::size_t t = 0; t < count; ++t) {
      if (weights[t] == 0) continue;
      (t < count / 2 ? policy.chosen : policy.rejected) -= static_cast<double>(losses[t]);
      (t < count / 2 ? frozen.chosen : frozen.rejected) -= static_cast<double>(reference[t]);
    }
    const double share = 1 / static_cast<double>(microbatches_);
    const double slope = share * kBeta / (1 + std::exp(kBeta * (policy.margin() - frozen.margin())));
    for (std::size_t t = 0; t < count; ++t) {
      if (weights[t] != 0) weights[t] = static_cast<float>(t < count / 2 ? slope : -slope);
    }
    metrics[0] += static_cast<float>(share * loss_of(policy, frozen));
    metrics[1] += static_cast<float>(share * policy.margin());
  }

 private:
  // Makes the second row from the first four tokens of the first row and the text that the model generates
  // after them.
  static void write_rejected(DecodeScheduler& decoder, data::Batch& batch) {
    const std::size_t sequence = batch.tokens.size() / 2;
    std::vector<std::int32_t> text(batch.tokens.begin(), batch.tokens.begin() + 4);
    const Generation written =
        generate(decoder, text, {.max_tokens = static_cast<std::int64_t>(sequence) - 3});
    text.insert(text.end(), written.ids.begin(), written.ids.end());
    for (std::size_t t = 0; t < sequence; ++t) {
      batch.tokens[sequence + t] = text[t];
      batch.labels[sequence + t] = text[t + 1];
    }
  }

  bool writes_;
  std::optional<TokenScorer> scorer_;
  Tensor reference_;  // [microbatches, tokens]: -ln p of the reference
  std::int64_t microbatches_ = 1;
};

SessionSettings preferences(bool writes) {
  SessionSettings settings = tiny_settings();
  settings.evaluation = false;
  settings.loss_rule = [writes] { return std::make_unique<PreferenceRule>(writes); };
  if (writes) settings.sample_capacity = 32;
  return settings;
}

TestBatch pair_of(const SessionSettings& settings, std::int64_t number) {
  return {settings.step.micro_batch * settings.step.sequence, settings.model.vocab,
          static_cast<std::uint64_t>(number)};
}

struct Trained {
  std::vector<double> losses, margins, norms;
  std::vector<engine::MemoryPlan> memory, used;
};

Trained train(SessionSettings settings, int ranks, const engine::MeshShape& shape, int steps = 3,
              std::int64_t microbatches = 4) {
  settings.step.microbatches = microbatches / shape.data(ranks);
  Trained out;
  out.memory.resize(static_cast<std::size_t>(ranks));
  out.used.resize(static_cast<std::size_t>(ranks));
  on_ranks(ranks, shape, [&](engine::Rank& rank) {
    const auto r = static_cast<std::size_t>(rank.mesh().rank());
    out.memory[r] = measure_session(rank, settings, all_families()).memory;
    rank.reserve(out.memory[r]);
    TrainingSession session(rank, settings, all_families());
    session.store().initialize(rank.context(), 7);
    session.parallel().distribute_values();
    session.rule()->load_weights(session);
    for (int s = 0; s < steps; ++s) {
      std::vector<data::Batch> batches;
      for (std::int64_t i = 0; i < settings.step.microbatches; ++i)
        batches.push_back(pair_of(settings, i * shape.data(ranks) + rank.mesh().data_rank()));
      session.before_step(s + 1, batches);
      session.step().begin(s + 1);
      for (std::size_t i = 0; i < batches.size(); ++i)
        session.step().microbatch(static_cast<std::int64_t>(i), batches[i]);
      session.step().finish_gradients();
      const StepResult result = session.step().result();
      session.step().update(s + 1, 3e-3, 0.1);
      if (r != 0) continue;
      out.losses.push_back(result.loss);
      out.norms.push_back(result.gradient_norm);
      ASSERT_EQ(result.metrics.size(), 1U);
      EXPECT_EQ(result.metrics.front().first, "margin");
      out.margins.push_back(result.metrics.front().second);
    }
    rank.synchronize();
    out.used[r] = rank.high_water();
  });
  return out;
}

TEST(Objective, APreferenceLossNeedsNothingElse) {
  const Trained trained = train(preferences(false), 1, {});
  ASSERT_EQ(trained.losses.size(), 3U);
  // At the start, the policy equals the reference, so the loss is ln 2.
  EXPECT_NEAR(trained.losses[0], std::log(2.0), 1e-6);
  EXPECT_LT(trained.losses[2], 0.95 * trained.losses[0]);
  EXPECT_GT(trained.margins[2], trained.margins[0]);
}

// Measuring includes the memory of both models, of the reference's passes, and of the rule.
TEST(Objective, FrozenModelsAreMeasured) {
  const Trained trained = train(preferences(true), 1, {});
  EXPECT_EQ(trained.used[0].persistent, trained.memory[0].persistent);
  EXPECT_EQ(trained.used[0].stash, trained.memory[0].stash);
  EXPECT_EQ(trained.used[0].scratch, trained.memory[0].scratch);
  SessionSettings single = preferences(true);
  single.loss_rule = {};
  single.step.microbatches = 4;
  engine::Rank rank(turbo::make_cpu_device(1));
  const std::int64_t without = measure_session(rank, single, all_families()).memory.persistent;
  engine::ParameterStore store;
  const LanguageModel model(single.model, all_families(), store);
  EXPECT_GE(trained.memory[0].persistent - without, store.elements() * 4);
}

// The phase before each update generates with the current weights.
TEST(Objective, ModelsGenerateBeforeAStep) {
  const Trained trained = train(preferences(true), 1, {}, 4);
  EXPECT_NEAR(trained.losses[0], std::log(2.0), 1e-6);
  EXPECT_LT(trained.losses[3], trained.losses[0]);
}

TEST(Objective, EveryMeshEqualsOneDevice) {
  for (const bool writes : {false, true}) {
    const Trained one = train(preferences(writes), 1, {});
    const std::vector<std::pair<int, engine::MeshShape>> meshes = {
        {2, {}}, {2, {.tensor = 2}}, {2, {.pipeline = 2}}, {4, {.tensor = 2, .pipeline = 2}}};
    for (const auto& [ranks, shape] : meshes) {
      SCOPED_TRACE(testing::Message() << ranks << " ranks, tensor " << shape.tensor << ", pipeline "
                                      << shape.pipeline << (writes ? ", writes" : ""));
      for (const engine::Sharding sharding : {engine::Sharding::kNone, engine::Sharding::kParameters}) {
        if (sharding != engine::Sharding::kNone && shape.pipeline > 1) continue;
        SessionSettings settings = preferences(writes);
        settings.sharding = sharding;
        settings.reduce_each_microbatch = sharding == engine::Sharding::kParameters;
        const Trained trained = train(settings, ranks, shape);
        ASSERT_EQ(trained.losses.size(), one.losses.size());
        for (std::size_t s = 0; s < one.losses.size(); ++s) {
          EXPECT_NEAR(trained.losses[s], one.losses[s], 1e-5 * one.losses[s]);
          EXPECT_NEAR(trained.norms[s], one.norms[s], 1e-4 * one.norms[s]);
        }
        for (std::size_t r = 0; r < trained.used.size(); ++r) {
          EXPECT_EQ(trained.used[r].persistent, trained.memory[r].persistent);
          EXPECT_EQ(trained.used[r].stash, trained.memory[r].stash);
        }
      }
    }
  }
}

// Along the gradient g, the loss grows at the rate |g|^2.
TEST(Objective, WeightedLossesHaveCorrectGradients) {
  SessionSettings settings = preferences(false);
  settings.step.microbatches = 1;
  engine::Rank rank(turbo::make_cpu_device(1));
  const std::unique_ptr<TrainingSession> session = open_session(rank, settings, all_families());
  session->store().initialize(rank.context(), 9);
  session->rule()->load_weights(*session);  // seed 7 gives another model
  std::vector<data::Batch> batches = {pair_of(settings, 3)};
  const auto step = [&] {
    session->before_step(1, batches);
    session->step().begin(1);
    session->step().microbatch(0, batches[0]);
    session->step().finish_gradients();
    return session->step().result();
  };
  const StepResult at = step();
  std::vector<std::vector<float>> gradients;
  for (const engine::ParameterUnit& unit : session->store().units()) {
    const std::vector<std::byte> bits = test::bits_of(rank, unit.reduced);
    std::vector<float>& values = gradients.emplace_back(bits.size() / sizeof(float));
    std::memcpy(values.data(), bits.data(), bits.size());
  }
  const auto moved = [&](double by) {
    std::size_t u = 0;
    for (engine::ParameterUnit& unit : session->store().units()) {
      float* const master = static_cast<float*>(unit.stored.master.data);
      for (std::size_t i = 0; i < gradients[u].size(); ++i)
        master[i] = static_cast<float>(master[i] + by * static_cast<double>(gradients[u][i]));
      ++u;
    }
    session->store().refresh_values(rank.context());
  };
  const double square = at.gradient_norm * at.gradient_norm;
  const double by = 1e-2 / at.gradient_norm;
  moved(by);
  const double above = step().loss;
  moved(-2 * by);
  const double below = step().loss;
  // The tolerance covers the rounding of two fp32 losses near 1, relative to the difference of the losses,
  // and the third derivative.
  EXPECT_NEAR((above - below) / (2 * by), square, 5e-3 * square);
}

// A rule that keeps the weights of the mask gives the bits of a run without a rule.
class MaskRule final : public LossRule {
 public:
  void weigh(const TokenLosses&) override {}
};

TEST(Objective, ARuleWithoutEffectTrainsTheSameBits) {
  ModelConfig divided = tiny_llama();
  divided.logit_divisor = 4;
  for (const ModelConfig& model : {tiny_llama(), divided, test::with_tied_embeddings(tiny_llama())}) {
    SessionSettings settings = tiny_settings(DType::kF32, model);
    const test::TrainedState without = test::train(turbo::make_cpu_device(1), settings);
    settings.loss_rule = [] { return std::make_unique<MaskRule>(); };
    EXPECT_TRUE(test::train(turbo::make_cpu_device(1), settings) == without);
  }
}

// With LoRA, the reference is the base model: a pass without the adapters. It needs no extra memory.
TEST(Objective, APassWithoutAdaptersIsTheBaseModel) {
  SessionSettings settings = tiny_settings(DType::kF32, tiny_lora());
  settings.evaluation = false;
  const auto losses = [&](ModelConfig model, bool adapters) {
    engine::Rank rank(turbo::make_cpu_device(1));
    std::vector<float> values(static_cast<std::size_t>(settings.step.micro_batch * settings.step.sequence));
    const auto pass = [&] {
      ModelInstance instance(rank,
                             {.model = model,
                              .layout = {.states = {{}}, .groups = engine::group_places(rank.mesh())},
                              .positions = settings.step.sequence},
                             all_families());
      instance.store().initialize(rank.context(), 7);
      // Sets the adapters to nonzero values, because B starts at zero.
      for (const engine::Parameter& p : instance.store().parameters()) {
        if (!p.is_low_rank || rank.measuring()) continue;
        const Tensor stored = engine::stored_part(p.unit->stored.values, p);
        for (std::int64_t i = 0; i < stored.elements(); ++i)
          static_cast<float*>(stored.data)[i] = 0.05F * static_cast<float>(i % 7 - 3);
      }
      TokenScorer scorer(rank, instance, settings.step, {.adapters = adapters});
      const Tensor out = rank.persistent(DType::kF32, {scorer.tokens()});
      scorer.score(pair_of(settings, 5), out);
      if (rank.measuring()) return;
      rank.compute().copy_to_host(values.data(), out.data, out.bytes());
      rank.compute().synchronize();
    };
    pass();
    rank.reserve(rank.high_water());
    pass();
    return values;
  };
  ModelConfig base = tiny_lora();
  base.lora = {};
  const std::vector<float> plain = losses(base, true);
  EXPECT_EQ(losses(tiny_lora(), false), plain);
  EXPECT_NE(losses(tiny_lora(), true), plain);
}

TEST(Objective, EveryStageHasOne) {
  std::vector<std::string_view> names;
  for (const ObjectiveEntry* entry : objectives()) names.push_back(entry->stage.name);
  for (const config::Stage& stage : config::stages())
    EXPECT_NE(std::ranges::find(names, stage.name), names.end()) << stage.name;
  EXPECT_EQ(names.size(), config::stages().size());
}

}  // namespace
}  // namespace primus
