#include "turbo/router/router.h"

#include <numeric>
#include <set>
#include <stdexcept>

#include "turbo/device_names.h"
#include "turbo/operator_test.h"
#include "turbo/step_scalars.h"

namespace primus::turbo::test {
namespace {

using Scoring = RouterRule::Scoring;

struct Case {
  RouterRule rule;
  std::int64_t experts;
  bool bias = false;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const Scoring scoring : {Scoring::kSoftmax, Scoring::kSigmoid, Scoring::kSqrtSoftplus}) {
    for (const bool normalise : {false, true}) {
      for (const bool bias : {false, true}) {
        RouterRule rule{.scoring = scoring, .normalise = normalise, .top_k = 3, .scale = 2.5F};
        all.push_back({rule, 8, bias});
        all.push_back({rule, 40, bias});
        rule.groups = 4;
        rule.top_groups = 2;
        all.push_back({rule, 16, bias});
        rule.group_score = RouterRule::GroupScore::kTwoBest;
        all.push_back({rule, 16, bias});
      }
    }
    all.push_back({RouterRule{.scoring = scoring, .normalise = false}, 4});  // chooses one expert per token
  }
  return all;
}

// ---- The definition in double

Values scores_of(Scoring scoring, const Values& logits) {
  Values scores = logits;
  if (scoring == Scoring::kSigmoid) {
    for (double& s : scores) s = 1 / (1 + std::exp(-s));
    return scores;
  }
  if (scoring == Scoring::kSqrtSoftplus) {
    for (double& s : scores) s = std::sqrt(std::log1p(std::exp(s)));
    return scores;
  }
  double sum = 0;
  for (double& s : scores) sum += s = std::exp(s);
  for (double& s : scores) s /= sum;
  return scores;
}

std::vector<int> best(const Values& scores, int k) {
  std::vector<int> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int x, int y) {
    return scores[static_cast<std::size_t>(x)] > scores[static_cast<std::size_t>(y)];
  });
  order.resize(static_cast<std::size_t>(k));
  return order;
}

std::vector<int> chosen_by(const Case& c, const Values& logits, const Values& bias) {
  Values scores = scores_of(c.rule.scoring, logits);
  for (std::size_t i = 0; c.bias && i < scores.size(); ++i) scores[i] += bias[i];
  const std::size_t size = scores.size() / static_cast<std::size_t>(c.rule.groups);
  Values groups;
  for (std::size_t g = 0; g < scores.size() / size; ++g) {
    Values of_group(scores.begin() + static_cast<std::ptrdiff_t>(g * size),
                    scores.begin() + static_cast<std::ptrdiff_t>((g + 1) * size));
    std::sort(of_group.rbegin(), of_group.rend());
    groups.push_back(of_group[0] +
                     (c.rule.group_score == RouterRule::GroupScore::kTwoBest ? of_group[1] : 0));
  }
  const std::vector<int> open = best(groups, c.rule.top_groups);
  for (std::size_t i = 0; i < scores.size(); ++i) {
    if (std::find(open.begin(), open.end(), static_cast<int>(i / size)) == open.end()) scores[i] = -INFINITY;
  }
  return best(scores, c.rule.top_k);
}

Values weights_of(const RouterRule& rule, const Values& logits, const std::vector<int>& chosen) {
  const Values scores = scores_of(rule.scoring, logits);
  Values weights;
  double sum = 0;
  for (const int e : chosen) {
    weights.push_back(scores[static_cast<std::size_t>(e)]);
    sum += weights.back();
  }
  for (double& w : weights) w *= static_cast<double>(rule.scale) / (rule.normalise ? sum : 1);
  return weights;
}

struct Losses {
  double balance = 0, z = 0;
};

