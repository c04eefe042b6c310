// Tests masters that are split into a bf16 value and a 16-bit remainder: the split is exact, and every
// optimizer gives the results of fp32 masters.
#include "turbo/master_weights.h"

#include <array>
#include <bit>
#include <limits>

#include "turbo/adamw/adamw.h"
#include "turbo/elementwise/elementwise.h"
#include "turbo/lion/lion.h"
#include "turbo/muon/muon.h"
#include "turbo/operator_test.h"
#include "turbo/sgd/sgd.h"
#include "turbo/step_scalars.h"

namespace primus::turbo::test {
namespace {

float of_bits(std::uint32_t bits) { return std::bit_cast<float>(bits); }
std::uint32_t bits_of(float value) { return std::bit_cast<std::uint32_t>(value); }
bool is_nan(std::uint32_t bits) { return (bits & 0x7FFFFFFFU) > 0x7F800000U; }

// Upper halves of fp32 numbers: zero, the smallest and largest denormals and the next normal numbers, even
// and odd last bits, changes of the exponent, the largest finite numbers, infinity and NaN.
constexpr std::array<std::uint32_t, 20> kHighHalves = {0x0000, 0x0001, 0x0002, 0x007E, 0x007F, 0x0080, 0x0081,
                                                       0x00FF, 0x0100, 0x3F7F, 0x3F80, 0x3F81, 0x4048, 0x7EFF,
                                                       0x7F00, 0x7F7E, 0x7F7F, 0x7F80, 0x7FC0, 0x7FFF};

template <class Visit>
void for_each_master(Visit visit) {
  for (const std::uint32_t high : kHighHalves) {
    for (const std::uint32_t sign : {0x0000U, 0x8000U}) {
      for (std::uint32_t low = 0; low < 0x10000U; ++low) visit((high | sign) << 16 | low);
    }
  }
}

// Calls visit() with every upper half. The lower halves are at the middle between two adjacent bf16 numbers,
// next to this middle, and far from this middle.
template <class Visit>
void for_each_high_half(Visit visit) {
  for (std::uint32_t high = 0; high < 0x10000U; ++high) {
    for (const std::uint32_t low : {0x0000U, 0x0001U, 0x7FFFU, 0x8000U, 0x8001U, 0xFFFFU})
      visit(high << 16 | low);
  }
}

void expect_exact(std::uint32_t bits) {
  const float master = of_bits(bits);
  const BFloat16 working = working_value(master);
  const std::uint32_t joined = bits_of(joined_master(working, param_remainder(master)));
  if (is_nan(bits)) {
    ASSERT_TRUE(std::isnan(static_cast<float>(working))) << std::hex << bits;
    ASSERT_TRUE(is_nan(joined)) << std::hex << bits;
    return;
  }
  ASSERT_EQ(joined, bits) << std::hex << bits;
  const bool tie = (bits & 0xFFFFU) == 0x8000U;
  if (!tie) {
    ASSERT_EQ(working.bits, BFloat16(master).bits) << std::hex << bits;
  } else {
    ASSERT_EQ(working.bits, (bits >> 16) + 1) << std::hex << bits << ": ties must round away from zero";
  }
}

TEST(SplitMasters, AreExactForEveryRemainder) { for_each_master(expect_exact); }
TEST(SplitMasters, AreExactForEveryValue) { for_each_high_half(expect_exact); }

// Compares with the definition in double: the working value is the bf16 number that is nearest to the master.
TEST(SplitMasters, TheModelWeightIsTheNearestValue) {
  const auto value_of = [](std::uint32_t high) { return static_cast<double>(of_bits(high << 16)); };
  for (const std::uint32_t high : kHighHalves) {
    if (high >= 0x7F7FU) continue;  // the next bf16 number is infinity
    for (std::uint32_t low = 0; low < 0x10000U; ++low) {
      const double master = of_bits(high << 16 | low);
      const double below = master - value_of(high), above = value_of(high + 1) - master;
      const std::uint32_t expected = below < above ? high : high + 1;
      ASSERT_EQ(working_value(static_cast<float>(master)).bits, expected) << std::hex << high << " " << low;
      ASSERT_EQ(working_value(static_cast<float>(-master)).bits, expected | 0x8000U) << std::hex << high;
    }
  }
}

// ---- Kernels ------------------------------------------------------------------------------------

class MasterWeightsTest : public ::testing::TestWithParam<DeviceUnderTest> {};
INSTANTIATE_TEST_SUITE_P(Devices, MasterWeightsTest, ::testing::ValuesIn(devices_under_test()));

template <class T>
Tensor upload_as(OperatorBench& bench, const std::vector<T>& host, DType dtype) {
  const Tensor tensor = bench.zeros(dtype, {static_cast<std::int64_t>(host.size())});
  bench.write_bytes(tensor, host.data());
  return tensor;
}
template <class T>
std::vector<T> download_as(OperatorBench& bench, const Tensor& tensor) {
  const std::vector<unsigned char> bytes = bench.bytes(tensor);
  std::vector<T> host(bytes.size() / sizeof(T));
  std::memcpy(host.data(), bytes.data(), bytes.size());
  return host;
}

TEST_P(MasterWeightsTest, RoundMastersGivesBothParts) {
  OperatorBench bench(GetParam());
  std::vector<float> masters;
  // The slow emulator tests every 7th master, which still covers all bits of remainders.
  std::uint32_t count = 0;
  const std::uint32_t each = GetParam().emulated_warp > 0 ? 7 : 1;
  for_each_master([&](std::uint32_t bits) {
    if (count++ % each == 0) masters.push_back(of_bits(bits));
  });
  const auto n = static_cast<std::int64_t>(masters.size());
  const Tensor wide = upload_as(bench, masters, DType::kF32);
  const Tensor working = bench.empty(DType::kBF16, {n}), remainder = bench.empty(DType::kI16, {n});
  const Tensor working_alone = bench.empty(DType::kBF16, {n});
  bench.run(RoundMasters{.masters = wide, .working = working, .remainder = remainder});
  bench.run(RoundMasters{.masters = wide, .working = working_alone});
  const auto values = download_as<std::uint16_t>(bench, working);
  const auto rest = download_as<std::int16_t>(bench, remainder);
  for (std::size_t i = 0; i < masters.size(); ++i) {
    ASSERT_EQ(values[i], working_value(masters[i]).bits) << std::hex << bits_of(masters[i]);
    ASSERT_EQ(rest[i], param_remainder(masters[i])) << std::hex << bits_of(masters[i]);
  }
  EXPECT_EQ(bench.bytes(working_alone), bench.bytes(working));
}

// Returns masters of every magnitude, ties, infinities and NaN.
std::vector<float> odd_masters(std::int64_t n) {
  std::vector<float> masters(static_cast<std::size_t>(n));
  const Values normal = random_values(n, 11);
  for (std::size_t i = 0; i < masters.size(); ++i) {
    masters[i] = static_cast<float>(normal[i]);
    if (i % 5 == 1) masters[i] *= std::ldexp(1.0F, static_cast<int>(i % 250) - 140);
    if (i % 7 == 2) masters[i] = of_bits((bits_of(masters[i]) & 0xFFFF0000U) | 0x8000U);
    if (i % 7 == 3) masters[i] = of_bits(bits_of(masters[i]) & 0xFFFF0000U);
  }
  if (n > 40) {
    masters[40] = std::numeric_limits<float>::infinity();
    masters[41] = std::numeric_limits<float>::max();
    masters[42] = -std::numeric_limits<float>::max();
    masters[43] = -0.0F;
    masters[44] = std::numeric_limits<float>::denorm_min();
  }
  return masters;
}

// The operands of a step that all optimizers have, with masters in one of the two forms.
struct Step {
  Tensor param, working, remainder, grad, first, second, grad_scale, scalars;
};

struct Form {
  const char* name;
  bool param, working, split;
};
constexpr Form kWide{"fp32", true, true, false}, kSplit{"split", false, true, true};

struct After {
  std::vector<std::uint32_t> masters;
  std::vector<std::uint16_t> working;
  std::vector<std::vector<unsigned char>> states;
  bool operator==(const After&) const = default;
};

// Runs three steps by `run(bench, step)`. The last step has a bad gradient and is skipped.
template <class Run>
After steps_with(const DeviceUnderTest& device, const Form& form, std::int64_t n, Run run) {
  OperatorBench bench(device);
  const Tensor given = upload_as(bench, odd_masters(n), DType::kF32);
  Step s;
  s.working = bench.empty(DType::kBF16, {n});
  if (form.split) {
    s.remainder = bench.empty(DType::kI16, {n});
  } else {
    s.param = given;
  }
  bench.run(RoundMasters{.masters = given, .working = s.working, .remainder = s.remainder});
  s.first = bench.zeros(DType::kF32, {n});
  s.second = bench.zeros(DType::kF32, {n});
  for (int step = 1; step <= 3; ++step) {
    s.grad = bench.upload(rounded(random_values(n, static_cast<std::uint64_t>(step)), DType::kF32),
                          DType::kF32, {n});
    s.grad_scale = bench.upload({step == 3 ? -1.0 : 0.5}, DType::kF32, {1});
    s.scalars = bench.upload(
        {static_cast<double>(step), 1e-2, 0.1, 1 - std::pow(0.9, step), 1 - std::pow(0.95, step)},
        DType::kF64, {kStepScalars});
    run(bench, s);
  }
  After after{.masters = {},
              .working = download_as<std::uint16_t>(bench, s.working),
              .states = {bench.bytes(s.first), bench.bytes(s.second)}};
  if (form.split) {
    const auto rest = download_as<std::int16_t>(bench, s.remainder);
    for (std::size_t i = 0; i < rest.size(); ++i) {
      BFloat16 high;
      high.bits = after.working[i];
      after.masters.push_back(bits_of(joined_master(high, rest[i])));
    }
  } else {
    after.masters = download_as<std::uint32_t>(bench, s.param);
  }
  // NaNs stay NaN in both forms. If a GPU computes a NaN, split masters do not preserve the payload of this
  // NaN.
  for (std::size_t i = 0; i < after.masters.size(); ++i) {
    if (!std::isnan(of_bits(after.masters[i]))) continue;
    after.masters[i] = bits_of(std::numeric_limits<float>::quiet_NaN());
    EXPECT_GT(after.working[i] & 0x7FFF, 0x7F80) << i;
    after.working[i] = working_value(of_bits(after.masters[i])).bits;
  }
  return after;
}

template <class Run>
void expect_equal_forms(const DeviceUnderTest& device, Run run) {
  for (const std::int64_t n : {1, 47, 4099, 20012}) {  // with the last size, kernels use vectors
    const After wide = steps_with(device, kWide, n, run), split = steps_with(device, kSplit, n, run);
    EXPECT_EQ(split, wide) << n;
    std::size_t moved = 0;
    const std::vector<float> before = odd_masters(n);
    for (std::size_t i = 0; i < before.size(); ++i) {
      moved += wide.masters[i] != bits_of(before[i]) ? 1 : 0;
      ASSERT_EQ(wide.working[i], working_value(of_bits(wide.masters[i])).bits) << i;
    }
    EXPECT_GT(moved, before.size() / 2);
  }
}

TEST_P(MasterWeightsTest, AdamWUpdatesSplitMastersEqually) {
  for (const DType moments : {DType::kF32, DType::kBF16}) {
    expect_equal_forms(GetParam(), [&](OperatorBench& bench, Step& s) {
      if (s.first.dtype != moments) {
        s.first = bench.zeros(moments, s.grad.shape);
        s.second = bench.zeros(moments, s.grad.shape);
      }
      bench.run(AdamW{.param = s.param,
                      .grad = s.grad,
                      .exp_avg = s.first,
                      .exp_avg_sq = s.second,
                      .grad_scale = s.grad_scale,
                      .working = s.working,
                      .remainder = s.remainder,
                      .scalars = s.scalars,
                      .beta1 = 0.9F,
                      .beta2 = 0.95F,
                      .eps = 1e-8F});
    });
  }
}

TEST_P(MasterWeightsTest, SgdUpdatesSplitMastersEqually) {
  for (const bool momentum : {false, true}) {
    expect_equal_forms(GetParam(), [&](OperatorBench& bench, Step& s) {
      bench.run(SgdMomentum{.param = s.param,
                            .grad = s.grad,
                            .momentum_buffer = momentum ? s.first : Tensor(),
                            .grad_scale = s.grad_scale,
                            .working = s.working,
                            .remainder = s.remainder,
                            .scalars = s.scalars,
                            .momentum = momentum ? 0.9F : 0});
    });
  }
}

TEST_P(MasterWeightsTest, LionUpdatesSplitMastersEqually) {
  expect_equal_forms(GetParam(), [](OperatorBench& bench, Step& s) {
    bench.run(Lion{.param = s.param,
                   .grad = s.grad,
                   .exp_avg = s.first,
                   .grad_scale = s.grad_scale,
                   .working = s.working,
                   .remainder = s.remainder,
                   .scalars = s.scalars,
                   .beta1 = 0.9F,
                   .beta2 = 0.98F});
  });
}

TEST_P(MasterWeightsTest, MuonUpdatesSplitMastersEqually) {
  expect_equal_forms(GetParam(), [](OperatorBench& bench, Step& s) {
    bench.run(MuonUpdate{.param = s.param,
                         .direction = s.grad,
                         .grad_scale = s.grad_scale,
                         .working = s.working,
                         .remainder = s.remainder,
                         .scalars = s.scalars,
                         .scale = 2});
  });
}

}  // namespace
}  // namespace primus::turbo::test
