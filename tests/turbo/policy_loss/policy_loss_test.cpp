#include "turbo/policy_loss/policy_loss.h"

#include "turbo/device_names.h"
#include "turbo/operator_test.h"

namespace primus::turbo::test {
namespace {

class PolicyLossTest : public ::testing::TestWithParam<DeviceUnderTest> {};
INSTANTIATE_TEST_SUITE_P(Devices, PolicyLossTest, ::testing::ValuesIn(devices_under_test()), device_name);

// A microbatch: three answers, of which one has more tokens than a block has threads, an answer without
// learned tokens, and padding. In the whole step there are six answers.
const Values kStarts = {0, 9, 330, 334, 340, 350};
const Values kRoles = {PolicyLoss::kAnswer, PolicyLoss::kAnswer, PolicyLoss::kAnswer, PolicyLoss::kAnswer, 0};
const Values kAdvantages = {0.75, -1.5, 2, -0.5, 4};
constexpr std::size_t kCount = 350, kPadding = 340;

struct Case {
  std::string name;
  PolicyTerms terms;
};

std::vector<Case> cases() {
  const PolicyTerms wide{.low = 0.1, .high = 0.15};
  std::vector<Case> all;
  const auto add = [&](std::string name, auto change) {
    all.push_back({std::move(name), wide});
    change(all.back().terms);
  };
  for (const auto average : {PolicyAverage::kAnswerMeans, PolicyAverage::kMicrobatchMeans,
                             PolicyAverage::kTokens, PolicyAverage::kLengths, PolicyAverage::kAnswerSums}) {
    add("average " + std::to_string(static_cast<int>(average)), [&](PolicyTerms& t) { t.average = average; });
    add("sequence, average " + std::to_string(static_cast<int>(average)), [&](PolicyTerms& t) {
      t.average = average;
      t.ratio = PolicyRatio::kMean;
    });
  }
  for (const auto ratio : {PolicyRatio::kToken, PolicyRatio::kMean}) {
    for (const bool bias : {false, true}) {
      add("divergence", [&](PolicyTerms& t) {
        t.ratio = ratio;
        t.beta = 0.3;
        t.bias_correction = bias;
      });
    }
    add("two-sided", [&](PolicyTerms& t) {
      t.ratio = ratio;
      t.delta = 1.05;
    });
    add("sapo", [&](PolicyTerms& t) {
      t.type = PolicyType::kSapo;
      t.ratio = ratio;
    });
    add("off-policy mask", [&](PolicyTerms& t) {
      t.ratio = ratio;
      t.masks_drift = true;
      t.drift = -0.1;
    });
    for (const auto correction : {PolicyCorrection::kTokenTruncate, PolicyCorrection::kTokenMask,
                                  PolicyCorrection::kSequenceTruncate, PolicyCorrection::kSequenceMask}) {
      add("correction " + std::to_string(static_cast<int>(correction)), [&](PolicyTerms& t) {
        t.ratio = ratio;
        t.correction = correction;
        t.correction_min = 0.9;
        t.correction_max = 1.2;
      });
    }
  }
  add("rloo", [](PolicyTerms& t) {
    t.ratio = PolicyRatio::kSum;
    t.average = PolicyAverage::kAnswers;
  });
  return all;
}

struct Outcome {
  Values weights, entropy_weights, metrics;
  double metric(PolicyMetric which) const { return metrics[static_cast<std::size_t>(which)]; }
};

class Bench {
 public:
  explicit Bench(DeviceUnderTest device) : bench_(std::move(device)) {
    losses = random_values(kCount, 1);
    // Differences of log-probabilities are about as large as in training, and the long answer's sum is small.
    const Values noise = random_values(kCount, 2), gap = random_values(kCount, 3),
                 far = random_values(kCount, 4);
    for (std::size_t t = 0; t < kCount; ++t) {
      losses[t] = 2 + losses[t];
      old.push_back(-losses[t] + 0.2 * noise[t]);
      sampled.push_back(old[t] + (t < 9 ? 0.1 : 0.02) * gap[t]);
      reference.push_back(losses[t] + 0.3 * far[t]);
      entropies.push_back(1 + std::abs(far[t]));
      mask.push_back((t >= 334 && t < kPadding) || t % 7 == 0 ? 0 : 1);
    }
    for (Values* values : {&losses, &old, &sampled, &reference, &entropies})
      *values = rounded(*values, DType::kF32);
  }