Losses losses_of(const RouterRule& rule, const Values& logits, const Values& load, std::int64_t experts) {
  const std::int64_t tokens = static_cast<std::int64_t>(logits.size()) / experts;
  const std::int64_t segments = static_cast<std::int64_t>(load.size()) / experts, each = tokens / segments;
  Losses losses;
  for (std::int64_t t = 0; t < tokens; ++t) {
    const Values row(logits.begin() + t * experts, logits.begin() + (t + 1) * experts);
    double sum = 0, exponentials = 0;
    const Values scores = scores_of(rule.scoring, row);
    for (const double s : scores) sum += s;
    for (const double l : row) exponentials += std::exp(l);
    losses.z += std::log(exponentials) * std::log(exponentials) / static_cast<double>(tokens);
    for (std::int64_t e = 0; e < experts; ++e) {
      losses.balance += load[static_cast<std::size_t>(t / each * experts + e)] *
                        scores[static_cast<std::size_t>(e)] / sum * static_cast<double>(experts) /
                        static_cast<double>(rule.top_k * each * each * segments);
    }
  }
  return losses;
}

Values row_of(const Values& matrix, std::int64_t row, std::int64_t cols) {
  return {matrix.begin() + row * cols, matrix.begin() + (row + 1) * cols};
}

class RouterTest : public ::testing::TestWithParam<DeviceUnderTest> {};
INSTANTIATE_TEST_SUITE_P(Devices, RouterTest, ::testing::ValuesIn(devices_under_test()), device_name);

// If the caller gives the experts, the router uses the given experts, and computes their weights by the rule.
TEST_P(RouterTest, WeightsGivenExpertsByTheRule) {
  OperatorBench bench(GetParam());
  const Case c = cases().front();
  const std::int64_t tokens = 30, n = c.experts, k = c.rule.top_k;
  const Values logits = rounded(random_values(tokens * n, 1), DType::kF32);
  Values given, expected;
  for (std::int64_t t = 0; t < tokens; ++t) {
    std::vector<int> chosen;
    for (std::int64_t i = 0; i < k; ++i) chosen.push_back(static_cast<int>((t + 3 * i) % n));
    given.insert(given.end(), chosen.begin(), chosen.end());
    const Values w = weights_of(c.rule, row_of(logits, t, n), chosen);
    expected.insert(expected.end(), w.begin(), w.end());
  }
  const Tensor experts = bench.empty(DType::kI32, {tokens, k}),
               weights = bench.empty(DType::kF32, {tokens, k});
  bench.run(RouterForward{.rule = c.rule,
                          .random = {},
                          .logits = bench.upload(logits, DType::kF32, {tokens, n}),
                          .bias = {},
                          .given = bench.upload(given, DType::kI32, {tokens, k}),
                          .experts = experts,
                          .weights = weights});
  EXPECT_EQ(bench.download(experts), given);
  EXPECT_LE(normalised_error(bench.download(weights), expected), 1e-6);
}

TEST_P(RouterTest, ChoosesAndWeightsExpertsByTheRule) {
  OperatorBench bench(GetParam());
  for (const Case& c : cases()) {
    const std::int64_t tokens = 60, n = c.experts, k = c.rule.top_k;
    const Values logits = rounded(random_values(tokens * n, 1), DType::kF32);
    const Values bias = rounded(random_values(n, 2, 0.1), DType::kF32);
    const Tensor experts = bench.empty(DType::kI32, {tokens, k}),
                 weights = bench.empty(DType::kF32, {tokens, k});
    bench.run(RouterForward{.rule = c.rule,
                            .random = {},
                            .logits = bench.upload(logits, DType::kF32, {tokens, n}),
                            .bias = c.bias ? bench.upload(bias, DType::kF32, {n}) : Tensor(),
                            .given = {},
                            .experts = experts,
                            .weights = weights});
    Values expected_experts, expected_weights;
    for (std::int64_t t = 0; t < tokens; ++t) {
      const Values row = row_of(logits, t, n);
      const std::vector<int> chosen = chosen_by(c, row, bias);
      const Values w = weights_of(c.rule, row, chosen);
      expected_experts.insert(expected_experts.end(), chosen.begin(), chosen.end());
      expected_weights.insert(expected_weights.end(), w.begin(), w.end());
    }
    EXPECT_EQ(bench.download(experts), expected_experts);
    EXPECT_LE(normalised_error(bench.download(weights), expected_weights), 1e-6);
  }
}

