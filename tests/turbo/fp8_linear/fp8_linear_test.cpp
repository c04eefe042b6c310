#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "turbo/fp8_linear/fp8_product.h"
#include "turbo/linear_layer.h"
#include "turbo/operator_test.h"

namespace primus::turbo::test {
namespace {

constexpr DType kE4M3 = DType::kF8E4M3, kE5M2 = DType::kF8E5M2;

class Fp8LinearTest : public ::testing::TestWithParam<DeviceUnderTest> {};
INSTANTIATE_TEST_SUITE_P(Devices, Fp8LinearTest, ::testing::ValuesIn(devices_under_test()));

// ---- Expected results of quantisation ------------------------------------------------------------

using Codes = std::vector<unsigned char>;

float nearest_value(float x, DType type) {
  return type == kE4M3 ? Fp8E4M3::nearest(x).value() : Fp8E5M2::nearest(x).value();
}
unsigned char nearest_code(float x, DType type) {
  return type == kE4M3 ? Fp8E4M3::nearest(x).bits : Fp8E5M2::nearest(x).bits;
}

Fp8Scales scales_of(const Values& x, DType type) {
  std::uint32_t largest = 0;
  for (const double v : x)
    largest = std::max(largest, std::bit_cast<std::uint32_t>(static_cast<float>(v)) & 0x7FFFFFFFU);
  return fp8_scales(largest, type == kE4M3 ? Fp8E4M3::largest() : Fp8E5M2::largest());
}

Codes codes_of(const Values& x, DType type) {
  const float scale = scales_of(x, type).scale;
  Codes codes;
  for (const double v : x) codes.push_back(nearest_code(static_cast<float>(v) * scale, type));
  return codes;
}

// Returns the values of x after quantisation.
Values quantized(const Values& x, DType type) {
  const Fp8Scales scales = scales_of(x, type);
  Values values;
  for (const double v : x)
    values.push_back(static_cast<double>(nearest_value(static_cast<float>(v) * scales.scale, type)) *
                     static_cast<double>(scales.inverse));
  return values;
}

Codes transposed(const Codes& codes, std::int64_t rows, std::int64_t cols) {
  Codes result;
  for (std::int64_t c = 0; c < cols; ++c)
    for (std::int64_t r = 0; r < rows; ++r) result.push_back(codes[static_cast<std::size_t>(r * cols + c)]);
  return result;
}

void expect_codes(OperatorBench& bench, const Values& x, DType x_type, DType type, Shape shape) {
  const Tensor input = bench.upload(x, x_type, shape);
  const Codes expected = codes_of(x, type), turned = transposed(expected, shape[0], shape[1]);
  const Fp8Scales scales = scales_of(x, type);
  for (const bool plain : {false, true}) {
    for (const bool turn : {false, true}) {
      if (!plain && !turn) continue;
      const QuantizeFp8 call{.x = input,
                             .codes = plain ? bench.empty(type, shape) : Tensor(),
                             .transposed = turn ? bench.empty(type, {shape[1], shape[0]}) : Tensor(),
                             .scales = bench.empty(DType::kF32, {2})};
      bench.run(call);
      if (plain) {
        EXPECT_EQ(bench.bytes(call.codes), expected) << shape.to_string();
      }
      if (turn) {
        EXPECT_EQ(bench.bytes(call.transposed), turned) << shape.to_string();
      }
      EXPECT_EQ(bench.download(call.scales),
                (Values{static_cast<double>(scales.inverse), static_cast<double>(scales.scale)}));
    }
  }
}

TEST_P(Fp8LinearTest, QuantisationGivesTheCodesOfTheFormats) {
  OperatorBench bench(GetParam());
  for (const Shape& shape : {Shape{16, 16}, {48, 80}, {64, 64}, {144, 208}, {16, 1104}}) {
    for (const DType x_type : {DType::kF32, DType::kBF16}) {
      for (const DType type : {kE4M3, kE5M2}) {
        const Values x = rounded(random_values(shape.elements(), 3, 0.01), x_type);
        expect_codes(bench, x, x_type, type, shape);
      }
    }
  }
}

// The scale is computed from the largest magnitude of a tensor, at any position. Several blocks process the
// tensor.
TEST_P(Fp8LinearTest, TheLargestMagnitudeAtAnyPositionDeterminesTheScale) {
  OperatorBench bench(GetParam());
  const Shape shape{208, 336};
  for (const std::size_t at : {std::size_t{0}, std::size_t{34567}, std::size_t{208 * 336 - 1}}) {
    Values x = rounded(random_values(shape.elements(), 3), DType::kBF16);
    x[at] = -1000;
    expect_codes(bench, x, DType::kBF16, kE4M3, shape);
  }
}

// Tests all codes of the formats, all ties between adjacent codes, and the floats next to a tie, with a scale
// of 1.
TEST_P(Fp8LinearTest, EveryCodeAndEveryTieIsRoundedAsTheFormatSays) {
  OperatorBench bench(GetParam());
  for (const DType type : {kE4M3, kE5M2}) {
    const auto value_of = [&](int code) {
      const auto bits = static_cast<std::uint8_t>(code);
      return type == kE4M3 ? Fp8E4M3{bits}.value() : Fp8E5M2{bits}.value();
    };
    const int top = type == kE4M3 ? 0x7E : 0x7B;
    Values x;
    for (int code = 0; code <= top; ++code) {
      for (const float sign : {1.0F, -1.0F}) {
        const float value = sign * value_of(code);
        x.push_back(static_cast<double>(value));
        if (code == top) continue;
        const float middle = (value + sign * value_of(code + 1)) / 2;
        for (const float next : {middle, std::nextafter(middle, 0.0F), std::nextafter(middle, sign * 1e9F)})
          x.push_back(static_cast<double>(next));
      }
    }
    x.resize(64 * 16);
    ASSERT_EQ(scales_of(x, type).scale, 1);
    expect_codes(bench, x, DType::kF32, type, {64, 16});
  }
}

TEST_P(Fp8LinearTest, ZerosAndTinyNumbersAreQuantised) {
  OperatorBench bench(GetParam());
  const Shape shape{16, 32};
  expect_codes(bench, Values(512), DType::kF32, kE4M3, shape);
  for (const double scale : {1e-37, 1e-41}) {
    const Values x = rounded(random_values(512, 1, scale), DType::kF32);
    expect_codes(bench, x, DType::kF32, kE4M3, shape);
    expect_codes(bench, x, DType::kF32, kE5M2, shape);
  }
}

// ---- With scales of earlier steps ----------------------------------------------------------------

double bits_of(double magnitude) {
  return static_cast<double>(std::bit_cast<std::int32_t>(static_cast<float>(magnitude)));
}

// A known scale saturates larger values: the elements have a standard deviation of 4, and magnitudes above 7
// become the largest code. The pass also records the largest magnitude.
TEST_P(Fp8LinearTest, OnePassQuantizesWithAKnownScaleAndFindsTheLargestMagnitude) {
  OperatorBench bench(GetParam());
  for (const Shape& shape : {Shape{16, 16}, {48, 80}, {208, 336}}) {
    for (const DType x_type : {DType::kF32, DType::kBF16}) {
      for (const DType type : {kE4M3, kE5M2}) {
        Values x = rounded(random_values(shape.elements(), 3, 4), x_type);
        x.back() = -30;
        const float top = type == kE4M3 ? Fp8E4M3::largest() : Fp8E5M2::largest();
        const auto scale = static_cast<double>(top / 7);
        Codes expected;
        for (const double v : x)
          expected.push_back(nearest_code(static_cast<float>(v) * static_cast<float>(scale), type));
        EXPECT_EQ(expected.back(), nearest_code(-top, type));
        const Tensor input = bench.upload(x, x_type, shape),
                     scales = bench.upload({1 / scale, scale}, DType::kF32, {2});
        const Values before = bench.download(scales);
        // A larger magnitude that is already recorded stays.
        for (const double noted : {0.0, 29.0, 31.0}) {
          const QuantizeFp8 call{.x = input,
                                 .codes = bench.empty(type, shape),
                                 .transposed = bench.empty(type, {shape[1], shape[0]}),
                                 .scales = scales,
                                 .known = true,
                                 .largest = bench.upload({bits_of(noted)}, DType::kI32, {1})};
          bench.run(call);
          EXPECT_EQ(bench.bytes(call.codes), expected) << shape.to_string();
          EXPECT_EQ(bench.bytes(call.transposed), transposed(expected, shape[0], shape[1]));
          EXPECT_EQ(bench.download(call.largest), Values{bits_of(std::max(noted, 30.0))});
        }
        const QuantizeFp8 single{
            .x = input, .codes = bench.empty(type, shape), .scales = scales, .known = true};
        bench.run(single);
        EXPECT_EQ(bench.bytes(single.codes), expected);
        EXPECT_EQ(bench.download(scales), before);
      }
    }
  }
}

// Infinities become NaN instead of the largest number, so that errors stay visible.
TEST_P(Fp8LinearTest, WithAKnownScaleOnlyNonFiniteElementsBecomeNan) {
  OperatorBench bench(GetParam());
  const Shape shape{48, 80};
  for (const DType type : {kE4M3, kE5M2}) {
    for (const double wrong : {double{INFINITY}, double{-INFINITY}, double{NAN}}) {
      Values x = rounded(random_values(shape.elements(), 3), DType::kBF16);
      x[1234] = wrong;
      const QuantizeFp8 call{.x = bench.upload(x, DType::kBF16, shape),
                             .codes = bench.empty(type, shape),
                             .scales = bench.upload({0.5, 2}, DType::kF32, {2}),
                             .known = true,
                             .largest = bench.zeros(DType::kI32, {1})};
      bench.run(call);
      const Codes codes = bench.bytes(call.codes);
      for (std::size_t i = 0; i < codes.size(); ++i) {
        if (i == 1234) {
          EXPECT_EQ(codes[i] & 0x7F, 0x7F);
        } else {
          EXPECT_EQ(codes[i], nearest_code(static_cast<float>(x[i]) * 2, type)) << i;
        }
      }
      EXPECT_GE(bench.download(call.largest)[0], bits_of(INFINITY));
    }
  }
}

// The rules of Transformer Engine's DelayedScaling for one tensor. `history` begins with the most recent
// step.
struct DelayedTensor {
  std::vector<float> history;
  float scale;

