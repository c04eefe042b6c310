// Tests 8-bit optimizer moments: their codes, and the AdamW kernel that stores them.
#include "turbo/block_moments.h"

#include <cstring>
#include <limits>
#include <span>

#include "turbo/adamw/adamw.h"
#include "turbo/operator_test.h"
#include "turbo/step_scalars.h"

namespace primus::turbo::test {
namespace {

// ---- Codes ----------------------------------------------------------------------------------------

// The formats in double: the magnitude of a code in units of its block's scale, and the largest code.
double units_of(int code) {
  const int exponent = code / 8, digits = code % 8;
  return exponent == 0 ? digits : std::ldexp(8 + digits, exponent - 1);
}
struct Format {
  bool is_signed;
  int top;
  double top_units() const { return units_of(top); }
};
constexpr Format kFirst{true, 126}, kSecond{false, 255};

double decoded(const Format& format, unsigned char code, double scale) {
  const double magnitude = units_of(format.is_signed ? code & 127 : code) * scale;
  return format.is_signed && code > 127 ? -magnitude : magnitude;
}
// Returns the distance between the two codes around a magnitude of `units`.
double spacing(double units) { return units < 16 ? 1 : std::exp2(std::ilogb(units) - 3); }
// Returns the smallest power of two p such that (largest code) * p >= `largest`.
double scale_for(const Format& format, double largest) {
  double scale = 0x1p-126;
  while (largest > format.top_units() * scale) scale *= 2;
  return scale;
}

template <class Codes>
void expect_format(const Format& format) {
  for (int code = 0; code < 256; ++code) {
    if (format.is_signed && (code & 127) > format.top) continue;
    const auto byte = static_cast<std::uint8_t>(code);
    for (const std::uint32_t field : {1U, 90U, 127U, 200U}) {
      const float scale = static_cast<float>(Codes::scale(field));
      ASSERT_EQ(scale, std::ldexp(1.0F, static_cast<int>(field) - 127));
      const float value = Codes::decoded(byte, scale);
      ASSERT_EQ(value, decoded(format, byte, scale)) << code;
      ASSERT_EQ(value, static_cast<float>(BFloat16(value)))
          << code << ": bf16, in which checkpoints store moments, must hold it exactly";
      // A value that equals a code is stored exactly, even if it is the largest value of its block.
      for (const std::uint32_t random : {0U, 1U, 0x8000U, 0xFFFFU})
        ASSERT_EQ(Codes::encoded(value, field, random), byte) << code;
      ASSERT_EQ(Codes::nearest(value, field), byte) << code;
      const std::uint32_t own = Codes::unit_field(std::abs(value));
      ASSERT_LE(own, field);
      ASSERT_EQ(Codes::decoded(Codes::nearest(value, own), static_cast<float>(Codes::scale(own))), value);
    }
  }
}

TEST(BlockCodes, AreSmallFloatingPointNumbers) {
  expect_format<FirstMomentCodes>(kFirst);
  expect_format<SecondMomentCodes>(kSecond);
  // The e4m3 format of OCP, with a unit of 2^-9.
  EXPECT_EQ(FirstMomentCodes::decoded(0x7E, 0x1p-9F), 448);
  EXPECT_EQ(FirstMomentCodes::decoded(0x38, 0x1p-9F), 1);
  EXPECT_EQ(FirstMomentCodes::decoded(0x81, 0x1p-9F), -0x1p-9F);
  EXPECT_EQ(SecondMomentCodes::decoded(0xFF, 1), 15 * 0x1p30F);
}

template <class Codes>
void expect_units(const Format& format) {
  const Values draws = random_values(20000, 1);
  for (std::size_t i = 0; i < draws.size(); ++i) {
    const auto largest =
        static_cast<float>(std::exp2(120 * std::sin(static_cast<double>(i))) * std::abs(draws[i]));
    EXPECT_EQ(static_cast<float>(Codes::scale(Codes::unit_field(largest))), scale_for(format, largest))
        << largest;
  }
  EXPECT_EQ(Codes::unit_field(0), 1U);
  const auto exact = static_cast<float>(format.top_units());
  EXPECT_EQ(Codes::unit_field(exact), 127U);
  EXPECT_EQ(Codes::unit_field(std::nextafter(exact, INFINITY)), 128U);
}

// The scale of a block is the smallest power of two p such that (largest code) * p is at least the largest
// magnitude of the block.
TEST(BlockCodes, TheUnitIsTheSmallestThatHoldsTheLargestNumber) {
  expect_units<FirstMomentCodes>(kFirst);
  expect_units<SecondMomentCodes>(kSecond);
}

// A value is rounded to one of the two codes around it. The mean over all random numbers is the value, up to
// the resolution of the random numbers.
TEST(BlockCodes, KeepTheMeanOfValuesAboveOneUnit) {
  for (const float value : {1.25F, 7.9F, 9.3F, 100.9F, 70000.5F}) {
    double first = 0, second = 0;
    for (std::uint32_t random = 0; random < 0x10000; ++random) {
      const double one = FirstMomentCodes::decoded(FirstMomentCodes::encoded(-value, 127, random), 1);
      const double two = SecondMomentCodes::decoded(SecondMomentCodes::encoded(value, 127, random), 1);
      ASSERT_LT(std::abs(one + value), spacing(value));
      ASSERT_LT(std::abs(two - value), spacing(value));
      first += one / 0x10000;
      second += two / 0x10000;
    }
    EXPECT_NEAR(first, -value, spacing(value) * 0x1p-16);
    EXPECT_NEAR(second, value, spacing(value) * 0x1p-16);
  }
}

TEST(BlockCodes, SecondMomentsAreNeverZeroAndFirstMomentsNeverDouble) {
  const float tiny = std::numeric_limits<float>::denorm_min();
  for (const std::uint32_t random : {0U, 0x7FFFU, 0xFFFFU}) {
    for (const float value : {tiny, 0x1p-30F, 0.49F, 0.51F, 0.99F, 1.0F, 1.01F, 1.99F, 2.01F, 15.9F}) {
      const double first = FirstMomentCodes::decoded(FirstMomentCodes::encoded(value, 127, random), 1);
      const double second = SecondMomentCodes::decoded(SecondMomentCodes::encoded(value, 127, random), 1);
      EXPECT_LE(first, 2 * value);
      EXPECT_GE(second, std::max(value / 2, 0x1p-126F)) << value;
      if (value < 1) {
        EXPECT_EQ(first, value < 0.5F ? 0 : 1);
        EXPECT_EQ(second, 1);
      }
    }
  }
  EXPECT_EQ(SecondMomentCodes::encoded(0, 127, 0xFFFF), 0);
  EXPECT_EQ(SecondMomentCodes::encoded(INFINITY, SecondMomentCodes::unit_field(INFINITY), 0), 255);
  EXPECT_EQ(FirstMomentCodes::encoded(NAN, FirstMomentCodes::unit_field(1), 0) & 127, 126);
}

// ---- The kernel -----------------------------------------------------------------------------------

struct Settings {
  double lr = 1e-2, beta1 = 0.9, beta2 = 0.999, weight_decay = 0.1;
};

// A moment on a device: fp32 values, or 8-bit codes with block scales.
struct Moment {
  Tensor values, scales;
  Format format;
};

class BlockMomentsTest : public ::testing::TestWithParam<DeviceUnderTest> {
 protected:
  OperatorBench bench{GetParam()};