TEST_P(RouterTest, GradientEqualsFiniteDifferences) {
  OperatorBench bench(GetParam());
  for (const Case& c : cases()) {
    for (const std::int64_t segments : {0, 1, 3}) {
      const std::int64_t tokens = 6, n = c.experts, k = c.rule.top_k;
      const Values logits = rounded(random_values(tokens * n, 3), DType::kF32);
      const Values bias(static_cast<std::size_t>(n));
      const Values d_weights = rounded(random_values(tokens * k, 4), DType::kF32);
      const Values previous = rounded(random_values(tokens * n, 5), DType::kF32);
      Values experts, load(static_cast<std::size_t>(segments * n));
      for (std::int64_t t = 0; t < tokens; ++t) {
        const Values row = row_of(logits, t, n);
        for (const int e : chosen_by(c, row, bias)) experts.push_back(e);
        for (const int e : best(row, static_cast<int>(k))) {
          if (segments > 0) ++load[static_cast<std::size_t>(t / (tokens / segments) * n + e)];
        }
      }
      const double balance_scale = segments > 0 ? 0.7 : 0, z_scale = segments == 3 ? 0 : 0.3;
      // For the gradient, chosen experts and loads are constants.
      const auto loss = [&](const Values& l) {
        double sum = dot(previous, l);
        for (std::int64_t t = 0; t < tokens; ++t) {
          std::vector<int> chosen;
          for (std::int64_t i = 0; i < k; ++i)
            chosen.push_back(static_cast<int>(experts[static_cast<std::size_t>(t * k + i)]));
          sum += dot(weights_of(c.rule, row_of(l, t, n), chosen), row_of(d_weights, t, k));
        }
        const Values counts = segments > 0 ? load : Values(static_cast<std::size_t>(n));
        const Losses extra = losses_of(c.rule, l, counts, n);
        return sum + balance_scale * extra.balance + z_scale * extra.z;
      };
      const Tensor logits_device = bench.upload(logits, DType::kF32, {tokens, n});
      Tensor load_device;
      if (segments > 0) {
        load_device = bench.empty(DType::kI32, {segments, n});
        Values best_experts;
        for (std::int64_t t = 0; t < tokens; ++t) {
          for (const int e : best(row_of(logits, t, n), static_cast<int>(k))) best_experts.push_back(e);
        }
        for (const Tensor& known : {bench.upload(best_experts, DType::kI32, {tokens, k}), Tensor()}) {
          bench.run(RouterLoad{
              .top_k = c.rule.top_k, .logits = logits_device, .chosen = known, .load = load_device});
          EXPECT_EQ(bench.download(load_device), load);
        }
      }
      const Tensor d_logits = bench.upload(previous, DType::kF32, {tokens, n});
      bench.run(RouterBackward{.rule = c.rule,
                               .logits = logits_device,
                               .experts = bench.upload(experts, DType::kI32, {tokens, k}),
                               .d_weights = bench.upload(d_weights, DType::kF32, {tokens, k}),
                               .load = load_device,
                               .balance_scale = static_cast<float>(balance_scale),
                               .z_scale = static_cast<float>(z_scale),
                               .previous = d_logits,
                               .d_logits = d_logits});
      EXPECT_LE(normalised_error(bench.download(d_logits), numeric_gradient(loss, logits)), 2e-6)
          << "experts " << n << ", segments " << segments;

      const Tensor sums = bench.upload({1, 2}, DType::kF32, {2});
      bench.run(RouterLosses{.rule = c.rule, .logits = logits_device, .load = load_device, .losses = sums});
      const Losses expected =
          losses_of(c.rule, logits, segments > 0 ? load : Values(static_cast<std::size_t>(n)), n);
      EXPECT_LE(normalised_error(bench.download(sums), {1 + expected.balance, 2 + expected.z}), 1e-6);
    }
  }
}