  Outcome run(const PolicyTerms& terms, const Values& at, bool on_policy = false, double entropy_coef = 0) {
    const PolicyTokens tokens{
        .losses = upload(at, DType::kF32),
        .mask = upload(mask, DType::kF32),
        .old = on_policy ? Tensor() : upload(old, DType::kF32),
        .sampled = terms.correction == PolicyCorrection::kNone ? Tensor() : upload(sampled, DType::kF32),
        .reference = terms.beta != 0 ? upload(reference, DType::kF32) : Tensor(),
        .entropies = upload(entropies, DType::kF32),
        .chosen = chosen.empty() ? Tensor() : upload(chosen, DType::kF32)};
    const Tensor starts = upload(kStarts, DType::kI32), sums = bench_.empty(DType::kF64, {5, kPolicySums});
    bench_.run(PolicySums{.terms = terms, .tokens = tokens, .starts = starts, .sums = sums});
    double count = 0;
    for (std::size_t t = 0; t < kPadding; ++t) count += mask[t];
    PolicyLoss call{.terms = terms,
                    .tokens = tokens,
                    .microbatches = 2,
                    .microbatch_tokens = count,
                    .entropy_coef = entropy_coef,
                    .places = {},
                    .adds_answers = true,
                    .starts = starts,
                    .roles = upload(kRoles, DType::kI32),
                    .advantages = upload(kAdvantages, DType::kF32),
                    .sums = sums,
                    .totals = upload({6, 500}, DType::kF64),
                    .weights = bench_.empty(DType::kF32, {static_cast<std::int64_t>(kCount)}),
                    .entropy_weights = entropy_coef == 0
                                           ? Tensor()
                                           : bench_.zeros(DType::kF32, {static_cast<std::int64_t>(kCount)}),
                    .metrics = bench_.zeros(DType::kF32, {kPolicyMetrics}),
                    .workspace = {}};
    for (int m = 0; m < kPolicyMetrics; ++m) call.places[m] = static_cast<std::int8_t>(m);
    bench_.run(call);
    return {
        .weights = bench_.download(call.weights),
        .entropy_weights = call.entropy_weights.absent() ? Values() : bench_.download(call.entropy_weights),
        .metrics = bench_.download(call.metrics)};
  }

  Values losses, old, sampled, reference, entropies, mask;
  Values chosen;  // empty: all tokens are chosen

 private:
  Tensor upload(const Values& values, DType dtype) {
    return bench_.upload(values, dtype, {static_cast<std::int64_t>(values.size())});
  }