  Moment zero_moment(const Format& format, DType dtype, std::int64_t n) {
    Moment moment{bench.zeros(dtype, {n}), {}, format};
    if (has_block_scales(dtype)) moment.scales = bench.zeros(DType::kBF16, {n / kMomentBlock});
    return moment;
  }
  Moment first(std::int64_t n, bool coded = true) {
    return zero_moment(kFirst, coded ? DType::kF8E4M3 : DType::kF32, n);
  }
  Moment second(std::int64_t n, bool coded = true) {
    return zero_moment(kSecond, coded ? DType::kU8 : DType::kF32, n);
  }
  // Returns the decoded values.
  Values read(const Moment& moment) {
    if (moment.scales.absent()) return bench.download(moment.values);
    const auto codes = bench.bytes(moment.values);
    const Values scales = bench.download(moment.scales);
    Values values;
    for (std::size_t i = 0; i < codes.size(); ++i)
      values.push_back(decoded(moment.format, codes[i], scales[i / static_cast<std::size_t>(kMomentBlock)]));
    return values;
  }
  void step(const Tensor& param, const Values& grad, const Moment& m, const Moment& v, int number,
            const Settings& set = {}, double scale = 1, const Tensor& working = {},
            const Tensor& remainder = {}) {
    const std::int64_t n = m.values.elements();
    bench.run(
        AdamW{.param = param,
              .grad = bench.upload(grad, DType::kF32, {n}),
              .exp_avg = m.values,
              .exp_avg_sq = v.values,
              .grad_scale = bench.upload({scale}, DType::kF32, {1}),
              .working = working,
              .remainder = remainder,
              .exp_avg_scale = m.scales,
              .exp_avg_sq_scale = v.scales,
              .scalars = bench.upload({static_cast<double>(number), set.lr, set.weight_decay,
                                       1 - std::pow(set.beta1, number), 1 - std::pow(set.beta2, number)},
                                      DType::kF64, {kStepScalars}),
              .beta1 = static_cast<float>(set.beta1),
              .beta2 = static_cast<float>(set.beta2),
              .eps = 1e-8F,
              .rounding_stream = 77,
              .first_element = 5 * kMomentBlock});
  }
};
INSTANTIATE_TEST_SUITE_P(Devices, BlockMomentsTest, ::testing::ValuesIn(devices_under_test()));

// Returns gradients whose magnitudes differ by factors of up to 2^40, within a block and between blocks.
Values wild_gradient(std::int64_t n, int step) {
  Values grad = random_values(n, static_cast<std::uint64_t>(step));
  for (std::size_t i = 0; i < grad.size(); ++i) {
    const auto number = static_cast<double>(i);
    grad[i] *= std::exp2(-20 + 20 * std::sin(number) - 3 * std::floor(number / kMomentBlock));
  }
  return rounded(grad, DType::kF32);
}

// Checks the moments `stored` for the exact values `exact`: the scale of each block is right for the block's
// largest value. Every value became one of the two codes around the value. Rounding has no bias.
void expect_stored(const Values& stored, const Values& exact, const Values& scales, const Format& format) {
  double bias = 0, variance = 0;
  for (std::size_t block = 0; block < scales.size(); ++block) {
    const auto size = static_cast<std::size_t>(kMomentBlock);
    double largest = 0;
    for (std::size_t i = 0; i < size; ++i) largest = std::max(largest, std::abs(exact[block * size + i]));
    ASSERT_EQ(scales[block], scale_for(format, largest)) << block;
    for (std::size_t i = block * size; i < (block + 1) * size; ++i) {
      const double units = std::abs(exact[i]) / scales[block],
                   error = stored[i] / scales[block] - exact[i] / scales[block];
      const double apart = spacing(units);
      ASSERT_LE(std::abs(error), apart) << i;
      if (units < 1) {
        const double expected = format.is_signed ? std::floor(units + 0.5) : units > 0 ? 1 : 0;
        ASSERT_EQ(std::abs(stored[i]) / scales[block], expected) << i;
        continue;
      }
      bias += error / apart;
      const double part = std::fmod(units, apart) / apart;
      variance += part * (1 - part);
    }
  }
  EXPECT_GT(variance, 0);
  EXPECT_LE(std::abs(bias), 5 * std::sqrt(variance));
}

// A step with 8-bit moments is compared with a step that starts from equal fp32 moments: weights have equal
// bits, and the new 8-bit moments are the rounded fp32 moments. One of the moments, or both, are in 8 bits.
TEST_P(BlockMomentsTest, AStepUsesTheDecodedMoments) {
  for (const std::int64_t n : {kMomentBlock, 3 * kMomentBlock, 150 * kMomentBlock}) {
    for (const auto& [first_coded, second_coded] : {std::pair(true, true), {true, false}, {false, true}}) {
      const Moment m = first(n, first_coded), v = second(n, second_coded);
      const Tensor param = bench.upload(random_values(n, 9), DType::kF32, {n});
      const Tensor working = bench.zeros(DType::kBF16, {n});
      for (int number = 1; number <= 3; ++number) {
        const Moment wide_m = first(n, false), wide_v = second(n, false);
        bench.write(wide_m.values, read(m));
        bench.write(wide_v.values, read(v));
        const Tensor wide_param = bench.upload(bench.download(param), DType::kF32, {n});
        const Values grad = wild_gradient(n, number);
        step(wide_param, grad, wide_m, wide_v, number, {}, 0.75);
        step(param, grad, m, v, number, {}, 0.75, number == 2 ? working : Tensor());
        ASSERT_EQ(bench.bytes(param), bench.bytes(wide_param))
            << "the update must use the moments before rounding";
        if (number == 2) {
          EXPECT_EQ(bench.download(working), rounded(bench.download(param), DType::kBF16));
        }
        if (first_coded) expect_stored(read(m), read(wide_m), bench.download(m.scales), kFirst);
        if (second_coded) expect_stored(read(v), read(wide_v), bench.download(v.scales), kSecond);
      }
    }
  }
}

// Two steps follow AdamW in double. The expected values start from the stored moments, so expected and actual
// moments differ by only one rounding.
TEST_P(BlockMomentsTest, TheMomentsFollowTheirDefinitionInDouble) {
  constexpr std::int64_t kCount = 20 * kMomentBlock;
  const Settings set;
  const Moment m = first(kCount), v = second(kCount);
  const Tensor param = bench.upload(Values(kCount, 0.5), DType::kF32, {kCount});
  for (int number = 1; number <= 2; ++number) {
    const Values before_m = read(m), before_v = read(v), before = bench.download(param);
    const Values grad = rounded(random_values(kCount, static_cast<std::uint64_t>(number)), DType::kF32);
    step(param, grad, m, v, number);
    const Values after_m = read(m), after_v = read(v), after = bench.download(param);
    for (std::size_t i = 0; i < grad.size(); ++i) {
      const double exact_m = set.beta1 * before_m[i] + (1 - set.beta1) * grad[i];
      const double exact_v = set.beta2 * before_v[i] + (1 - set.beta2) * grad[i] * grad[i];
      // One rounding moves a moment by at most an eighth of itself or by one unit. A unit is at most 2^-17 of
      // the largest first moment and 2^-33 of the largest second moment.
      ASSERT_LE(std::abs(after_m[i] - exact_m), std::abs(exact_m) / 8 + 0x1p-17);
      ASSERT_LE(std::abs(after_v[i] - exact_v), exact_v / 8 + 0x1p-33);
      const double root = std::sqrt(exact_v / (1 - std::pow(set.beta2, number))) + 1e-8;
      const double expected = before[i] * (1 - set.lr * set.weight_decay) -
                              set.lr / (1 - std::pow(set.beta1, number)) * exact_m / root;
      // 1 - beta2 in fp32 has a relative error of 3e-8 / 1e-3. The square root halves this error.
      ASSERT_NEAR(after[i], expected, 3e-5 * std::abs(expected - before[i]) + 1e-7);
    }
  }
}

// The stored bits do not depend on the device or on how blocks are divided among calls.
TEST_P(BlockMomentsTest, ResultsDependOnNeitherDeviceNorShards) {
  constexpr std::int64_t kBlocks = 37, kCount = kBlocks * kMomentBlock;
  const auto run = [&](OperatorBench& on, const std::vector<std::int64_t>& cuts) {
    const Tensor param = on.upload(rounded(random_values(kCount, 1), DType::kF32), DType::kF32, {kCount});
    const Tensor m = on.zeros(DType::kF8E4M3, {kCount}), m_scale = on.zeros(DType::kBF16, {kBlocks});
    const Tensor v = on.zeros(DType::kU8, {kCount}), v_scale = on.zeros(DType::kBF16, {kBlocks});
    for (int number = 1; number <= 4; ++number) {
      const Tensor grad = on.upload(wild_gradient(kCount, number), DType::kF32, {kCount});
      for (std::size_t i = 0; i + 1 < cuts.size(); ++i) {
        const std::int64_t begin = cuts[i], end = cuts[i + 1], size = kMomentBlock;
        // The learning rate is 0, because weights may differ in the last bit: devices divide and take square
        // roots differently.
        on.run(AdamW{
            .param = param.slice(begin * size, end * size),
            .grad = grad.slice(begin * size, end * size),
            .exp_avg = m.slice(begin * size, end * size),
            .exp_avg_sq = v.slice(begin * size, end * size),
            .grad_scale = on.upload({1}, DType::kF32, {1}),
            .working = {},
            .exp_avg_scale = m_scale.slice(begin, end),
            .exp_avg_sq_scale = v_scale.slice(begin, end),
            .scalars = on.upload({static_cast<double>(number), 0, 0, 1, 1}, DType::kF64, {kStepScalars}),
            .beta1 = 0.9F,
            .beta2 = 0.999F,
            .eps = 1e-8F,
            .rounding_stream = 3,
            .first_element = begin * size});
      }
    }
    return std::vector{on.bytes(m), on.bytes(m_scale), on.bytes(v), on.bytes(v_scale)};
  };
  const auto whole = run(bench, {0, kBlocks});
  EXPECT_EQ(run(bench, {0, kBlocks}), whole);
  EXPECT_EQ(run(bench, {0, 1, 3, 20, kBlocks}), whole);
  OperatorBench first_device(devices_under_test().front());
  EXPECT_EQ(run(first_device, {0, kBlocks}), whole);
}

// Storing the moments enlarges (first moment) / sqrt(second moment) by a factor of at most 2 sqrt(2). This
// also holds for elements that are much smaller than the largest element of their block, and for gradients
// that become zero or are mostly zero.
TEST_P(BlockMomentsTest, UpdatesAreBounded) {
  constexpr std::int64_t kCount = 8 * kMomentBlock;
  const Moment m = first(kCount), v = second(kCount);
  const Tensor param = bench.zeros(DType::kF32, {kCount});
  int below_a_unit = 0;
  for (int number = 1; number <= 60; ++number) {
    Values grad = wild_gradient(kCount, number);
    for (std::size_t i = 0; i < grad.size(); ++i) {
      if (i % 5 == 0 && number > 3) grad[i] = 0;            // the gradient becomes zero
      if (i % 7 == 0) grad[i] *= std::exp2(-2.0 * number);  // the gradient decays
      if (i % 11 == 0 && number % 10 != 0) grad[i] = 0;     // the gradient is mostly zero
    }
    const Moment wide_m = first(kCount, false), wide_v = second(kCount, false);
    bench.write(wide_m.values, read(m));
    bench.write(wide_v.values, read(v));
    step(bench.zeros(DType::kF32, {kCount}), grad, wide_m, wide_v, number);
    step(param, grad, m, v, number);
    const Values stored_m = read(m), stored_v = read(v), exact_m = read(wide_m), exact_v = read(wide_v);
    const Values units = bench.download(v.scales);
    for (std::size_t i = 0; i < grad.size(); ++i) {
      if (exact_v[i] == 0) continue;
      ASSERT_GT(stored_v[i], 0) << number << " " << i;
      ASSERT_LE(std::abs(stored_m[i]) / std::sqrt(stored_v[i]),
                2 * std::sqrt(2.0) * std::abs(exact_m[i]) / std::sqrt(exact_v[i]) * (1 + 1e-6))
          << number << " " << i;
      below_a_unit += exact_v[i] < units[i / static_cast<std::size_t>(kMomentBlock)];
    }
  }
  EXPECT_GT(below_a_unit, 1000) << "too few second moments lie below one unit of their block";
}

// With stochastic rounding, a second moment that changes by 0.1 % per step converges. With rounding to
// nearest, the moment would stop at about a hundredth of its limit.
TEST_P(BlockMomentsTest, SlowSecondMomentsKeepChanging) {
  constexpr std::int64_t kCount = 32 * kMomentBlock;
  const Moment m = first(kCount), v = second(kCount);
  for (int number = 1; number <= 400; ++number)
    step(bench.zeros(DType::kF32, {kCount}), Values(kCount, 1.0), m, v, number);
  double mean = 0;
  for (const double value : read(v)) mean += value / kCount;
  // 1 - 0.999^400 = 0.330. One rounding has a variance of at most |change| * spacing = 0.001 * 0.33 / 8.
  // After 400 roundings, the mean of 4096 elements has a standard deviation of 0.002.
  EXPECT_NEAR(mean, 1 - std::pow(0.999, 400), 5 * 0.002);
}

// With equal gradients, weights with 8-bit moments stay close to weights with fp32 moments. The relative
// standard deviation of rounding a moment is at most 1/16. A first moment accumulates beta1 / sqrt(1 -
// beta1^2) = 2.06 times 1/16: 0.129. A second moment with beta2 = 0.95 accumulates 3.04 times 1/16, and the
// square root halves this deviation: 0.095. Together, the deviation is sqrt(0.129² + 0.095²) = 0.16.
TEST_P(BlockMomentsTest, TwentyStepsDifferOnlyByMomentRounding) {
  constexpr std::int64_t kCount = 32 * kMomentBlock;
  const Settings set{.beta2 = 0.95, .weight_decay = 0};
  const Moment m = first(kCount), v = second(kCount);
  const Moment wide_m = first(kCount, false), wide_v = second(kCount, false);
  const Tensor param = bench.zeros(DType::kF32, {kCount}), wide_param = bench.zeros(DType::kF32, {kCount});
  for (int number = 1; number <= 20; ++number) {
    const Values grad = random_values(kCount, static_cast<std::uint64_t>(number));
    step(param, grad, m, v, number, set);
    step(wide_param, grad, wide_m, wide_v, number, set);
  }
  const Values narrow = bench.download(param), wide = bench.download(wide_param);
  double apart = 0, way = 0;
  for (std::size_t i = 0; i < wide.size(); ++i) {
    apart += (narrow[i] - wide[i]) * (narrow[i] - wide[i]);
    way += wide[i] * wide[i];
  }
  EXPECT_LE(std::sqrt(apart / way), 0.16);
  EXPECT_GT(apart, 0);
}

TEST_P(BlockMomentsTest, ABadStepChangesNeitherCodesNorScales) {
  constexpr std::int64_t kCount = 2 * kMomentBlock;
  const Moment m = first(kCount), v = second(kCount);
  const Tensor param = bench.zeros(DType::kF32, {kCount});
  step(param, random_values(kCount, 1), m, v, 1);
  const auto bits = [&] {
    return std::vector{bench.bytes(param), bench.bytes(m.values), bench.bytes(m.scales),
                       bench.bytes(v.values), bench.bytes(v.scales)};
  };
  const auto before = bits();
  Values bad = random_values(kCount, 2);
  bad[3] = NAN;
  step(param, bad, m, v, 2, {}, -1);
  EXPECT_EQ(bits(), before);
}

// Split masters give the same weights and moments as fp32 masters.
TEST_P(BlockMomentsTest, UpdateSplitMasters) {
  constexpr std::int64_t kCount = 4 * kMomentBlock;
  const Tensor param = bench.zeros(DType::kF32, {kCount}),
               rounded_param = bench.zeros(DType::kBF16, {kCount});
  const Tensor working = bench.zeros(DType::kBF16, {kCount}), remainder = bench.zeros(DType::kI16, {kCount});
  const Moment m = first(kCount), v = second(kCount), split_m = first(kCount), split_v = second(kCount);
  for (int number = 1; number <= 3; ++number) {
    const Values grad = random_values(kCount, static_cast<std::uint64_t>(number));
    step(param, grad, m, v, number, {}, 1, rounded_param);
    step(Tensor(), grad, split_m, split_v, number, {}, 1, working, remainder);
  }
  EXPECT_EQ(bench.bytes(working), bench.bytes(rounded_param));
  EXPECT_EQ(bench.bytes(split_m.values), bench.bytes(m.values));
  EXPECT_EQ(bench.bytes(split_v.scales), bench.bytes(v.scales));
}

}  // namespace
}  // namespace primus::turbo::test