TEST_P(RouterTest, BalancedExpertsHaveABalanceLossOfOne) {
  OperatorBench bench(GetParam());
  const std::int64_t tokens = 12, n = 4;
  const Tensor sums = bench.upload({0, 0}, DType::kF32, {2});
  bench.run(RouterLosses{.rule = {.top_k = 2},
                         .logits = bench.upload(Values(tokens * n, 0.5), DType::kF32, {tokens, n}),
                         .load = bench.upload(Values(n, 6), DType::kI32, {1, n}),
                         .losses = sums});
  const double lse = std::log(4 * std::exp(0.5));
  EXPECT_LE(normalised_error(bench.download(sums), {1, lse * lse}), 1e-6);
}

// Returns `random` with the scalars of step `step` and the tokens first, first + 1, ...
RouterRandom random_of(OperatorBench& bench, std::int64_t tokens, RouterRandom random, double step,
                       int first = 0) {
  Values numbers(static_cast<std::size_t>(tokens));
  std::iota(numbers.begin(), numbers.end(), first);
  random.tokens = bench.upload(numbers, DType::kI32, {tokens});
  random.scalars = bench.upload({step, 0, 0, 1, 1}, DType::kF64, {kStepScalars});
  return random;
}

// With the running load of two microbatches and load_share = 1/2, the balance losses are those of the mean
// load.
TEST_P(RouterTest, LoadsOfSeveralMicrobatchesAreAveraged) {
  OperatorBench bench(GetParam());
  constexpr std::int64_t kMany = 33, kOf = 7;
  const Tensor logits = bench.upload(random_values(kMany * kOf, 1), DType::kF32, {kMany, kOf}),
               running = bench.zeros(DType::kI32, {kOf});
  const Values first = {3, 0, 8, 1, 9, 40, 5}, second = {10, 2, 0, 3, 11, 20, 20};
  Tensor load;
  Values sum(first.size());
  for (const Values& counts : {first, second}) {
    load = bench.upload(counts, DType::kI32, {1, kOf});
    bench.run(RunningLoad{.load = load, .running = running});
    for (std::size_t e = 0; e < sum.size(); ++e) sum[e] += counts[e];
    EXPECT_EQ(bench.download(load), sum);
    EXPECT_EQ(bench.download(running), sum);
  }
  const auto balance = [&](const Tensor& counts, float share) {
    const Tensor losses = bench.zeros(DType::kF32, {2});
    bench.run(RouterLosses{
        .rule = {.top_k = 2}, .logits = logits, .load = counts, .losses = losses, .load_share = share});
    return bench.download(losses)[0];
  };
  const double of_both = balance(bench.upload(first, DType::kI32, {1, kOf}), 1) +
                         balance(bench.upload(second, DType::kI32, {1, kOf}), 1);
  EXPECT_NEAR(balance(load, 0.5F), of_both / 2, 1e-6 * of_both);
}