  void end_step(float magnitude, float top, bool most_recent, int margin) {
    history.pop_back();
    history.insert(history.begin(), magnitude);
    float decides = magnitude;
    for (const float m : history) {
      // NaN counts as larger than infinity, as in a comparison of the bits.
      if (!most_recent && (std::isnan(m) || m > decides)) decides = m;
    }
    if (decides > 0 && std::isfinite(decides)) scale = top * std::ldexp(1.0F, -margin) / decides;
  }
};

struct DelayedRule {
  std::int64_t steps;
  bool most_recent;
  int margin;
  DType gradients;
};

void expect_scales(OperatorBench& bench, const DelayedRule& rule, const std::vector<Values>& steps) {
  SCOPED_TRACE(std::to_string(rule.steps) + " steps, margin " + std::to_string(rule.margin) +
               (rule.most_recent ? ", most recent" : ", max"));
  constexpr std::int64_t kLayers = 2, kTensors = UpdateFp8Scales::kTensors, kPlace = UpdateFp8Scales::kPlace;
  UpdateFp8Scales call{.largest = bench.zeros(DType::kI32, {kLayers, kTensors}),
                       .history = bench.zeros(DType::kF32, {kLayers, kTensors, rule.steps}),
                       .scales = bench.upload(Values(kPlace * kLayers * kTensors, 1), DType::kF32,
                                              {kLayers, kTensors, kPlace}),
                       .norm = bench.upload({1.5}, DType::kF32, {1}),
                       .gradients = rule.gradients,
                       .most_recent = rule.most_recent,
                       .margin = rule.margin};
  std::vector<DelayedTensor> expected(kLayers * kTensors,
                                      {std::vector<float>(static_cast<std::size_t>(rule.steps)), 1});
  for (const Values& magnitudes : steps) {
    Values bits;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      // Gives each tensor a different magnitude.
      const auto magnitude =
          static_cast<float>(magnitudes[i % magnitudes.size()] * static_cast<double>(i + 1));
      const bool gradient = i % kTensors == kTensors - 1;
      const float top = gradient && rule.gradients == kE5M2 ? Fp8E5M2::largest() : Fp8E4M3::largest();
      expected[i].end_step(magnitude, top, rule.most_recent, rule.margin);
      bits.push_back(bits_of(static_cast<double>(magnitude)));
    }
    bench.write(call.largest, bits);
    bench.run(call);
    Values history, scales;
    for (const DelayedTensor& tensor : expected) {
      history.insert(history.end(), tensor.history.begin(), tensor.history.end());
      scales.insert(scales.end(),
                    {static_cast<double>(1 / tensor.scale), static_cast<double>(tensor.scale), 1, 1});
    }
    EXPECT_EQ(bench.download(call.scales), scales);
    const Values found = bench.download(call.history);
    ASSERT_EQ(found.size(), history.size());
    for (std::size_t i = 0; i < found.size(); ++i)
      EXPECT_TRUE(found[i] == history[i] || (std::isnan(found[i]) && std::isnan(history[i]))) << i;
  }
}

TEST_P(Fp8LinearTest, DelayedScalesFollowFromHistories) {
  OperatorBench bench(GetParam());
  // Magnitudes rise and fall. After a step of zeros or an infinite magnitude, the scale is unchanged.
  const std::vector<Values> steps = {{3}, {0.5, 8}, {0}, {7, 0, 2}, {1e-3}, {double{INFINITY}},
                                     {2}, {4},      {1}};
  for (const std::int64_t length : {1, 2, 4, 256, 257, 700}) {
    for (const bool most_recent : {false, true}) {
      expect_scales(bench, {length, most_recent, 0, kE5M2}, steps);
      expect_scales(bench, {length, most_recent, 3, kE4M3}, steps);
    }
  }
  expect_scales(bench, {3, false, 0, kE4M3}, {{1}, {double{NAN}}, {2}, {4}, {8}});
}

// Histories have more elements than a block has threads, so that a thread moves several elements.
TEST_P(Fp8LinearTest, LongHistoriesMoveCompletely) {
  OperatorBench bench(GetParam());
  for (const std::int64_t steps : {255, 256, 257, 512, 513, 1024}) {
    Values history;
    for (std::int64_t i = 0; i < 3 * steps; ++i) history.push_back(static_cast<double>(i + 1));
    const UpdateFp8Scales call{.largest = bench.upload(Values(3, bits_of(9999)), DType::kI32, {1, 3}),
                               .history = bench.upload(history, DType::kF32, {1, 3, steps}),
                               .scales = bench.upload(Values(12, 1), DType::kF32, {1, 3, 4}),
                               .norm = bench.upload({1}, DType::kF32, {1})};
    bench.run(call);
    for (std::int64_t t = 0; t < 3; ++t) {
      history.erase(history.begin() + (t + 1) * steps - 1);
      history.insert(history.begin() + t * steps, 9999);
    }
    EXPECT_EQ(bench.download(call.history), history) << steps;
  }
}

TEST_P(Fp8LinearTest, ABadStepChangesNoScale) {
  OperatorBench bench(GetParam());
  for (const double norm : {double{INFINITY}, double{NAN}}) {
    const UpdateFp8Scales call{
        .largest = bench.upload(Values(3, bits_of(5)), DType::kI32, {1, 3}),
        .history = bench.upload({1, 2, 3, 4, 5, 6}, DType::kF32, {1, 3, 2}),
        .scales = bench.upload({0.5, 2, 1, 1, 0.25, 4, 1, 1, 1, 1, 1, 1}, DType::kF32, {1, 3, 4}),
        .norm = bench.upload({norm}, DType::kF32, {1})};
    bench.run(call);
    EXPECT_EQ(bench.download(call.history), (Values{1, 2, 3, 4, 5, 6}));
    EXPECT_EQ(bench.download(call.scales), (Values{0.5, 2, 1, 1, 0.25, 4, 1, 1, 1, 1, 1, 1}));
  }
}

// Scales and their inverses are normal numbers for every history.
TEST_P(Fp8LinearTest, ExtremeMagnitudesHaveUsableScales) {
  OperatorBench bench(GetParam());
  for (const auto& [magnitude, scale] : {std::pair(1e-44, 0x1p126), {3.4e38, 0x1p-126}}) {
    const UpdateFp8Scales call{.largest = bench.upload(Values(3, bits_of(magnitude)), DType::kI32, {1, 3}),
                               .history = bench.zeros(DType::kF32, {1, 3, 4}),
                               .scales = bench.upload(Values(12, 1), DType::kF32, {1, 3, 4}),
                               .norm = bench.upload({1}, DType::kF32, {1}),
                               .margin = 16};
    bench.run(call);
    EXPECT_EQ(bench.download(call.scales),
              (Values{1 / scale, scale, 1, 1, 1 / scale, scale, 1, 1, 1 / scale, scale, 1, 1}));
  }
}

// ---- Products -----------------------------------------------------------------------------------

// Returns the error of fp32 sums of a few hundred terms. Tensor cores of GPUs keep about 14 bits of a sum
// (fp8_linear.h), and each of about ten consecutive additions truncates at most one unit of the last bit.
double sum_tolerance(const DeviceUnderTest& device) { return device.plugin.empty() ? 2e-6 : 10 * 0x1p-14; }

struct Types {
  DType a, b;          // types of the inputs
  DType a_fp8, b_fp8;  // types of the operands of the product
  DType c;
};

void expect_product(OperatorBench& bench, GemmRole role, const Layer& layer, const Types& types,
                    bool accumulate, double tolerance) {
  SCOPED_TRACE("role " + std::to_string(static_cast<int>(role)) + " tokens " + std::to_string(layer.tokens) +
               " " + std::string(name_of(types.a_fp8)) + " · " + std::string(name_of(types.b_fp8)) + " to " +
               std::string(name_of(types.c)) + (accumulate ? " +=" : ""));
  const Shapes s = shapes(role, layer);
  const Values a = rounded(random_values(s.a.elements(), 1, 1e-3), types.a);
  const Values b = rounded(random_values(s.b.elements(), 2, 20), types.b);
  const Values before = rounded(random_values(s.c.elements(), 3, 0.1), types.c);
  Values expected = product(role, layer, quantized(a, types.a_fp8), quantized(b, types.b_fp8));
  const Fp8Linear call{.role = role,
                       .a = bench.upload(a, types.a, s.a),
                       .b = bench.upload(b, types.b, s.b),
                       .c = accumulate ? bench.upload(before, types.c, s.c) : bench.empty(types.c, s.c),
                       .a_type = types.a_fp8,
                       .b_type = types.b_fp8,
                       .accumulate = accumulate};
  if (accumulate) {
    for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += before[i];
  }
  bench.run(call);
  // GPU libraries may round before and after adding to a bf16 result.
  const int roundings = accumulate ? 2 : 1;
  EXPECT_LE(normalised_error(bench.download(call.c), expected),
            roundings * rounding_error(types.c) + tolerance);
  EXPECT_EQ(call.flops(), 2.0 * static_cast<double>(layer.tokens * layer.in * layer.out));
}

TEST_P(Fp8LinearTest, RolesMatchProductsOfQuantizedOperands) {
  OperatorBench bench(GetParam());
  const double tolerance = sum_tolerance(GetParam());
  for (const Layer& layer : {Layer{16, 16, 16}, {48, 80, 32}, {128, 64, 208}}) {
    for (const GemmRole role : kRoles) {
      for (const auto& [a, b] : {std::pair(kE4M3, kE4M3), {kE5M2, kE4M3}, {kE4M3, kE5M2}}) {
        for (const bool accumulate : {false, true}) {
          expect_product(bench, role, layer, {DType::kBF16, DType::kBF16, a, b, DType::kF32}, accumulate,
                         tolerance);
          expect_product(bench, role, layer, {DType::kF32, DType::kBF16, a, b, DType::kBF16}, accumulate,
                         tolerance);
        }
      }
    }
  }
}

double decibels(const Values& actual, const Values& expected) {
  double signal = 0, noise = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    signal += expected[i] * expected[i];
    noise += (actual[i] - expected[i]) * (actual[i] - expected[i]);
  }
  return 10 * std::log10(signal / noise);
}

