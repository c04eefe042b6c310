#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "simd_probe.h"
#include "turbo/cpu/cpu_kernels.h"

namespace primus::turbo {
namespace {

struct Probes {
  void (*exp)(const float*, float*, std::int64_t);
  void (*softmax_exp)(const float*, float*, std::int64_t);
  void (*sigmoid)(const float*, float*, std::int64_t);
  void (*tanh)(const float*, float*, std::int64_t);
  void (*to_bfloat16)(const float*, BFloat16*, std::int64_t);
};

Probes probes_of(IsaLevel level) {
  switch (level) {
#ifdef PRIMUS_CPU_V2
    case IsaLevel::kV2:
      return {&isa_v2::probe_exp, &isa_v2::probe_softmax_exp, &isa_v2::probe_sigmoid, &isa_v2::probe_tanh,
              &isa_v2::probe_to_bfloat16};
#endif
#ifdef PRIMUS_CPU_V3
    case IsaLevel::kV3:
      return {&isa_v3::probe_exp, &isa_v3::probe_softmax_exp, &isa_v3::probe_sigmoid, &isa_v3::probe_tanh,
              &isa_v3::probe_to_bfloat16};
#endif
#ifdef PRIMUS_CPU_V4
    case IsaLevel::kV4:
      return {&isa_v4::probe_exp, &isa_v4::probe_softmax_exp, &isa_v4::probe_sigmoid, &isa_v4::probe_tanh,
              &isa_v4::probe_to_bfloat16};
#endif
    default:
      return {};
  }
}

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Returns the distance between adjacent floats near x.
double ulp(double x) {
  const auto f = static_cast<float>(x);
  const double above = std::nextafter(f, kInf);
  return std::isinf(above) ? 0x1p104 : above - static_cast<double>(f);
}

// Returns every 4099th bit pattern of a float, so that all magnitudes and both signs occur, independent of
// the ranges of the polynomials.
std::vector<float> sweep() {
  std::vector<float> x;
  for (std::uint64_t bits = 0; bits <= 0xFFFFFFFFULL; bits += 4099) {
    const auto value = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    if (std::isfinite(value)) x.push_back(value);
  }
  for (int i = -110000; i <= 95000; ++i)
    x.push_back(static_cast<float>(i) * 1e-3F);  // arguments for which exp is neither 0 nor inf
  return x;
}

class SimdTest : public ::testing::TestWithParam<IsaLevel> {};
INSTANTIATE_TEST_SUITE_P(Levels, SimdTest, ::testing::ValuesIn(supported_isa_levels()));

TEST_P(SimdTest, ExpIsWithinTwoUlp) {
  const std::vector<float> x = sweep();
  std::vector<float> y(x.size());
  probes_of(GetParam()).exp(x.data(), y.data(), static_cast<std::int64_t>(x.size()));
  double worst = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double expected = std::exp(static_cast<double>(x[i]));
    if (expected > static_cast<double>(std::numeric_limits<float>::max())) {
      EXPECT_TRUE(std::isinf(y[i]) || y[i] > 3.4028e38F) << x[i];
    } else {
      worst = std::max(worst, std::abs(static_cast<double>(y[i]) - expected) / ulp(expected));
    }
  }
  EXPECT_LE(worst, 2.0);
  RecordProperty("worst_ulp", std::to_string(worst));
}

// For arguments up to 43, softmax_exp() has the bits of exp(). Larger arguments do not occur in a softmax.
TEST_P(SimdTest, SoftmaxExpIsExpUpTo43) {
  std::vector<float> x;
  for (const float value : sweep()) {
    if (value <= 43.0F) x.push_back(value);
  }
  for (const float value : {-kInf, kNan, -kNan}) x.push_back(value);
  std::vector<float> y(x.size()), expected(x.size());
  probes_of(GetParam()).softmax_exp(x.data(), y.data(), static_cast<std::int64_t>(x.size()));
  probes_of(GetParam()).exp(x.data(), expected.data(), static_cast<std::int64_t>(x.size()));
  for (std::size_t i = 0; i < x.size(); ++i) {
    ASSERT_TRUE(std::isnan(expected[i]) ? std::isnan(y[i]) : y[i] == expected[i]) << x[i];
  }
}

TEST_P(SimdTest, ExpOfSpecialValues) {
  const float x[] = {0.0F, -0.0F, kInf, -kInf, kNan, -104.0F, -1000.0F, 88.72283F, 88.73F, 1e30F, -1e30F};
  float y[std::size(x)];
  probes_of(GetParam()).exp(x, y, std::size(x));
  EXPECT_EQ(y[0], 1.0F);
  EXPECT_EQ(y[1], 1.0F);
  EXPECT_EQ(y[2], kInf);
  EXPECT_EQ(y[3], 0.0F);
  EXPECT_TRUE(std::isnan(y[4]));
  EXPECT_EQ(y[5], 0.0F);
  EXPECT_EQ(y[6], 0.0F);
  EXPECT_LT(y[7], kInf);
  EXPECT_EQ(y[8], kInf);
  EXPECT_EQ(y[9], kInf);
  EXPECT_EQ(y[10], 0.0F);
}

TEST_P(SimdTest, SigmoidIsWithinThreeUlp) {
  const std::vector<float> x = sweep();
  std::vector<float> y(x.size());
  probes_of(GetParam()).sigmoid(x.data(), y.data(), static_cast<std::int64_t>(x.size()));
  double worst = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double expected = 1 / (1 + std::exp(-static_cast<double>(x[i])));
    if (x[i] < -87.0F) {
      EXPECT_LE(y[i], 1.7e-38F);
    } else {
      worst = std::max(worst, std::abs(static_cast<double>(y[i]) - expected) / ulp(expected));
    }
  }
  EXPECT_LE(worst, 3.0);
}

TEST_P(SimdTest, TanhIsWithinFourUlp) {
  std::vector<float> x = sweep();
  // tanh changes its formula at 0.625.
  for (int i = -4000; i <= 4000; ++i) x.push_back(0.625F + static_cast<float>(i) * 0x1p-24F);
  std::vector<float> y(x.size());
  probes_of(GetParam()).tanh(x.data(), y.data(), static_cast<std::int64_t>(x.size()));
  double worst = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double expected = std::tanh(static_cast<double>(x[i]));
    worst = std::max(worst, std::abs(static_cast<double>(y[i]) - expected) / ulp(std::abs(expected)));
  }
  EXPECT_LE(worst, 4.0);
  RecordProperty("worst_ulp", std::to_string(worst));

  const float special[] = {0.0F, -0.0F, kInf, -kInf, kNan};
  float of_special[std::size(special)];
  probes_of(GetParam()).tanh(special, of_special, std::size(special));
  EXPECT_EQ(of_special[0], 0.0F);
  EXPECT_TRUE(std::signbit(of_special[1]));
  EXPECT_EQ(of_special[2], 1.0F);
  EXPECT_EQ(of_special[3], -1.0F);
  EXPECT_TRUE(std::isnan(of_special[4]));
}

TEST_P(SimdTest, ToBFloat16EqualsTheScalarConversion) {
  std::vector<float> x = sweep();
  for (const float special : {kInf, -kInf, kNan, -kNan, std::bit_cast<float>(0x7f800001U)})
    x.push_back(special);
  std::vector<BFloat16> y(x.size());
  probes_of(GetParam()).to_bfloat16(x.data(), y.data(), static_cast<std::int64_t>(x.size()));
  for (std::size_t i = 0; i < x.size(); ++i) ASSERT_EQ(y[i].bits, BFloat16(x[i]).bits) << x[i];
}

}  // namespace
}  // namespace primus::turbo
