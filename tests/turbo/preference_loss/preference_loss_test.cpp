#include "turbo/preference_loss/preference_loss.h"

#include "turbo/device_names.h"
#include "turbo/operator_test.h"

namespace primus::turbo::test {
namespace {

class PreferenceLossTest : public ::testing::TestWithParam<DeviceUnderTest> {};
INSTANTIATE_TEST_SUITE_P(Devices, PreferenceLossTest, ::testing::ValuesIn(devices_under_test()), device_name);

TEST_P(PreferenceLossTest, SumsTheTokensOfEachDocument) {
  OperatorBench bench(GetParam());
  const Values starts = {0, 3, 700, 700, 1000};
  const Values losses = rounded(random_values(1000, 1), DType::kF32);
  Values factors(1000);
  for (std::size_t t = 0; t < factors.size(); ++t) factors[t] = t % 3 == 0 ? 0 : t % 2 == 0 ? 0.5 : 1;
  Values expected;
  for (std::size_t d = 0; d + 1 < starts.size(); ++d) {
    expected.push_back(0);
    for (auto t = static_cast<std::size_t>(starts[d]); t < static_cast<std::size_t>(starts[d + 1]); ++t)
      expected.back() -= factors[t] * losses[t];
  }
  Values with_holes = losses;
  with_holes[0] = INFINITY;  // its factor is 0
  const Tensor sums = bench.empty(DType::kF64, {4});
  bench.run(DocumentSums{.losses = bench.upload(with_holes, DType::kF32, {1000}),
                         .factors = bench.upload(factors, DType::kF32, {1000}),
                         .starts = bench.upload(starts, DType::kI32, {5}),
                         .sums = sums});
  EXPECT_LE(normalised_error(bench.download(sums), expected), 1e-13);
  Values collisions = random_values(1000, 2);
  for (double& collision : collisions) collision = std::abs(collision) + 0.125;
  collisions = rounded(collisions, DType::kF32);
  for (std::size_t t = 0; t < collisions.size(); ++t) {
    const std::size_t d = t < 3 ? 0 : t < 700 ? 1 : 3;
    expected[d] -= factors[t] * std::log(collisions[t]);
  }
  bench.run(DocumentSums{.losses = bench.upload(with_holes, DType::kF32, {1000}),
                         .factors = bench.upload(factors, DType::kF32, {1000}),
                         .starts = bench.upload(starts, DType::kI32, {5}),
                         .sums = sums,
                         .collisions = bench.upload(collisions, DType::kF32, {1000})});
  EXPECT_LE(normalised_error(bench.download(sums), expected), 1e-13);
}

TEST_P(PreferenceLossTest, WritesTheWeightsOfTokens) {
  OperatorBench bench(GetParam());
  const Values slopes = {0.5, -2, 3, 0.25};
  const Values factors = {0, 1, 0.5, 1, 1, 0}, likelihood = {1, 1, 0, 0, 1, 1};
  for (const bool both : {false, true}) {
    const Tensor weights = bench.empty(DType::kF32, {6});
    bench.run(
        DocumentWeights{.slopes = bench.upload(slopes, DType::kF32, {2, 2}),
                        .factors = bench.upload(factors, DType::kF32, {6}),
                        .likelihood_factors = both ? bench.upload(likelihood, DType::kF32, {6}) : Tensor(),
                        .starts = bench.upload({0, 4, 6}, DType::kI32, {3}),
                        .weights = weights});
    Values expected;
    for (std::size_t t = 0; t < 6; ++t) {
      const std::size_t d = t < 4 ? 0 : 1;
      expected.push_back(-slopes[2 * d] * factors[t] - (both ? slopes[2 * d + 1] * likelihood[t] : 0));
    }
    EXPECT_EQ(bench.download(weights), expected);
  }
}

TEST_P(PreferenceLossTest, WeightsAreMultipliedByTheProbabilityOfTheLabel) {
  OperatorBench bench(GetParam());
  constexpr std::int64_t kCount = 1000;
  Values losses = rounded(random_values(kCount, 1, 5), DType::kF32);
  for (double& loss : losses) loss = std::abs(loss);
  Values weights = rounded(random_values(kCount, 2), DType::kF32);
  weights[3] = weights[500] = 0;
  Values expected;
  for (std::size_t t = 0; t < losses.size(); ++t) expected.push_back(weights[t] * std::exp(-losses[t]));
  losses[3] = NAN;  // a masked token
  losses[500] = INFINITY;
  const Tensor out = bench.upload(weights, DType::kF32, {kCount});
  bench.run(DocumentWeights{.slopes = bench.upload({-1, 0}, DType::kF32, {1, 2}),
                            .factors = out,
                            .likelihood_factors = {},
                            .starts = bench.upload({0, kCount}, DType::kI32, {2}),
                            .weights = out,
                            .losses = bench.upload(losses, DType::kF32, {kCount})});
  const Values actual = bench.download(out);
  EXPECT_LE(normalised_error(actual, expected), 5e-7);
  EXPECT_EQ(actual[3], 0);
  EXPECT_EQ(actual[500], 0);
}

// A microbatch: three pairs, then two single answers with KTO, and padding.
struct Case {
  std::string name;
  PreferenceTerms terms;
};

constexpr std::size_t kDocuments = 8;
const Values kRoles = {1, 2, 1, 2, 0, 1, 2, 3};
const Values kLengths = {4, 7, 2, 3, 0, 9, 5, 6};
// Numbers of pairs, of tokens of the likelihood loss, of chosen and of rejected answers, in the whole step.
const Values kTotals = {5, 40, 6, 4};

PreferenceTerms with(PreferenceForm form, PreferenceType type, double smoothing = 0) {
  PreferenceTerms terms{.form = form, .smoothing = smoothing};
  terms.type_weights[static_cast<int>(type)] = 0.75;
  return terms;
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (int type = 0; type <= static_cast<int>(PreferenceType::kSigmoidNorm); ++type) {
    const auto t = static_cast<PreferenceType>(type);
    if (t == PreferenceType::kLikelihood) continue;
    all.push_back({"dpo " + std::to_string(type), with(PreferenceForm::kDpo, t, 0.1)});
  }
  for (const auto divergence : {PreferenceDivergence::kForwardKl, PreferenceDivergence::kJensenShannon,
                                PreferenceDivergence::kAlpha}) {
    all.push_back({"divergence", with(PreferenceForm::kDpo, PreferenceType::kSigmoid)});
    all.back().terms.divergence = divergence;
  }
  all.push_back({"mix", with(PreferenceForm::kDpo, PreferenceType::kAot, 0.1)});
  all.back().terms.type_weights[static_cast<int>(PreferenceType::kAotUnpaired)] = 2;
  all.back().terms.type_weights[static_cast<int>(PreferenceType::kBcoPair)] = 0.5;
  all.back().terms.likelihood_weight = 1.5;
  for (const auto type : {PreferenceType::kKto, PreferenceType::kApoZeroUnpaired}) {
    all.push_back({"kto", with(PreferenceForm::kKto, type)});
    all.back().terms.desirable = 1.3;
    all.back().terms.undesirable = 0.8;
  }
  all.push_back({"orpo", with(PreferenceForm::kOrpo, PreferenceType::kSigmoid)});
  all.back().terms.likelihood_weight = 1;
  all.push_back({"reward", {.form = PreferenceForm::kReward, .beta = 1, .centering = 0.02}});
  for (const auto type :
       {PreferenceType::kSigmoid, PreferenceType::kHinge, PreferenceType::kIpo, PreferenceType::kSimpo}) {
    for (const bool averages : {false, true}) {
      all.push_back({"cpo", with(PreferenceForm::kCpo, type, 0.2)});
      all.back().terms.averages = averages;
      all.back().terms.likelihood_weight = averages ? 0 : 1;
    }
  }
  return all;
}

// The sums of log-probabilities of eight documents under the model, and the sums of the likelihood loss.
struct Outcome {
  double loss = 0;
  Values slopes;
  Values metrics;
};

class Bench {
 public:
  explicit Bench(DeviceUnderTest device) : bench_(std::move(device)) {}