// The noise of a token depends on the token's index in the global batch, not on the token's microbatch.
TEST_P(RouterTest, NoiseDependsOnlyOnTheToken) {
  OperatorBench bench(GetParam());
  const std::int64_t tokens = 24, hidden = 67, experts = 8, k = 2;
  const auto noise = [&](std::int64_t count, const RouterRandom& random) {
    const Tensor out = bench.empty(DType::kF32, {count, hidden});
    const auto size = static_cast<std::size_t>(count * hidden);
    bench.run(RouterJitter{.x = bench.upload(Values(size, 1), DType::kF32, {count, hidden}),
                           .previous = {},
                           .out = out,
                           .jitter = 0.5F,
                           .random = random});
    return bench.download(out);
  };
  const auto drawn = [&](std::int64_t count, const RouterRandom& random) {
    const Tensor out = bench.empty(DType::kI32, {count, k});
    const auto size = static_cast<std::size_t>(count * experts);
    bench.run(RouterForward{.rule = {.forced = RouterRule::Forced::kUniform, .top_k = k},
                            .random = random,
                            .logits = bench.upload(Values(size), DType::kF32, {count, experts}),
                            .bias = {},
                            .given = {},
                            .experts = out,
                            .weights = bench.empty(DType::kF32, {count, k})});
    return bench.download(out);
  };
  const RouterRandom identity{.seed = 9, .layer = 2};
  const Values whole = noise(tokens, random_of(bench, tokens, identity, 4));
  const Values chosen = drawn(tokens, random_of(bench, tokens, identity, 4));
  const Values second_half = noise(tokens / 2, random_of(bench, tokens / 2, identity, 4, tokens / 2));
  const Values chosen_half = drawn(tokens / 2, random_of(bench, tokens / 2, identity, 4, tokens / 2));
  EXPECT_EQ(second_half, Values(whole.begin() + static_cast<std::ptrdiff_t>(whole.size() / 2), whole.end()));
  EXPECT_EQ(chosen_half,
            Values(chosen.begin() + static_cast<std::ptrdiff_t>(chosen.size() / 2), chosen.end()));
  // The noise is different if the token, the step, the layer or the seed is different.
  EXPECT_NE(noise(tokens, random_of(bench, tokens, identity, 4, 1)), whole);
  EXPECT_NE(noise(tokens, random_of(bench, tokens, identity, 5)), whole);
  EXPECT_NE(noise(tokens, random_of(bench, tokens, {.seed = 9, .layer = 3}, 4)), whole);
  EXPECT_NE(noise(tokens, random_of(bench, tokens, {.seed = 8, .layer = 2}, 4)), whole);
}

TEST_P(RouterTest, InputAndItsGradientHaveTheSameJitter) {
  OperatorBench bench(GetParam());
  const std::int64_t tokens = 37, hidden = 130;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Tensor ones = bench.upload(Values(tokens * hidden, 1), dtype, {tokens, hidden});
    const Tensor noise = bench.empty(DType::kF32, {tokens, hidden});
    const RouterRandom random = random_of(bench, tokens, {.seed = 5, .layer = 3}, 1);
    bench.run(RouterJitter{.x = ones, .previous = {}, .out = noise, .jitter = 0.25F, .random = random});
    const Values u = bench.download(noise);
    double mean = 0;
    for (const double v : u) {
      EXPECT_GE(v, 0.75);
      EXPECT_LE(v, 1.25);
      mean += v / static_cast<double>(u.size());
    }
    EXPECT_NEAR(mean, 1, 0.01);  // standard error: 0.25 / sqrt(3 · 4810) = 0.002
    const Values d = random_values(tokens * hidden, 1),
                 before = rounded(random_values(tokens * hidden, 2), dtype);
    Values expected = before;
    for (std::size_t i = 0; i < d.size(); ++i) expected[i] += d[i] * u[i];
    const Tensor d_x = bench.upload(before, dtype, {tokens, hidden});
    bench.run(RouterJitter{.x = bench.upload(d, DType::kF32, {tokens, hidden}),
                           .previous = d_x,
                           .out = d_x,
                           .jitter = 0.25F,
                           .random = random});
    EXPECT_LE(normalised_error(bench.download(d_x), expected), rounding_error(dtype) + 1e-7);
  }
}

TEST_P(RouterTest, ForcedBalance) {
  OperatorBench bench(GetParam());
  const std::int64_t tokens = 400, n = 8, k = 2;
  const Tensor logits = bench.upload(random_values(tokens * n, 1), DType::kF32, {tokens, n});
  for (const auto forced : {RouterRule::Forced::kEven, RouterRule::Forced::kUniform}) {
    const Tensor experts = bench.empty(DType::kI32, {tokens, k}),
                 weights = bench.empty(DType::kF32, {tokens, k});
    bench.run(RouterForward{.rule = {.forced = forced, .top_k = k},
                            .random = random_of(bench, tokens, {.seed = 3}, 1),
                            .logits = logits,
                            .bias = {},
                            .experts = experts,
                            .weights = weights});
    const Values chosen = bench.download(experts);
    std::vector<int> load(n);
    for (std::int64_t t = 0; t < tokens; ++t) {
      EXPECT_NE(chosen[static_cast<std::size_t>(2 * t)], chosen[static_cast<std::size_t>(2 * t + 1)]);
    }
    for (const double e : chosen) ++load[static_cast<std::size_t>(e)];
    const int maximum = *std::max_element(load.begin(), load.end());
    // The expected number of slots per expert is 100. With random experts, the number may exceed 100 by four
    // standard deviations.
    EXPECT_LE(maximum, forced == RouterRule::Forced::kEven ? 100 : 140);
  }
}

