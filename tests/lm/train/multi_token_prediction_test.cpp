// Tests multi-token prediction. Losses equal the losses of a naive Llama in double precision. This covers the
// order of the joined halves, positions of predicted tokens, masks at the ends of documents, and means.
// Gradients equal finite differences. Other results do not change. Bit-exactness is tested in
// invariants_test.cpp, model "deepseek".
#include "lm/model/multi_token_prediction.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "lm/model/blocks/mixture_of_experts.h"
#include "lm/model/outside_families.h"
#include "lm/train/finite_differences.h"
#include "lm/train/tiny_model.h"

namespace primus::test {
namespace {

constexpr double kLossScale = 0.3;

ModelConfig small_llama(std::int64_t depths) {
  ModelConfig c = tiny_llama();
  c.layers = 1;
  c.init_std = 0.2;
  c.mtp = {.layers = depths, .enabled = depths > 0, .training = {.loss_scale = kLossScale}};
  return c;
}

// One microbatch of two sequences, packed or not.
struct MtpRun {
  MtpRun(const ModelConfig& config, bool packed, std::uint64_t seed = 7)
      : rank(turbo::make_cpu_device(1)),
        batch(2 * 16, config.vocab, 5),
        session(open_session(rank, settings(config, packed), all_families())) {
    if (packed) batch.pack({0, 5, 6, 8, 16, 27});
    batch.loss_mask[20] = 0;
    session->store().initialize(rank.context(), seed);
  }

  static SessionSettings settings(const ModelConfig& config, bool packed) {
    SessionSettings s = tiny_settings(DType::kF32, config);
    s.step.microbatches = 1;
    s.step.packed_documents = packed;
    return s;
  }

  StepResult step() {
    session->step().begin();
    session->step().microbatch(0, batch);
    session->step().finish_gradients();
    return session->step().result();
  }

  engine::Rank rank;
  TestBatch batch;
  std::unique_ptr<TrainingSession> session;
};

// --- a Llama in double precision, written from the papers

using Rows = std::vector<std::vector<double>>;

class NaiveLlama {
 public:
  NaiveLlama(const ModelConfig& config, engine::Rank& rank, const engine::ParameterStore& store)
      : c_(config) {
    for (const engine::Parameter& p : store.parameters()) {
      const std::vector<float> values = values_of(rank, p.value);
      const auto cols = static_cast<std::size_t>(p.shape[p.shape.rank() - 1]);
      Rows& rows = weights_[p.name];
      for (std::size_t at = 0; at < values.size(); at += cols)
        rows.emplace_back(values.begin() + static_cast<std::ptrdiff_t>(at),
                          values.begin() + static_cast<std::ptrdiff_t>(at + cols));
    }
  }

  // Returns the weighted mean loss of each depth, where depth 0 is the model itself, over documents that
  // start at `starts`.
  std::vector<double> losses(const TestBatch& batch, const std::vector<std::int32_t>& starts) const {
    const std::size_t depths = static_cast<std::size_t>(c_.mtp.layers) + 1;
    std::vector<double> sums(depths), counts(depths);
    for (std::size_t d = 0; d + 1 < starts.size(); ++d) {
      const auto begin = static_cast<std::size_t>(starts[d]);
      const auto length = static_cast<std::size_t>(starts[d + 1]) - begin;
      Rows x;
      for (std::size_t t = 0; t < length; ++t) x.push_back(embedding(batch.tokens[begin + t]));
      Rows h = norm(block(std::move(x), 0), "final_norm");
      for (std::size_t k = 0; k < depths; ++k) {
        if (k > 0) h = module(h, batch, begin, k);
        for (std::size_t t = 0; t + k < length; ++t) {
          const double weight = static_cast<double>(batch.loss_mask[begin + t + k]);
          sums[k] += weight * cross_entropy(h[t], batch.labels[begin + t + k]);
          counts[k] += weight;
        }
      }
    }
    for (std::size_t k = 0; k < depths; ++k) sums[k] /= counts[k];
    return sums;
  }