  OperatorBench bench_;
};

// Chooses three of four tokens.
Values most_tokens() {
  Values chosen;
  for (std::size_t t = 0; t < kCount; ++t) chosen.push_back(t % 4 == 1 ? 0 : 1);
  return chosen;
}

// Moves log-probabilities of some tokens of every answer. Losses are fp32, so their differences are rounded.
// At a corner of a clipped loss, the derivative is between the derivatives on both sides, so such tokens are
// compared with both.
TEST_P(PolicyLossTest, DerivativesAreThoseOfTheLoss) {
  Bench bench(GetParam());
  constexpr double kStep = 0x1p-7;
  std::vector<Case> all = cases();
  // Token 1 is not chosen, but in sequence-level ratios it affects the ratio of its answer.
  for (const Case& c : cases()) {
    if (c.terms.average != PolicyAverage::kAnswers) all.push_back({c.name + ", chosen tokens", c.terms});
  }
  for (const Case& c : all) {
    SCOPED_TRACE(c.name);
    bench.chosen = c.name.ends_with("chosen tokens") ? most_tokens() : Values();
    const Outcome out = bench.run(c.terms, bench.losses);
    double largest = 0;
    for (const double weight : out.weights) largest = std::max(largest, std::abs(weight));
    EXPECT_GT(largest, 0);
    for (const std::size_t t : {0U, 1U, 5U, 200U, 330U, 345U}) {
      if (bench.mask[t] == 0 || t >= kPadding) {
        EXPECT_EQ(out.weights[t], 0) << t;
        continue;
      }
      Values moved = bench.losses;
      moved[t] = bench.losses[t] + kStep;
      const Outcome above = bench.run(c.terms, moved);
      moved[t] = bench.losses[t] - kStep;
      const Outcome below = bench.run(c.terms, moved);
      const double up = above.metric(PolicyMetric::kLoss), down = below.metric(PolicyMetric::kLoss);
      const double difference = (up - down) / (2 * kStep);
      const double rounding = (std::abs(up) + std::abs(down)) * 0x1p-24 / kStep;
      const double low = std::min({above.weights[t], below.weights[t], out.weights[t]});
      const double high = std::max({above.weights[t], below.weights[t], out.weights[t]});
      EXPECT_GE(difference, low - rounding - 1e-4 * largest) << t;
      EXPECT_LE(difference, high + rounding + 1e-4 * largest) << t;
    }
  }
}

// The losses of ln p have constant coefficients, so the loss is the weighted sum of -ln p.
TEST_P(PolicyLossTest, LossesOfLogProbabilitiesAreWeightedSums) {
  Bench bench(GetParam());
  for (const auto type : {PolicyType::kCispo, PolicyType::kVespo}) {
    const PolicyTerms terms{.type = type, .high = 1.1};
    const Outcome out = bench.run(terms, bench.losses);
    double sum = 0, phi = 0;
    for (std::size_t d = 0; d < 3; ++d) {
      double log_w = 0;
      const auto begin = static_cast<std::size_t>(kStarts[d]), end = static_cast<std::size_t>(kStarts[d + 1]);
      for (std::size_t t = begin; t < end; ++t) log_w += bench.mask[t] * (-bench.losses[t] - bench.old[t]);
      const bool positive = kAdvantages[d] >= 0;
      const double k = positive ? 2 : 3, lambda = positive ? 3 : 2;
      log_w = std::min(std::max(log_w, std::log(1e-8)), 20.0);
      const double answer = std::exp(lambda + k * log_w - lambda * std::exp(log_w));
      phi += answer / 6;
      for (std::size_t t = begin; t < end; ++t) {
        const double ratio = std::min(std::exp(-bench.losses[t] - bench.old[t]), 1.1);
        const double factor = type == PolicyType::kCispo ? ratio : answer;
        const double expected = bench.mask[t] * factor * kAdvantages[d] / 500;
        // The absolute tolerance covers underflow, because the smallest fp32 number is about 1e-45.
        EXPECT_NEAR(out.weights[t], expected, 1e-6 * std::abs(expected) + 1e-40) << t;
        sum += expected * bench.losses[t];
      }
    }
    EXPECT_NEAR(out.metric(PolicyMetric::kLoss), sum, 1e-6 * std::max(1.0, std::abs(sum)));
    // The fourth answer has no tokens, so its ratio and its phi are 1.
    if (type == PolicyType::kVespo) {
      EXPECT_NEAR(out.metric(PolicyMetric::kPhi), phi + 1.0 / 6, 1e-6);
    }
  }
}

// A token that is not chosen has only the KL term. Metrics of tokens count all tokens.
TEST_P(PolicyLossTest, TokensThatAreNotChosenHaveOnlyTheKlTerm) {
  Bench bench(GetParam());
  const PolicyTerms terms{.beta = 0.3};
  const Outcome all = bench.run(terms, bench.losses);
  bench.chosen.assign(kCount, 0);
  const Outcome none = bench.run(terms, bench.losses);
  bench.chosen = most_tokens();
  const Outcome most = bench.run(terms, bench.losses);
  for (std::size_t t = 0; t < kPadding; ++t)
    EXPECT_EQ(most.weights[t], bench.chosen[t] != 0 ? all.weights[t] : none.weights[t]) << t;
  EXPECT_NEAR(none.metric(PolicyMetric::kLoss), 0.3 * none.metric(PolicyMetric::kDivergence), 1e-6);
  for (const PolicyMetric metric :
       {PolicyMetric::kEntropy, PolicyMetric::kDivergence, PolicyMetric::kRatio, PolicyMetric::kClipped}) {
    EXPECT_EQ(none.metric(metric), all.metric(metric));
    EXPECT_EQ(most.metric(metric), all.metric(metric));
  }
}

// Without old log-probabilities, ratios are exactly 1, and the weight of each token is its advantage, divided
// by the tokens of the step.
TEST_P(PolicyLossTest, OnPolicyRatiosAreOne) {
  Bench bench(GetParam());
  const Outcome out = bench.run({}, bench.losses, true);
  double tokens = 0, loss = 0;
  for (std::size_t d = 0; d < 4; ++d) {
    for (auto t = static_cast<std::size_t>(kStarts[d]); t < static_cast<std::size_t>(kStarts[d + 1]); ++t) {
      EXPECT_EQ(out.weights[t],
                static_cast<double>(static_cast<float>(bench.mask[t] * kAdvantages[d] / 500)));
      tokens += bench.mask[t];
      loss -= bench.mask[t] * kAdvantages[d] / 500;
    }
  }
  EXPECT_NEAR(out.metric(PolicyMetric::kRatio), tokens / 500, 1e-6);
  EXPECT_NEAR(out.metric(PolicyMetric::kLoss), loss, 1e-6);
  EXPECT_EQ(out.metric(PolicyMetric::kClipped), 0);
}

// The bonus does not depend on how the loss is averaged. The bonus does not change the weights of
// log-probabilities.
TEST_P(PolicyLossTest, TheEntropyBonusIsAMeanOverTheTokensOfTheStep) {
  Bench bench(GetParam());
  for (const bool of_answers : {false, true}) {
    PolicyTerms terms;
    if (of_answers) terms = {.ratio = PolicyRatio::kSum, .average = PolicyAverage::kAnswers};
    const Outcome plain = bench.run(terms, bench.losses);
    const Outcome out = bench.run(terms, bench.losses, false, 0.25);
    double mean = 0;
    for (std::size_t t = 0; t < kCount; ++t) {
      const bool counts = t < kPadding && bench.mask[t] != 0;
      EXPECT_EQ(out.entropy_weights[t], counts ? static_cast<double>(-0.25F / 500) : 0) << t;
      if (counts) mean += bench.entropies[t] / 500;
    }
    EXPECT_EQ(out.weights, plain.weights);
    EXPECT_NEAR(out.metric(PolicyMetric::kEntropy), mean, 1e-6);
    EXPECT_NEAR(plain.metric(PolicyMetric::kEntropy), mean, 1e-6);
    EXPECT_EQ(out.metric(PolicyMetric::kPolicyLoss), plain.metric(PolicyMetric::kLoss));
    EXPECT_NEAR(out.metric(PolicyMetric::kLoss), plain.metric(PolicyMetric::kLoss) - 0.25 * mean, 1e-6);
  }
}

// Tokens without a mask are not read.
TEST_P(PolicyLossTest, MaskedTokensMayHoldAnything) {
  Bench bench(GetParam());
  PolicyTerms terms{.correction = PolicyCorrection::kTokenMask, .beta = 0.1, .correction_max = 2};
  const Outcome clean = bench.run(terms, bench.losses);
  for (std::size_t t = 0; t < kCount; ++t) {
    if (bench.mask[t] != 0) continue;
    for (Values* values : {&bench.losses, &bench.old, &bench.sampled, &bench.reference, &bench.entropies})
      (*values)[t] = INFINITY;
  }
  const Outcome out = bench.run(terms, bench.losses);
  for (std::size_t t = 0; t < kPadding; ++t) EXPECT_EQ(out.weights[t], clean.weights[t]) << t;
  EXPECT_EQ(out.metrics, clean.metrics);
}

// The losses of PPO. Rows of a microbatch are the documents. One of three tokens has no loss, and the values
// of these tokens are not read.
class IndependentTokens {
 public:
  static constexpr std::size_t kTokenCount = 600;
  static constexpr double kTotal = 700;