// The thresholds are those of AMD's Primus-Turbo.
TEST_P(Fp8LinearTest, TheSignalIsFarAboveTheNoiseOfQuantisation) {
  OperatorBench bench(GetParam());
  const Layer layer{64, 256, 96};
  for (const GemmRole role : kRoles) {
    const Shapes s = shapes(role, layer);
    const Values a = rounded(random_values(s.a.elements(), 1), DType::kBF16),
                 b = rounded(random_values(s.b.elements(), 2), DType::kBF16);
    const Values exact = product(role, layer, a, b);
    for (const auto& [type, minimum] : {std::pair(kE4M3, 25.0), {kE5M2, 20.0}}) {
      const Fp8Linear call{.role = role,
                           .a = bench.upload(a, DType::kBF16, s.a),
                           .b = bench.upload(b, DType::kBF16, s.b),
                           .c = bench.empty(DType::kF32, s.c),
                           .a_type = type};
      bench.run(call);
      EXPECT_GE(decibels(bench.download(call.c), exact), minimum) << static_cast<int>(role);
    }
  }
}

TEST_P(Fp8LinearTest, NonFiniteOperandsGiveNonFiniteResults) {
  OperatorBench bench(GetParam());
  const Layer layer{48, 32, 16};
  for (const GemmRole role : kRoles) {
    const Shapes s = shapes(role, layer);
    for (const double wrong : {double{INFINITY}, double{-INFINITY}, double{NAN}}) {
      for (const bool in_a : {false, true}) {
        Values a = random_values(s.a.elements(), 1), b = random_values(s.b.elements(), 2);
        (in_a ? a : b).back() = wrong;
        const Fp8Linear call{.role = role,
                             .a = bench.upload(a, DType::kBF16, s.a),
                             .b = bench.upload(b, DType::kF32, s.b),
                             .c = bench.upload(Values(static_cast<std::size_t>(s.c.elements())),
                                               in_a ? DType::kBF16 : DType::kF32, s.c),
                             .accumulate = true};
        bench.run(call);
        for (const double x : bench.download(call.c)) EXPECT_TRUE(std::isnan(x));
      }
    }
  }
}