 private:
  const Rows& weight(const std::string& name) const { return weights_.at(name); }
  const std::vector<double>& embedding(std::int32_t token) const {
    return weight("embedding")[static_cast<std::size_t>(token)];
  }

  // Computes h_k of a document from h_(k-1). Tokens after the end of the document get a placeholder, because
  // they affect no position with a loss.
  Rows module(const Rows& h, const TestBatch& batch, std::size_t begin, std::size_t k) const {
    const std::string at = "layers." + std::to_string(c_.layers + static_cast<std::int64_t>(k) - 1);
    Rows joined;
    for (std::size_t t = 0; t < h.size(); ++t) {
      const std::int32_t token = t + k < h.size() ? batch.tokens[begin + t + k] : 96;
      std::vector<double> row = norm({embedding(token)}, at + ".enorm")[0];
      const std::vector<double> hidden = norm({h[t]}, at + ".hnorm")[0];
      row.insert(row.end(), hidden.begin(), hidden.end());
      joined.push_back(std::move(row));
    }
    return norm(block(times(joined, at + ".eh_proj"), c_.layers + static_cast<std::int64_t>(k) - 1),
                at + ".final_norm");
  }

  Rows times(const Rows& x, const std::string& name) const {
    Rows y;
    for (const auto& row : x) {
      auto& out = y.emplace_back();
      for (const auto& w : weight(name)) {
        double sum = 0;
        for (std::size_t i = 0; i < row.size(); ++i) sum += row[i] * w[i];
        out.push_back(sum);
      }
    }
    return y;
  }

  Rows norm(Rows x, const std::string& name) const {
    for (auto& row : x) {
      double squares = 0;
      for (const double v : row) squares += v * v;
      const double scale = 1 / std::sqrt(squares / static_cast<double>(row.size()) + c_.norm_epsilon);
      for (std::size_t i = 0; i < row.size(); ++i) row[i] *= scale * weight(name)[0][i];
    }
    return x;
  }

  Rows block(Rows x, std::int64_t layer) const {
    const std::string at = "layers." + std::to_string(layer);
    add(x, times(attention(times(norm(x, at + ".attention_norm"), at + ".attention.qkv")),
                 at + ".attention.out"));
    Rows gated = times(norm(x, at + ".ffn_norm"), at + ".ffn.gate_up");
    for (auto& row : gated) {
      const auto ffn = static_cast<std::size_t>(c_.ffn);
      for (std::size_t i = 0; i < ffn; ++i) row[i] = row[i] / (1 + std::exp(-row[i])) * row[ffn + i];
      row.resize(ffn);
    }
    add(x, times(gated, at + ".ffn.down"));
    return x;
  }

  static void add(Rows& x, const Rows& y) {
    for (std::size_t t = 0; t < x.size(); ++t) {
      for (std::size_t i = 0; i < x[t].size(); ++i) x[t][i] += y[t][i];
    }
  }

  Rows attention(Rows qkv) const {
    const auto dim = static_cast<std::size_t>(c_.head_dim), heads = static_cast<std::size_t>(c_.heads);
    const auto kv_heads = static_cast<std::size_t>(c_.kv_heads);
    for (std::size_t t = 0; t < qkv.size(); ++t) {
      for (std::size_t head = 0; head < heads + kv_heads; ++head) rotate(&qkv[t][head * dim], dim, t);
    }
    Rows out(qkv.size(), std::vector<double>(heads * dim));
    for (std::size_t t = 0; t < qkv.size(); ++t) {
      for (std::size_t head = 0; head < heads; ++head) {
        const std::size_t k = (heads + head / (heads / kv_heads)) * dim, v = k + kv_heads * dim;
        double total = 0;
        for (std::size_t s = 0; s <= t; ++s) {
          double score = 0;
          for (std::size_t i = 0; i < dim; ++i) score += qkv[t][head * dim + i] * qkv[s][k + i];
          const double share = std::exp(score / std::sqrt(static_cast<double>(dim)));
          total += share;
          for (std::size_t i = 0; i < dim; ++i) out[t][head * dim + i] += share * qkv[s][v + i];
        }
        for (std::size_t i = 0; i < dim; ++i) out[t][head * dim + i] /= total;
      }
    }
    return out;
  }

