#include "turbo/soft_cap/soft_cap.h"

#include "turbo/operator_test.h"

namespace primus::turbo::test {
namespace {

class SoftCapTest : public ::testing::TestWithParam<DeviceUnderTest> {};
INSTANTIATE_TEST_SUITE_P(Devices, SoftCapTest, ::testing::ValuesIn(devices_under_test()));

Values capped(const Values& x, double cap) {
  Values y;
  for (const double v : x) y.push_back(cap * std::tanh(v / cap));
  return y;
}

// The values are from far below to far above the cap.
constexpr std::int64_t kRows = 37, kCols = 29;
constexpr float kCaps[] = {0.5F, 30.0F, 1e6F};
Values some_values(DType dtype) { return rounded(random_values(kRows * kCols, 1, 20), dtype); }

TEST_P(SoftCapTest, EqualsTheScaledTanh) {
  OperatorBench bench(GetParam());
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Values x = some_values(dtype);
    for (const float cap : kCaps) {
      const Values expected = capped(x, static_cast<double>(cap));
      const Tensor apart = bench.empty(dtype, {kRows, kCols});
      const Tensor in_place = bench.upload(x, dtype, {kRows, kCols});
      for (const Tensor& y : {apart, in_place}) {
        bench.run(SoftCap{.x = in_place, .y = y, .cap = cap});
        // tanh is accurate to 4 ulp; a quotient and a product follow.
        EXPECT_LE(normalised_error(bench.download(y), expected), rounding_error(dtype) + 4e-7) << cap;
      }
    }
  }
}

TEST_P(SoftCapTest, InfinityBecomesTheCapAndNanStays) {
  OperatorBench bench(GetParam());
  const Tensor x = bench.upload({INFINITY, -INFINITY, NAN, 0}, DType::kF32, {1, 4});
  bench.run(SoftCap{.x = x, .y = x, .cap = 30});
  const Values y = bench.download(x);
  EXPECT_EQ(y[0], 30);
  EXPECT_EQ(y[1], -30);
  EXPECT_TRUE(std::isnan(y[2]));
  EXPECT_EQ(y[3], 0);
}

TEST_P(SoftCapTest, GradientEqualsFiniteDifferences) {
  OperatorBench bench(GetParam());
  const Values x = some_values(DType::kF32), d_y = rounded(random_values(kRows * kCols, 2), DType::kF32);
  for (const float cap : {5.0F, 30.0F}) {
    const double c = static_cast<double>(cap);
    const Values y = rounded(capped(x, c), DType::kF32);
    const Values expected = numeric_gradient([&](const Values& v) { return dot(capped(v, c), d_y); }, x);
    const Tensor apart = bench.empty(DType::kF32, {kRows, kCols});
    const Tensor gradient = bench.upload(d_y, DType::kF32, {kRows, kCols});
    for (const Tensor& d_x : {apart, gradient}) {
      bench.run(SoftCapBackward{
          .y = bench.upload(y, DType::kF32, {kRows, kCols}), .d_y = gradient, .d_x = d_x, .cap = cap});
      // The derivative is 1 - t^2, so the rounding error of t counts twice. The finite differences have about
      // nine digits.
      EXPECT_LE(normalised_error(bench.download(d_x), expected), 4e-7) << cap;
    }
  }
}

}  // namespace
}  // namespace primus::turbo::test