// Returns the values of x after quantisation with a known scale.
Values quantized_by(const Values& x, DType type, float scale) {
  Values values;
  for (const double v : x)
    values.push_back(static_cast<double>(nearest_value(static_cast<float>(v) * scale, type)) /
                     static_cast<double>(scale));
  return values;
}

TEST_P(Fp8LinearTest, WithKnownScalesRolesMatchTheProductsOfQuantisedOperands) {
  OperatorBench bench(GetParam());
  const double tolerance = sum_tolerance(GetParam());
  for (const Layer& layer : {Layer{16, 16, 16}, {48, 80, 32}, {128, 64, 208}}) {
    for (const GemmRole role : kRoles) {
      const DType a_type = role == GemmRole::kForward ? kE4M3 : kE5M2;
      const Shapes s = shapes(role, layer);
      const Values a = rounded(random_values(s.a.elements(), 1, 1e-3), DType::kBF16);
      const Values b = rounded(random_values(s.b.elements(), 2, 20), DType::kBF16);
      // The scales are powers of two, so that their inverses are exact. With b_scale, a few elements
      // saturate.
      const float a_scale = 0x1p14F, b_scale = 8;
      const auto scaling = [&](float scale) {
        return Fp8Scaling{.scales = bench.upload({1 / static_cast<double>(scale), static_cast<double>(scale)},
                                                 DType::kF32, {2}),
                          .largest = bench.zeros(DType::kI32, {1})};
      };
      const Fp8Linear call{.role = role,
                           .a = bench.upload(a, DType::kBF16, s.a),
                           .b = bench.upload(b, DType::kBF16, s.b),
                           .c = bench.empty(DType::kF32, s.c),
                           .a_type = a_type,
                           .a_scaling = scaling(a_scale),
                           .b_scaling = scaling(b_scale)};
      bench.run(call);
      const Values expected =
          product(role, layer, quantized_by(a, a_type, a_scale), quantized_by(b, kE4M3, b_scale));
      EXPECT_LE(normalised_error(bench.download(call.c), expected), rounding_error(DType::kF32) + tolerance)
          << static_cast<int>(role);
      const auto largest = [](const Values& x) {
        double maximum = 0;
        for (const double v : x) maximum = std::max(maximum, std::abs(v));
        return bits_of(maximum);
      };
      EXPECT_EQ(bench.download(call.a_scaling.largest), Values{largest(a)});
      EXPECT_EQ(bench.download(call.b_scaling.largest), Values{largest(b)});
    }
  }
}

