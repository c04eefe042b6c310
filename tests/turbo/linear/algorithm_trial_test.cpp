#include "turbo/linear/algorithm_trial.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace primus::turbo {
namespace {

using Limits = AlgorithmTrials::Limits;

// A simulated GPU whose clock falls under load and recovers in pauses.
class Gpu {
 public:
  // Seconds per product on a cool GPU, and under the load of a training step; 0 if the algorithm does not
  // run.
  struct Algorithm {
    double cool, hot;
  };

  AlgorithmTrials trials(const Limits& limits = {}) {
    return AlgorithmTrials([this] { return now_; }, limits);
  }
  std::optional<AlgorithmTrial> choose(AlgorithmTrials& trials, const std::vector<Algorithm>& algorithms) {
    products_.assign(algorithms.size(), 0);
    return trials.choose(static_cast<int>(algorithms.size()), [&](int candidate, int products) {
      return run(algorithms[static_cast<std::size_t>(candidate)], candidate, products);
    });
  }
  void pause(double seconds) {
    now_ += seconds;
    busy_ = std::max(0.0, busy_ - seconds);
  }
  double now() const { return now_; }
  int products(int candidate) const { return products_[static_cast<std::size_t>(candidate)]; }

 private:
  double run(const Algorithm& algorithm, int candidate, int products) {
    if (algorithm.cool <= 0) return 0;
    double total = 0;
    for (int i = 0; i < products; ++i) {
      const double hot = std::min(1.0, busy_ / 0.25);
      const double seconds = algorithm.cool + hot * (algorithm.hot - algorithm.cool);
      total += seconds;
      busy_ += seconds;
    }
    products_[static_cast<std::size_t>(candidate)] += products;
    now_ += total;
    return total;
  }

  double now_ = 100, busy_ = 0;
  std::vector<int> products_;
};

TEST(AlgorithmTrials, TheFastestAlgorithmUnderTheLoadOfAStepIsChosen) {
  Gpu gpu;
  AlgorithmTrials trials = gpu.trials();
  // The second algorithm is the fastest on a cool GPU, the third algorithm under the load of a step.
  const auto trial = gpu.choose(trials, {{1.00e-3, 1.20e-3}, {0.80e-3, 1.25e-3}, {1.05e-3, 1.10e-3}});
  ASSERT_TRUE(trial);
  EXPECT_EQ(trial->best, 2);
  EXPECT_NEAR(trial->seconds, 1.10e-3, 1e-6);
  EXPECT_NEAR(trial->next, 1.20e-3, 1e-6);
  EXPECT_EQ(trial->of, 3);
  EXPECT_TRUE(trial->sustained);
}

TEST(AlgorithmTrials, TheLibrarysChoiceStaysUnlessAnotherIsClearlyFaster) {
  Gpu gpu;
  AlgorithmTrials trials = gpu.trials();
  const auto close = gpu.choose(trials, {{1e-3, 1e-3}, {0.995e-3, 0.995e-3}});
  ASSERT_TRUE(close);
  EXPECT_EQ(close->best, 0);
  EXPECT_NEAR(close->next, 0.995e-3, 1e-9);
  EXPECT_EQ(gpu.choose(trials, {{1e-3, 1e-3}, {0.98e-3, 0.98e-3}})->best, 1);
  // The library's choice also stays if many other algorithms are slightly faster in the first round.
  std::vector<Gpu::Algorithm> many(8, {0.995e-3, 0.995e-3});
  many[0] = {1e-3, 1e-3};
  EXPECT_EQ(gpu.choose(trials, many)->best, 0);
}

TEST(AlgorithmTrials, AlgorithmsThatDoNotRunAreSkipped) {
  Gpu gpu;
  AlgorithmTrials trials = gpu.trials();
  const auto trial = gpu.choose(trials, {{0, 0}, {1e-3, 1e-3}, {0, 0}, {0.5e-3, 0.5e-3}});
  ASSERT_TRUE(trial);
  EXPECT_EQ(trial->best, 3);
  EXPECT_EQ(trial->of, 2);
  EXPECT_FALSE(gpu.choose(trials, {{0, 0}, {0, 0}}));
  EXPECT_FALSE(gpu.choose(trials, {}));
  const auto single = gpu.choose(trials, {{1e-3, 1e-3}});
  ASSERT_TRUE(single);
  EXPECT_EQ(single->next, 0);
}

TEST(AlgorithmTrials, TheDeviceIsWarmedOnceAndAgainAfterAPause) {
  Gpu gpu;
  AlgorithmTrials trials = gpu.trials();
  const std::vector<Gpu::Algorithm> two(2, {1e-3, 1e-3});
  const auto seconds = [&] {
    const double before = gpu.now();
    gpu.choose(trials, two);
    return gpu.now() - before;
  };
  const double first = seconds(), second = seconds();
  EXPECT_GT(first, Limits{}.warm);
  EXPECT_LT(second, first - 0.9 * Limits{}.warm);
  gpu.pause(10);
  EXPECT_NEAR(seconds(), first, 0.02);
}

// With the limits bursts(), candidates are timed in the current state of the GPU, without warm-up.
TEST(AlgorithmTrials, BurstsDoNotWarmTheGpu) {
  Gpu gpu;
  AlgorithmTrials trials = gpu.trials(AlgorithmTrials::bursts());
  const double before = gpu.now();
  // The second algorithm is the fastest only on a cool GPU.
  const auto trial = gpu.choose(trials, {{1.00e-3, 1.20e-3}, {0.80e-3, 1.25e-3}});
  ASSERT_TRUE(trial);
  EXPECT_EQ(trial->best, 1);
  EXPECT_LT(gpu.now() - before, 0.07);
  EXPECT_GE(gpu.products(0), 7 * 3);
}

// The total time of all trials is limited, so later trials are short.
TEST(AlgorithmTrials, TrialsStayWithinTheTimeLimit) {
  Gpu gpu;
  AlgorithmTrials trials = gpu.trials();
  const double before = gpu.now();
  int sustained = 0;
  for (int shape = 0; shape < 40; ++shape) {
    // A trial of long products with many candidates.
    const auto trial = gpu.choose(trials, std::vector<Gpu::Algorithm>(32, {5e-3, 6e-3}));
    ASSERT_TRUE(trial);
    sustained += trial->sustained ? 1 : 0;
    EXPECT_GE(trial->of, 4);
    EXPECT_LT(trial->of, 32);
  }
  EXPECT_GT(sustained, 6);
  EXPECT_LT(sustained, 20);
  // A short trial times four candidates, then three finalists in three rounds: at most 0.2 s.
  EXPECT_LT(gpu.now() - before, Limits{}.all + 0.5 + 0.2 * (40 - sustained));
}

TEST(AlgorithmTrials, SmallProductsAreShort) {
  Gpu gpu;
  AlgorithmTrials trials = gpu.trials();
  const double before = gpu.now();
  const auto trial = gpu.choose(trials, {{20e-6, 20e-6}, {10e-6, 10e-6}, {30e-6, 30e-6}});
  ASSERT_TRUE(trial);
  EXPECT_EQ(trial->best, 1);
  EXPECT_FALSE(trial->sustained);
  EXPECT_LT(gpu.now() - before, 0.02);
  EXPECT_GT(gpu.products(1), 100);  // enough products to be timed
}

}  // namespace
}  // namespace primus::turbo
