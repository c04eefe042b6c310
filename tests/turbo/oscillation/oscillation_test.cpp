#include "turbo/oscillation/oscillation.h"

#include <gtest/gtest.h>

#include <cmath>

#include "turbo/master_weights.h"
#include "turbo/operator_test.h"

namespace primus::turbo::test {
namespace {

class OscillationTest : public ::testing::TestWithParam<DeviceUnderTest> {};
INSTANTIATE_TEST_SUITE_P(Devices, OscillationTest, ::testing::ValuesIn(devices_under_test()));

enum class Form { kWide, kSplit };

struct Masters {
  Tensor param, working, remainder;
};

Masters upload(OperatorBench& bench, const Values& w, Form form) {
  const auto n = static_cast<std::int64_t>(w.size());
  Values working, remainder;
  for (const double value : w) {
    const auto master = static_cast<float>(value);
    working.push_back(static_cast<double>(static_cast<float>(working_value(master))));
    remainder.push_back(param_remainder(master));
  }
  Masters masters{{}, bench.upload(working, DType::kBF16, {n}), {}};
  if (form == Form::kWide) {
    masters.param = bench.upload(w, DType::kF32, {n});
  } else {
    masters.remainder = bench.zeros(DType::kI16, {n});
    std::vector<std::int16_t> bits(remainder.begin(), remainder.end());
    bench.write_bytes(masters.remainder, bits.data());
  }
  return masters;
}

Values download(OperatorBench& bench, const Masters& masters) {
  if (!masters.param.absent()) return bench.download(masters.param);
  const Values working = bench.download(masters.working);
  const std::vector<unsigned char> bytes = bench.bytes(masters.remainder);
  Values w;
  for (std::size_t i = 0; i < working.size(); ++i) {
    std::int16_t rest = 0;
    std::memcpy(&rest, bytes.data() + 2 * i, sizeof(rest));
    w.push_back(static_cast<double>(joined_master(BFloat16(static_cast<float>(working[i])), rest)));
  }
  return w;
}

// Compares a window of random walks with the rule in double. Sums are exact in fp32, because they have few
// terms with few digits.
TEST_P(OscillationTest, AWindowFollowsTheReference) {
  OperatorBench bench(GetParam());
  constexpr float kRatio = 1.25F;
  for (const Form form : {Form::kWide, Form::kSplit}) {
    for (const std::int64_t n : {1, 47, 4096}) {
      const auto walk = [&](std::uint64_t seed) {  // returns multiples of 2^-12
        Values w = random_values(n, seed);
        for (double& value : w) value = std::round(value * 0x1p12) * 0x1p-12;
        return w;
      };
      const auto numbers = [&](std::uint64_t seed) {  // returns multiples of 1/2
        Values q = random_values(n, seed, 2);
        for (double& value : q) value = std::round(value) / 2;
        return q;
      };
      const Tensor moved = bench.zeros(DType::kF32, {n}), jumped = bench.zeros(DType::kF32, {n}),
                   snapped = bench.upload({5}, DType::kI32, {1}), scale = bench.upload({1}, DType::kF32, {1});
      Values w = walk(1), q = numbers(1), way(w.size()), jumps(w.size());
      double count = 5;
      for (std::uint64_t step = 2; step <= 4; ++step) {
        const Values before = w, q_before = q;
        w = walk(step), q = numbers(step);
        const Masters old = upload(bench, before, form), now = upload(bench, w, form);
        const bool ends = step == 4;
        bench.run(TrackOscillation{.before_param = old.param,
                                   .before_working = old.working,
                                   .before_remainder = old.remainder,
                                   .param = now.param,
                                   .working = now.working,
                                   .remainder = now.remainder,
                                   .before_rounded = bench.upload(q_before, DType::kBF16, {n}),
                                   .rounded = bench.upload(q, DType::kBF16, {n}),
                                   .moved = moved,
                                   .jumped = jumped,
                                   .grad_scale = scale,
                                   .snapped = snapped,
                                   .ratio = kRatio,
                                   .ends = ends});
        for (std::size_t i = 0; i < w.size(); ++i) {
          way[i] += std::abs(w[i] - before[i]);
          jumps[i] += std::abs(q[i] - q_before[i]);
          if (!ends) continue;
          if (way[i] > 0 && jumps[i] >= static_cast<double>(kRatio) * way[i]) w[i] = q[i], ++count;
          way[i] = jumps[i] = 0;
        }
        EXPECT_EQ(download(bench, now), w);
        Values working;
        for (const double value : w)
          working.push_back(
              static_cast<double>(static_cast<float>(working_value(static_cast<float>(value)))));
        EXPECT_EQ(bench.download(now.working), working);
        EXPECT_EQ(bench.download(moved), way);
        EXPECT_EQ(bench.download(jumped), jumps);
        EXPECT_EQ(bench.download(snapped), (Values{ends ? count : 5}));
      }
      EXPECT_TRUE(n == 1 || count > 5);
    }
  }
}

// At the end of a window, a weight that did not move keeps its value. A skipped step does not change any
// tensor.
TEST_P(OscillationTest, ConstantWeightsAndSkippedStepsChangeNothing) {
  OperatorBench bench(GetParam());
  const Values w = {1, 1, 1};
  const Masters old = upload(bench, w, Form::kWide), now = upload(bench, w, Form::kWide);
  TrackOscillation call{.before_param = old.param,
                        .before_working = old.working,
                        .param = now.param,
                        .working = now.working,
                        .before_rounded = bench.upload({0, 1, 2}, DType::kBF16, {3}),
                        .rounded = bench.upload({2, 1, 0}, DType::kBF16, {3}),
                        .moved = bench.upload({0, 0, 0.5}, DType::kF32, {3}),
                        .jumped = bench.upload({1, 0, 8}, DType::kF32, {3}),
                        .grad_scale = bench.upload({-1}, DType::kF32, {1}),
                        .ratio = 4,
                        .ends = true};
  bench.run(call);
  EXPECT_EQ(bench.download(call.param), w);
  EXPECT_EQ(bench.download(call.moved), (Values{0, 0, 0.5}));
  EXPECT_EQ(bench.download(call.jumped), (Values{1, 0, 8}));
  call.grad_scale = bench.upload({1}, DType::kF32, {1});
  bench.run(call);
  EXPECT_EQ(bench.download(call.param), (Values{1, 1, 0}));
  EXPECT_EQ(bench.download(call.jumped), (Values{0, 0, 0}));
}

}  // namespace
}  // namespace primus::turbo::test
