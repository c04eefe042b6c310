#include "turbo/quantile_balance/quantile_balance.h"

#include "turbo/operator_test.h"

namespace primus::turbo::test {
namespace {

class QuantileBalanceTest : public ::testing::TestWithParam<DeviceUnderTest> {};
INSTANTIATE_TEST_SUITE_P(Devices, QuantileBalanceTest, ::testing::ValuesIn(devices_under_test()));

constexpr std::int64_t kTokens = 200, kExperts = 12, kBins = 64;
constexpr std::int32_t kTopK = 3;
constexpr MarginBins kRange{.low = -1, .high = 1};

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// Returns the margin of each expert for each token. The margin is the score of the expert minus the largest
// biased score of the experts that the token did not choose.
std::vector<Values> margins(const Values& logits, const Values& bias) {
  std::vector<Values> of(kExperts);
  for (std::size_t t = 0; t < kTokens; ++t) {
    Values biased;
    for (std::size_t e = 0; e < kExperts; ++e) biased.push_back(sigmoid(logits[t * kExperts + e]) + bias[e]);
    std::sort(biased.begin(), biased.end(), std::greater<>());
    for (std::size_t e = 0; e < kExperts; ++e)
      of[e].push_back(sigmoid(logits[t * kExperts + e]) - biased[kTopK]);
  }
  return of;
}

TEST_P(QuantileBalanceTest, CountsMarginsAndSetsTheBiasByTheirQuantile) {
  OperatorBench bench(GetParam());
  const Values logits = rounded(random_values(kTokens * kExperts, 1, 2.0), DType::kF32);
  const Values bias = rounded(random_values(kExperts, 2, 0.1), DType::kF32);
  const Tensor counts = bench.zeros(DType::kI32, {kExperts, kBins});
  const Tensor of_bias = bench.upload(bias, DType::kF32, {kExperts});
  bench.run(MarginHistogram{.bins = kRange,
                            .top_k = kTopK,
                            .logits = bench.upload(logits, DType::kF32, {kTokens, kExperts}),
                            .bias = of_bias,
                            .counts = counts,
                            .workspace = {}});
  const std::vector<Values> expected = margins(logits, bias);
  const Values counted = bench.download(counts);
  Values target;
  double mean = 0;
  for (std::size_t e = 0; e < kExperts; ++e) {
    Values histogram(kBins, 0);
    for (const double margin : expected[e])
      ++histogram[static_cast<std::size_t>(std::clamp((margin + 1) / 2 * kBins, 0.0, kBins - 1.0))];
    double moved = 0, total = 0;
    for (std::size_t b = 0; b < kBins; ++b) {
      moved += std::abs(counted[e * kBins + b] - histogram[b]);
      total += counted[e * kBins + b];
    }
    EXPECT_EQ(total, kTokens);
    EXPECT_LE(moved, 2);  // a margin near the edge of a bin may be in either bin
    Values sorted = expected[e];
    std::sort(sorted.begin(), sorted.end());
    target.push_back(-sorted[kTokens * (kExperts - kTopK) / kExperts]);
    mean += target.back() / kExperts;
  }
  for (const bool centred : {false, true}) {
    for (const float kept : {0.0F, 0.75F}) {
      const Tensor updated = bench.upload(bias, DType::kF32, {kExperts});
      bench.run(QuantileBiasUpdate{.bins = kRange,
                                   .top_k = kTopK,
                                   .counts = counts,
                                   .bias = updated,
                                   .centred = centred,
                                   .kept = kept});
      const Values got = bench.download(updated);
      for (std::size_t e = 0; e < kExperts; ++e) {
        const double k = static_cast<double>(kept), by = target[e] - (centred ? mean : 0);
        EXPECT_NEAR(got[e], k * bias[e] + (1 - k) * by, 2.0 / kBins) << e;
      }
    }
  }
}

TEST_P(QuantileBalanceTest, NothingCountedChangesNothing) {
  OperatorBench bench(GetParam());
  const Values bias = rounded(random_values(kExperts, 2), DType::kF32);
  const Tensor of_bias = bench.upload(bias, DType::kF32, {kExperts});
  bench.run(QuantileBiasUpdate{.bins = kRange,
                               .top_k = kTopK,
                               .counts = bench.zeros(DType::kI32, {kExperts, kBins}),
                               .bias = of_bias,
                               .centred = true,
                               .kept = 0});
  EXPECT_EQ(bench.download(of_bias), bias);
}

}  // namespace
}  // namespace primus::turbo::test