  void rotate(double* head, std::size_t dim, std::size_t position) const {
    for (std::size_t i = 0; i < dim / 2; ++i) {
      const double angle = static_cast<double>(position) *
                           std::pow(c_.rope_theta, -2.0 * static_cast<double>(i) / static_cast<double>(dim));
      const double x = head[i], y = head[dim / 2 + i];
      head[i] = x * std::cos(angle) - y * std::sin(angle);
      head[dim / 2 + i] = y * std::cos(angle) + x * std::sin(angle);
    }
  }

  double cross_entropy(const std::vector<double>& h, std::int32_t label) const {
    const std::vector<double> logits = times({h}, "head")[0];
    double total = 0;
    for (const double v : logits) total += std::exp(v);
    return std::log(total) - logits[static_cast<std::size_t>(label)];
  }

  ModelConfig c_;
  std::map<std::string, Rows> weights_;
};

struct NaiveCase {
  std::int64_t depths;
  bool packed;
};
class NaiveReference : public testing::TestWithParam<NaiveCase> {};

TEST_P(NaiveReference, HasTheSameLosses) {
  const auto [depths, packed] = GetParam();
  const ModelConfig config = small_llama(depths);
  MtpRun run(config, packed);
  // Norm weights of 1 would hide which norm is applied where.
  for (engine::Parameter& p : run.session->store().parameters()) {
    if (p.shape.rank() > 1) continue;
    std::vector<float> values = values_of(run.rank, p.value);
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = 1 + 0.3F * std::sin(static_cast<float>(i + 1) * static_cast<float>(p.index + 1));
    run.rank.compute().copy_to_device(p.value.data, values.data(), p.value.bytes());
    run.rank.compute().synchronize();
  }
  const StepResult result = run.step();
  const std::vector<double> expected =
      NaiveLlama(config, run.rank, run.session->store())
          .losses(run.batch, packed ? run.batch.document_starts : std::vector<std::int32_t>{0, 16, 32});
  double mean = 0;
  for (std::size_t k = 1; k < expected.size(); ++k) mean += expected[k] / static_cast<double>(depths);
  EXPECT_NEAR(result.loss, expected[0], 1e-5 * expected[0]);
  ASSERT_TRUE(result.mtp_loss);
  EXPECT_NEAR(*result.mtp_loss, mean, 1e-5 * mean);
  EXPECT_GT(std::abs(mean - expected[0]), 1e-3);
}

INSTANTIATE_TEST_SUITE_P(Depths, NaiveReference,
                         testing::Values(NaiveCase{1, false}, NaiveCase{1, true}, NaiveCase{2, false},
                                         NaiveCase{2, true}, NaiveCase{3, true}),
                         [](const auto& c) {
                           return "Depth" + std::to_string(c.param.depths) + (c.param.packed ? "Packed" : "");
                         });

// --- gradients

ModelConfig deepseek_of_all_experts() {
  ModelConfig c = tiny_deepseek();
  c.init_std = 0.2;
  c.moe.router.top_k = static_cast<std::int32_t>(c.moe.experts);  // steps must not change choices
  c.moe.router.groups = c.moe.router.top_groups = 1;
  c.moe.training = {};
  return c;
}

class Gradients : public testing::TestWithParam<bool> {};

TEST_P(Gradients, AreFiniteDifferences) {
  for (ModelConfig config : {small_llama(1), small_llama(2), deepseek_of_all_experts()}) {
    SCOPED_TRACE(config.family);
    config.tied_embeddings = GetParam();
    MtpRun run(config, true);
    expect_finite_differences(*run.session, [&] {
      const StepResult result = run.step();
      return result.loss + kLossScale * *result.mtp_loss;
    });
  }
}
INSTANTIATE_TEST_SUITE_P(Heads, Gradients, testing::Bool(),
                         [](const auto& tied) { return tied.param ? "Tied" : "Separate"; });

// --- one mean over all labels of a step (calculate_per_token_loss)

// Two microbatches of one sequence each, one with many labels and one with few, equal one microbatch with
// both: every label has equal weight.
TEST(MultiTokenPrediction, MicrobatchesWithDifferentNumbersOfLabelsEqualOneBatch) {
  constexpr std::size_t kSequence = 16;
  const ModelConfig config = small_llama(2);
  TestBatch all(2 * kSequence, config.vocab, 5);
  for (std::size_t t = kSequence; t < 2 * kSequence - 5; ++t) all.loss_mask[t] = 0;
  const double labels = std::accumulate(all.loss_mask.begin(), all.loss_mask.end(), 0.0);
  struct Outcome {
    StepResult result;
    std::vector<float> gradients;
  };
  const auto run = [&](std::size_t microbatches) {
    engine::Rank rank(turbo::make_cpu_device(1));
    SessionSettings settings = tiny_settings(DType::kF32, config);
    const std::size_t sequences = 2 / microbatches;
    settings.step = {.micro_batch = static_cast<std::int64_t>(sequences),
                     .sequence = kSequence,
                     .microbatches = static_cast<std::int64_t>(microbatches)};
    const auto session = open_session(rank, settings, all_families());
    session->store().initialize(rank.context(), 7);
    session->step().begin();
    for (std::size_t m = 0; m < microbatches; ++m) {
      TestBatch part = all;
      const auto cut = [&](auto& values) {
        const auto begin = values.begin() + static_cast<std::ptrdiff_t>(m * sequences * kSequence);
        values = {begin, begin + static_cast<std::ptrdiff_t>(sequences * kSequence)};
      };
      cut(part.tokens);
      cut(part.labels);
      cut(part.loss_mask);
      part.loss_divisor = labels / static_cast<double>(microbatches);  // as in data::BatchLoader
      session->step().microbatch(static_cast<std::int64_t>(m), part);
    }
    session->step().finish_gradients();
    Outcome outcome{session->step().result(), {}};
    for (const engine::Parameter& p : session->store().parameters()) {
      if (!p.trainable) continue;
      const std::vector<float> values = values_of(rank, p.gradient);
      outcome.gradients.insert(outcome.gradients.end(), values.begin(), values.end());
    }
    return outcome;
  };
  const Outcome one = run(1), two = run(2);
  EXPECT_NEAR(two.result.loss, one.result.loss, 1e-5 * one.result.loss);
  EXPECT_NEAR(*two.result.mtp_loss, *one.result.mtp_loss, 1e-5 * *one.result.mtp_loss);
  double squares = 0, error = 0;
  ASSERT_EQ(one.gradients.size(), two.gradients.size());
  for (std::size_t i = 0; i < one.gradients.size(); ++i) {
    squares += static_cast<double>(one.gradients[i]) * static_cast<double>(one.gradients[i]);
    error += std::pow(static_cast<double>(one.gradients[i]) - static_cast<double>(two.gradients[i]), 2);
  }
  EXPECT_GT(squares, 0);
  EXPECT_LE(std::sqrt(error / squares), 1e-5);
}

// --- unchanged results

TEST(MultiTokenPrediction, DoesNotChangeTheModelsOwnLoss) {
  MtpRun with(small_llama(1), false), without(small_llama(0), false);
  const StepResult a = with.step(), b = without.step();
  EXPECT_EQ(a.loss, b.loss);
  EXPECT_FALSE(b.mtp_loss);
  EXPECT_NE(a.gradient_norm, b.gradient_norm);
  const auto evaluate = [](MtpRun& run) {
    run.session->step().begin_evaluation();
    run.session->step().evaluate(run.batch);
    return run.session->step().evaluation_loss();
  };
  EXPECT_EQ(evaluate(with), evaluate(without));
}

// With a vanishing loss scale, gradients equal those of a model without multi-token prediction.
TEST(MultiTokenPrediction, ScalesTheGradient) {
  ModelConfig faint = small_llama(1);
  faint.mtp.training.loss_scale = 1e-9;
  MtpRun with(faint, false), without(small_llama(0), false);
  const StepResult a = with.step(), b = without.step();
  EXPECT_NEAR(a.gradient_norm, b.gradient_norm, 1e-6 * b.gradient_norm);
  EXPECT_NEAR(*a.mtp_loss, *MtpRun(small_llama(1), false).step().mtp_loss, 1e-5 * *a.mtp_loss);
}

TEST(MultiTokenPrediction, CostsNothingIfDisabled) {
  const auto measure = [](ModelConfig config, std::int64_t layers, bool enabled) {
    config.mtp = {.layers = layers, .enabled = enabled};
    engine::Rank rank(turbo::make_cpu_device(1));
    return measure_session(rank, MtpRun::settings(config, false), builtin_families());
  };
  const ModelConfig config = tiny_deepseek();
  const StepMeasurement none = measure(config, 0, false), off = measure(config, 1, false),
                        on = measure(config, 1, true);
  EXPECT_EQ(off.parameters, none.parameters);
  EXPECT_EQ(off.memory.total(), none.memory.total());
  EXPECT_EQ(off.kernels.total_flops(), none.kernels.total_flops());
  EXPECT_GT(on.parameters, none.parameters);
  EXPECT_GT(on.memory.stash, none.memory.stash);
}

// The counts include one more block, a second use of the head, and the projection of the joined input.
TEST(MultiTokenPrediction, CountsParametersAndFlops) {
  ModelConfig config = small_llama(1);
  const double with = training_flops(config, 1, 16);
  config.mtp.enabled = false;
  const double h = 48, q = 48, kv = 24, projections = h * (q + 2 * kv) + q * h;
  EXPECT_DOUBLE_EQ(with - training_flops(config, 1, 16),
                   6 * 16 * (2 * h * h + projections + q * 16 + 3 * h * 80 + h * 97));
}

TEST(MultiTokenPrediction, CountsItsExperts) {
  SessionSettings settings = MtpRun::settings(tiny_deepseek(), false);
  MtpRun run(settings.model, false);
  const StepResult result = run.step();
  ASSERT_EQ(result.routing.size(), 3U);  // layer 1, and one per depth
  EXPECT_EQ(result.routing[2].layer, 3);
  for (const LayerRouting& layer : result.routing) {
    std::int64_t choices = 0;
    for (const std::int32_t load : layer.load) choices += load;
    EXPECT_EQ(choices, 2 * 16 * 2);
  }
  // The biases of experts in the module follow the load of the experts, as in other layers.
  run.session->step().update(1, 0, 0);
  int biases = 0;
  for (const engine::Parameter& p : run.session->store().parameters()) {
    if (!p.name.ends_with("choice_bias")) continue;
    ++biases;
    for (const float bias : values_of(run.rank, p.value)) EXPECT_EQ(std::abs(bias), 0x1p-7F) << p.name;
  }
  EXPECT_EQ(biases, 3);
}

// The block of a depth has the kind of the model's last layer.
TEST(MultiTokenPrediction, BlocksEqualTheModelsLastBlock) {
  for (const bool dense : {false, true}) {
    ModelConfig config = tiny_deepseek();
    config.set_layers(&LayerSpec::feed_forward, &kMixture);
    config.at(dense ? 1 : 0).feed_forward = &kDenseFeedForward;
    engine::ParameterStore store;
    const LanguageModel model(config, builtin_families(), store);
    int routers = 0;
    for (const engine::Parameter& p : store.parameters()) routers += p.name.ends_with("router");
    EXPECT_EQ(routers, dense ? 1 : 3);
  }
}

TEST(MultiTokenPrediction, NamesTheFaultyOperator) {
  MtpRun run(small_llama(1), false);
  for (engine::Parameter& p : run.session->store().parameters()) {
    if (p.name != "layers.1.attention.out") continue;
    const float nan = NAN;
    run.rank.compute().copy_to_device(p.value.data, &nan, sizeof(nan));
  }
  const StepResult result = run.step();
  EXPECT_TRUE(std::isfinite(result.loss));
  EXPECT_TRUE(std::isnan(*result.mtp_loss));
  EXPECT_TRUE(std::isnan(result.gradient_norm));
  EXPECT_EQ(run.session->step().find_non_finite(), "layers.1.linear");
}

}  // namespace
}  // namespace primus::test