  explicit IndependentTokens(DeviceUnderTest device) : bench_(std::move(device)) {
    const Values noise = random_values(kTokenCount, 5), far = random_values(kTokenCount, 6);
    losses = random_values(kTokenCount, 7);
    targets = random_values(kTokenCount, 8);
    for (std::size_t t = 0; t < kTokenCount; ++t) {
      losses[t] += 2;
      old.push_back(losses[t] + 0.4 * noise[t]);
      entropies.push_back(1 + std::abs(far[t]));
      mask.push_back(t % 3 == 0 ? 0 : 1);
    }
    for (Values* values : {&losses, &old, &targets, &entropies}) {
      *values = rounded(*values, DType::kF32);
      for (std::size_t t = 0; t < kTokenCount; t += 3) (*values)[t] = INFINITY;
    }
  }

  // `earlier`: ln p or the values under the weights that generated the answers.
  Outcome run(const PolicyTerms& terms, const Values& earlier) {
    const bool values = terms.type == PolicyType::kValues;
    PolicyLoss call{.terms = terms,
                    .tokens = {.losses = upload(losses),
                               .mask = upload(mask),
                               .old = upload(earlier),
                               .sampled = {},
                               .reference = {},
                               .entropies = values ? Tensor() : upload(entropies),
                               .chosen = {},
                               .advantages = values ? Tensor() : upload(targets),
                               .returns = values ? upload(targets) : Tensor()},
                    .places = {},
                    .adds_answers = false,
                    .starts = bench_.upload({0, 500, kTokenCount}, DType::kI32, {3}),
                    .roles = bench_.upload({PolicyLoss::kAnswer, PolicyLoss::kAnswer}, DType::kI32, {2}),
                    .advantages = {},
                    .sums = {},
                    .totals = bench_.upload({0, kTotal}, DType::kF64, {2}),
                    .weights = bench_.empty(DType::kF32, {kTokenCount}),
                    .entropy_weights = {},
                    .metrics = bench_.zeros(DType::kF32, {kPolicyMetrics}),
                    .workspace = {}};
    for (int m = 0; m < kPolicyMetrics; ++m) call.places[m] = static_cast<std::int8_t>(m);
    bench_.run(call);
    return {.weights = bench_.download(call.weights),
            .entropy_weights = {},
            .metrics = bench_.download(call.metrics)};
  }