TEST_P(Fp8LinearTest, ProductsOfZerosAreZero) {
  OperatorBench bench(GetParam());
  const Layer layer{16, 32, 16};
  const Shapes s = shapes(GemmRole::kForward, layer);
  const Fp8Linear call{.role = GemmRole::kForward,
                       .a = bench.zeros(DType::kBF16, s.a),
                       .b = bench.upload(random_values(s.b.elements(), 2), DType::kBF16, s.b),
                       .c = bench.empty(DType::kBF16, s.c)};
  bench.run(call);
  EXPECT_EQ(bench.download(call.c), Values(static_cast<std::size_t>(s.c.elements())));
}

// The scratch size that measure mode finds is exactly the size that a call uses.
TEST_P(Fp8LinearTest, UsesTheMeasuredScratch) {
  OperatorBench bench(GetParam());
  const Layer layer{128, 64, 208};
  for (const GemmRole role : kRoles) {
    const Shapes s = shapes(role, layer);
    const Fp8Linear call{.role = role,
                         .a = bench.upload(random_values(s.a.elements(), 1), DType::kBF16, s.a),
                         .b = bench.upload(random_values(s.b.elements(), 2), DType::kBF16, s.b),
                         .c = bench.empty(DType::kF32, s.c)};
    Arena measuring("scratch");
    Context plan{bench.device(), bench.context().stream, measuring, bench.meter()};
    launch(plan, call);
    const std::int64_t bytes = measuring.high_water();
    EXPECT_GE(bytes, call.a.elements() + call.b.elements());
    void* const memory = bench.device().allocate(bytes);
    Arena exact("scratch", memory, bytes);
    Context context{bench.device(), bench.context().stream, exact, bench.meter()};
    launch(context, call);
    context.stream.synchronize();
    EXPECT_EQ(exact.high_water(), bytes);
    EXPECT_EQ(exact.in_use(), 0);
    bench.device().release(memory);
  }
}