  // `confidences`: empty, or a sum for each document.
  Outcome run(const PreferenceTerms& terms, const Values& sums, const Values& confidences = {}) {
    PreferenceLoss call{.terms = terms,
                        .microbatches = 2,
                        .places = {},
                        .adds_metrics = true,
                        .roles = upload(kRoles, DType::kI32),
                        .lengths = upload(kLengths, DType::kF32),
                        .sums = upload(Values(sums.begin(), sums.begin() + kDocuments), DType::kF64),
                        .reference = terms.form == PreferenceForm::kDpo ||
                                             terms.form == PreferenceForm::kKto ||
                                             terms.form == PreferenceForm::kReward
                                         ? upload(reference_, DType::kF64)
                                         : Tensor(),
                        .likelihoods = upload(Values(sums.begin() + kDocuments, sums.end()), DType::kF64),
                        .totals = upload(kTotals, DType::kF64),
                        .confidences = confidences.empty() ? Tensor() : upload(confidences, DType::kF64),
                        .slopes = bench_.empty(DType::kF32, {kDocuments, 2}),
                        .metrics = bench_.zeros(DType::kF32, {kPreferenceMetrics}),
                        .workspace = {}};
    for (int m = 0; m < kPreferenceMetrics; ++m) call.places[m] = static_cast<std::int8_t>(m);
    bench_.run(call);
    Outcome out{.slopes = bench_.download(call.slopes), .metrics = bench_.download(call.metrics)};
    out.loss = out.metrics[0];
    return out;
  }

 private:
  Tensor upload(const Values& values, DType dtype) {
    return bench_.upload(values, dtype, {static_cast<std::int64_t>(values.size())});
  }