  Values losses, old, targets, entropies, mask;

 private:
  Tensor upload(const Values& values) { return bench_.upload(values, DType::kF32, {kTokenCount}); }

  OperatorBench bench_;
};

TEST_P(PolicyLossTest, EachTokenMayHaveItsOwnAdvantage) {
  IndependentTokens tokens(GetParam());
  Values earlier = tokens.old;
  for (double& log_prob : earlier) log_prob = -log_prob;
  const Outcome out = tokens.run({.low = 0.1, .high = 0.1}, earlier);
  double loss = 0, clipped = 0, ratios = 0, change = 0, entropy = 0;
  for (std::size_t t = 0; t < IndependentTokens::kTokenCount; ++t) {
    double weight = 0;
    if (tokens.mask[t] != 0) {
      const double d = -tokens.losses[t] - earlier[t], ratio = std::exp(d), advantage = tokens.targets[t];
      const double plain = -advantage * ratio, limited = -advantage * std::clamp(ratio, 0.9, 1.1);
      loss += std::max(plain, limited) / IndependentTokens::kTotal;
      clipped += limited > plain ? 1 / IndependentTokens::kTotal : 0;
      ratios += ratio / IndependentTokens::kTotal;
      change += 0.5 * d * d / IndependentTokens::kTotal;
      entropy += tokens.entropies[t] / IndependentTokens::kTotal;
      weight = limited > plain ? 0 : advantage * ratio / IndependentTokens::kTotal;
    }
    EXPECT_NEAR(out.weights[t], weight, 1e-6 * std::abs(weight)) << t;
  }
  EXPECT_GT(clipped, 0.1);
  EXPECT_NEAR(out.metric(PolicyMetric::kLoss), loss, 1e-6);
  EXPECT_NEAR(out.metric(PolicyMetric::kPolicyLoss), loss, 1e-6);
  EXPECT_NEAR(out.metric(PolicyMetric::kClipped), clipped, 1e-6);
  EXPECT_NEAR(out.metric(PolicyMetric::kRatio), ratios, 1e-6);
  EXPECT_NEAR(out.metric(PolicyMetric::kSquaredChange), change, 1e-6);
  EXPECT_NEAR(out.metric(PolicyMetric::kEntropy), entropy, 1e-6);
}

TEST_P(PolicyLossTest, ValuesHaveAClippedRegression) {
  IndependentTokens tokens(GetParam());
  const Outcome out =
      tokens.run({.type = PolicyType::kValues, .low = 0.1, .high = 0.1, .factor = 0.25}, tokens.old);
  double loss = 0, clipped = 0;
  for (std::size_t t = 0; t < IndependentTokens::kTokenCount; ++t) {
    double weight = 0;
    if (tokens.mask[t] != 0) {
      const double value = tokens.losses[t], target = tokens.targets[t];
      const double limited = std::clamp(value, tokens.old[t] - 0.1, tokens.old[t] + 0.1);
      const double error = (value - target) * (value - target),
                   limited_error = (limited - target) * (limited - target);
      loss += 0.5 * std::max(error, limited_error) / IndependentTokens::kTotal;
      clipped += limited_error > error ? 1 / IndependentTokens::kTotal : 0;
      weight = limited_error > error ? 0 : 0.25 * (value - target) / IndependentTokens::kTotal;
    }
    EXPECT_NEAR(out.weights[t], weight, 1e-6 * std::abs(weight)) << t;
  }
  EXPECT_GT(clipped, 0.1);
  EXPECT_NEAR(out.metric(PolicyMetric::kLoss), 0.25 * loss, 1e-6);
  EXPECT_NEAR(out.metric(PolicyMetric::kPolicyLoss), loss, 1e-6);
  EXPECT_NEAR(out.metric(PolicyMetric::kClipped), clipped, 1e-6);
}

}  // namespace
}  // namespace primus::turbo::test