TEST_P(Fp8LinearTest, ExtentsMustBeMultiplesOf16) {
  OperatorBench bench(GetParam());
  for (const Layer& layer : {Layer{24, 32, 16}, {16, 40, 16}, {16, 32, 8}, {1, 32, 16}}) {
    const Shapes s = shapes(GemmRole::kForward, layer);
    try {
      bench.run(Fp8Linear{.role = GemmRole::kForward,
                          .a = bench.zeros(DType::kBF16, s.a),
                          .b = bench.zeros(DType::kBF16, s.b),
                          .c = bench.zeros(DType::kBF16, s.c)});
      ADD_FAILURE() << "the extents were accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalid);
      EXPECT_THAT(error.what(), ::testing::HasSubstr("multiples of 16"));
      EXPECT_THAT(error.hint(), ::testing::HasSubstr("bf16"));
    }
  }
}

TEST(Fp8Linear, ManyThreadsGiveTheSameBits) {
  const Layer layer{208, 96, 336};
  for (const GemmRole role : kRoles) {
    std::vector<unsigned char> expected;
    for (const int threads : {1, 2, 3}) {
      OperatorBench bench({.threads = threads});
      const Shapes s = shapes(role, layer);
      const Fp8Linear call{.role = role,
                           .a = bench.upload(random_values(s.a.elements(), 1), DType::kBF16, s.a),
                           .b = bench.upload(random_values(s.b.elements(), 2), DType::kBF16, s.b),
                           .c = bench.empty(DType::kF32, s.c)};
      bench.run(call);
      if (threads == 1) expected = bench.bytes(call.c);
      EXPECT_EQ(bench.bytes(call.c), expected) << threads << " threads";
    }
  }
}

}  // namespace
}  // namespace primus::turbo::test