  OperatorBench bench_;
  const Values reference_ = random_values(kDocuments, 8, 10);
};

Values some_sums() {
  Values sums = random_values(2 * kDocuments, 5, 10);
  for (double& sum : sums) sum = -std::abs(sum) - 1;
  return sums;
}

// The derivatives are those of the loss. The loss is fp32, so its differences are taken over wide steps: the
// tolerance covers the rounding of two losses near 1 to 100 and the third derivative.
TEST_P(PreferenceLossTest, DerivativesAreThoseOfTheLoss) {
  Bench bench(GetParam());
  const Values at = some_sums();
  for (const Case& c : cases()) {
    SCOPED_TRACE(c.name);
    const Outcome out = bench.run(c.terms, at);
    double largest = 0;
    for (const double slope : out.slopes) largest = std::max(largest, std::abs(slope));
    EXPECT_GT(largest, 0);
    for (std::size_t i = 0; i < 2 * kDocuments; ++i) {
      const std::size_t d = i % kDocuments;
      if (kRoles[d] == 3) continue;  // the KL estimate is a constant for the gradient
      Values moved = at;
      constexpr double kStep = 0.02;
      moved[i] = at[i] + kStep;
      const double above = bench.run(c.terms, moved).loss;
      moved[i] = at[i] - kStep;
      const double below = bench.run(c.terms, moved).loss;
      const double by_difference = (above - below) / (2 * kStep);
      const double rounding = (std::abs(above) + std::abs(below)) * 0x1p-24 / kStep;
      EXPECT_NEAR(out.slopes[2 * d + i / kDocuments], by_difference, rounding + 2e-3 * largest) << i;
    }
  }
}

// Pairs begin at documents 0, 2 and 5.
TEST_P(PreferenceLossTest, ConfidencesMultiplyTheLossesOfPairs) {
  Bench bench(GetParam());
  const Values sums = some_sums();
  // The two documents of each pair have mean confidences of -0.5 and -0.25, above 0 (so that the weight is
  // 1), and -1 and -0.5.
  const Values confidences = {-2, -1.75, 4, 0, 100, -9, -2.5, 0};
  const Values weights = {std::exp(-0.75), 1, std::exp(-1.5)};
  const PreferenceTerms terms = with(PreferenceForm::kDpo, PreferenceType::kSigmoid);
  const Outcome plain = bench.run(terms, sums), weighted = bench.run(terms, sums, confidences);
  const Values reference = random_values(kDocuments, 8, 10);
  double loss = 0;
  for (const std::size_t i : {0, 1, 2}) {
    const std::size_t d = i == 0 ? 0 : i == 1 ? 2 : 5;
    const double margin = 0.1 * (sums[d] - reference[d] - sums[d + 1] + reference[d + 1]);
    loss += weights[i] * 0.75 * std::log1p(std::exp(-margin)) / 5;
    for (const std::size_t document : {d, d + 1}) {
      EXPECT_NEAR(weighted.slopes[2 * document], weights[i] * plain.slopes[2 * document],
                  2e-7 * std::abs(plain.slopes[2 * document]));
    }
  }
  EXPECT_NEAR(weighted.loss, loss, 1e-6);
  // Rewards are not weighted.
  for (std::size_t m = 1; m < plain.metrics.size(); ++m) EXPECT_EQ(weighted.metrics[m], plain.metrics[m]);
}

// The metrics of the standard loss, computed here from their definition.
TEST_P(PreferenceLossTest, ReportsRewards) {
  Bench bench(GetParam());
  const Values sums = some_sums(), reference = random_values(kDocuments, 8, 10);
  const Outcome out = bench.run(with(PreferenceForm::kDpo, PreferenceType::kSigmoid), sums);
  double chosen = 0, rejected = 0, accurate = 0, loss = 0;
  for (const std::size_t d : {0, 2, 5}) {
    const double c = 0.1 * (sums[d] - reference[d]), r = 0.1 * (sums[d + 1] - reference[d + 1]);
    chosen += c / 5;
    rejected += r / 5;
    accurate += c > r ? 0.2 : 0;
    loss += 0.75 * std::log1p(std::exp(r - c)) / 5;
  }
  const auto metric = [&](PreferenceMetric m) { return out.metrics[static_cast<std::size_t>(m)]; };
  EXPECT_NEAR(metric(PreferenceMetric::kLoss), loss, 1e-6);
  EXPECT_NEAR(metric(PreferenceMetric::kChosenRewards), chosen, 1e-6);
  EXPECT_NEAR(metric(PreferenceMetric::kRejectedRewards), rejected, 1e-6);
  EXPECT_NEAR(metric(PreferenceMetric::kMargins), chosen - rejected, 1e-6);
  EXPECT_NEAR(metric(PreferenceMetric::kAccuracies), accurate, 1e-6);
}

}  // namespace
}  // namespace primus::turbo::test