TEST_P(RouterTest, NanLogitsStillChooseDifferentExperts) {
  OperatorBench bench(GetParam());
  for (const Case& c : cases()) {
    Values logits(static_cast<std::size_t>(3 * c.experts), NAN);
    logits[static_cast<std::size_t>(c.experts + 2)] = 1;
    const Tensor experts = bench.empty(DType::kI32, {3, c.rule.top_k});
    bench.run(RouterForward{.rule = c.rule,
                            .random = {},
                            .logits = bench.upload(logits, DType::kF32, {3, c.experts}),
                            .bias = {},
                            .experts = experts,
                            .weights = bench.empty(DType::kF32, {3, c.rule.top_k})});
    const Values chosen = bench.download(experts);
    for (std::int64_t t = 0; t < 3; ++t) {
      const Values row = row_of(chosen, t, c.rule.top_k);
      EXPECT_EQ(std::set<double>(row.begin(), row.end()).size(), static_cast<std::size_t>(c.rule.top_k));
      for (const double e : row) EXPECT_TRUE(e >= 0 && e < static_cast<double>(c.experts));
    }
  }
}

// Rules that exceed the fixed array sizes of kernels throw, also in builds without assertions.
TEST_P(RouterTest, SizesBeyondTheKernelsAreRefused) {
  OperatorBench bench(GetParam());
  const std::int64_t n = 2 * RouterRule::kMaxTopK;
  const Tensor logits = bench.upload(random_values(n, 1), DType::kF32, {1, n});
  const auto run = [&](const RouterRule& rule) {
    bench.run(RouterForward{.rule = rule,
                            .random = {},
                            .logits = logits,
                            .bias = {},
                            .given = {},
                            .experts = bench.empty(DType::kI32, {1, rule.top_k}),
                            .weights = bench.empty(DType::kF32, {1, rule.top_k})});
  };
  run({.top_k = RouterRule::kMaxTopK});
  run({.groups = RouterRule::kMaxTopK, .top_groups = RouterRule::kMaxTopK - 1});
  EXPECT_THROW(run({.top_k = RouterRule::kMaxTopK + 1}), std::logic_error);
  EXPECT_THROW(run({.groups = n, .top_groups = n - 1}), std::logic_error);
  EXPECT_THROW(
      bench.run(RouterLoad{
          .top_k = RouterRule::kMaxTopK + 1, .logits = logits, .load = bench.empty(DType::kI32, {1, n})}),
      std::logic_error);
}

TEST_P(RouterTest, ExpertLoadAndBiasUpdate) {
  OperatorBench bench(GetParam());
  const Tensor load = bench.upload({1, 0, 0, 0, 0}, DType::kI32, {5});
  bench.run(ExpertLoad{.experts = bench.upload({0, 1, 0, 2, 2, 0}, DType::kI32, {3, 2}),
                       .rows = bench.upload({0, 3, 1, 4, -1, 2}, DType::kI32, {3, 2}),
                       .load = load});
  EXPECT_EQ(bench.download(load), (Values{4, 1, 2, 0, 1}));
  const Tensor bias = bench.upload({1, 1, 1, 1}, DType::kF32, {4});
  bench.run(ExpertBiasUpdate{.load = load, .bias = bias, .rate = 0.25F});  // the mean load is 1.75
  EXPECT_EQ(bench.download(bias), (Values{0.75, 1.25, 0.75, 1.25}));
}

TEST(Router, NoThreadCountChangesABit) {
  const std::int64_t tokens = 700, n = 64, k = 6;
  const Values logits = random_values(tokens * n, 1), d_weights = random_values(tokens * k, 2);
  std::vector<std::vector<unsigned char>> first;
  for (const int threads : {1, 2, 5}) {
    OperatorBench bench({.threads = threads});
    const RouterRule rule{.top_k = k};
    const Tensor logits_device = bench.upload(logits, DType::kF32, {tokens, n});
    const Tensor experts = bench.empty(DType::kI32, {tokens, k}),
                 weights = bench.empty(DType::kF32, {tokens, k});
    const Tensor load = bench.empty(DType::kI32, {7, n}), d_logits = bench.empty(DType::kF32, {tokens, n});
    const Tensor sums = bench.upload({0, 0}, DType::kF32, {2});
    bench.run(RouterForward{rule, {}, logits_device, {}, {}, experts, weights});
    bench.run(RouterLoad{k, logits_device, {}, load});
    bench.run(RouterLosses{rule, logits_device, load, sums});
    bench.run(RouterBackward{rule,
                             logits_device,
                             experts,
                             bench.upload(d_weights, DType::kF32, {tokens, k}),
                             load,
                             0.1F,
                             0.1F,
                             {},
                             d_logits});
    const std::vector<std::vector<unsigned char>> bits = {bench.bytes(experts), bench.bytes(weights),
                                                          bench.bytes(sums), bench.bytes(d_logits)};
    if (first.empty()) first = bits;
    EXPECT_EQ(bits, first) << threads << " threads";
  }
}

// Tests logits for which sqrt(softplus(x)) is nearly 0 or nearly sqrt(x).
TEST_P(RouterTest, SquareRootsOfSoftplusHandleLargeArguments) {
  OperatorBench bench(GetParam());
  const Values logits = {-60, 25, 90, -20};
  const RouterRule rule{.scoring = Scoring::kSqrtSoftplus, .normalise = false, .top_k = 4};
  const Tensor on_device = bench.upload(logits, DType::kF32, {1, 4});
  const Tensor experts = bench.empty(DType::kI32, {1, 4}), weights = bench.empty(DType::kF32, {1, 4});
  bench.run(RouterForward{.rule = rule,
                          .random = {},
                          .logits = on_device,
                          .bias = {},
                          .given = {},
                          .experts = experts,
                          .weights = weights});
  EXPECT_EQ(bench.download(experts), (Values{2, 1, 3, 0}));
  const Values found = bench.download(weights);
  const Tensor d_logits = bench.empty(DType::kF32, {1, 4});
  bench.run(RouterBackward{.rule = rule,
                           .logits = on_device,
                           .experts = experts,
                           .d_weights = bench.upload({1, 1, 1, 1}, DType::kF32, {1, 4}),
                           .load = {},
                           .balance_scale = 0,
                           .z_scale = 0,
                           .previous = {},
                           .d_logits = d_logits});
  const Values slopes = bench.download(d_logits);
  const std::size_t order[] = {2, 1, 3, 0};
  for (std::size_t i = 0; i < 4; ++i) {
    const double x = logits[order[i]], score = std::sqrt(std::log1p(std::exp(x)));
    EXPECT_NEAR(found[i] / score, 1, 1e-6) << x;
    EXPECT_NEAR(slopes[order[i]] * 2 * score * (1 + std::exp(-x)), 1, 1e-5) << x;
  }
}

TEST_P(RouterTest, ExpertsByATable) {
  OperatorBench bench(GetParam());
  const Tensor experts = bench.empty(DType::kI32, {3, 2});
  bench.run(RouterTable{.tokens = bench.upload({3, 0, 3}, DType::kI32, {3}),
                        .table = bench.upload({7, 1, 0, 0, 0, 0, 5, 300}, DType::kF32, {4, 2}),
                        .experts = experts});
  EXPECT_EQ(bench.download(experts), (Values{5, 300, 7, 1, 5, 300}));
}

}  // namespace
}  // namespace primus::turbo::test
