// Compares the expansion of 4-bit weights on each device with the host's (turbo/four_bit/four_bit_format.h),
// bit for bit. tests/lm/exchange/four_bit_test.cpp compares the host with bitsandbytes.
#include "turbo/four_bit/four_bit.h"

#include "turbo/operator_test.h"

namespace primus::turbo::test {
namespace {

class FourBitTest : public ::testing::TestWithParam<DeviceUnderTest> {};
INSTANTIATE_TEST_SUITE_P(Devices, FourBitTest, ::testing::ValuesIn(devices_under_test()));

std::vector<float> weights(std::int64_t n, std::uint64_t seed) {
  const Values values = random_values(n, seed, 0.05);
  return {values.begin(), values.end()};
}

template <class T>
void append(std::vector<T>& all, const std::vector<T>& more) {
  all.insert(all.end(), more.begin(), more.end());
}

TEST_P(FourBitTest, ExpansionHasTheBitsOfTheHost) {
  OperatorBench bench(GetParam());
  const auto upload = [&](const auto& values, DType dtype, const Shape& shape) {
    const Tensor tensor = bench.empty(dtype, shape);
    EXPECT_EQ(tensor.bytes(), std::ssize(values) * static_cast<std::int64_t>(sizeof(values[0])));
    bench.write_bytes(tensor, values.data());
    return tensor;
  };
  constexpr std::int64_t kCount = 2;
  for (const FourBitType type : {FourBitType::kNf4, FourBitType::kFp4}) {
    for (const std::int64_t block : {64, 128}) {
      for (const bool nested : {false, true}) {
        // The last size has more blocks than share a nested factor.
        for (const std::int64_t n : {1, 63, 232, 1024, 64 * 300 + 30}) {
          SCOPED_TRACE(::testing::Message() << name_of(type) << ", block " << block << ", nested " << nested
                                            << ", " << n << " elements");
          const FourBitFormat format{.type = type, .block = block, .nested = nested};
          const FourBitSizes sizes(n, format);
          FourBitTensor all;
          std::vector<float> offsets, expected;
          for (std::int64_t t = 0; t < kCount; ++t) {
            const FourBitTensor one = quantise_four_bit(weights(n, static_cast<std::uint64_t>(t)), format);
            append(all.packed, one.packed);
            append(all.factors, one.factors);
            append(all.factor_codes, one.factor_codes);
            offsets.push_back(one.offset);
            std::vector<float> values(static_cast<std::size_t>(n));
            read_four_bit(one, format, 0, values);
            append(expected, values);
          }
          std::vector<float> table(code_values(type).begin(), code_values(type).end());
          if (nested) table.insert(table.end(), nested_values().begin(), nested_values().end());
          ExpandFourBit call{
              .packed = upload(all.packed, DType::kU8, {kCount, sizes.packed}),
              .factors = upload(all.factors, DType::kF32, {kCount, nested ? sizes.nested : sizes.blocks}),
              .codes = nested ? upload(all.factor_codes, DType::kU8, {kCount, sizes.blocks}) : Tensor(),
              .offset = nested ? upload(offsets, DType::kF32, {kCount}) : Tensor(),
              .table = upload(table, DType::kF32, {std::ssize(table)}),
              .out = {},
              .block = block};
          for (const DType dtype : {DType::kF32, DType::kBF16}) {
            call.out = bench.empty(dtype, {kCount, n});
            bench.run(call);
            EXPECT_EQ(bench.download(call.out), rounded(Values(expected.begin(), expected.end()), dtype));
          }
        }
      }
    }
  }
}

// A block of zeros stays zero, and the relative error of other blocks has the bounds of the codes: half the
// distance of neighbouring codes, times the block's largest magnitude.
TEST(FourBitFormatTest, QuantisedNumbersAreNear) {
  std::vector<float> values = weights(1000, 5);
  std::fill(values.begin() + 128, values.begin() + 192, 0.0F);
  const FourBitFormat format{.type = FourBitType::kNf4, .block = 64, .nested = false};
  const FourBitTensor tensor = quantise_four_bit(values, format);
  std::vector<float> read(values.size());
  read_four_bit(tensor, format, 0, read);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float factor = tensor.factors[i / 64];
    EXPECT_LE(std::abs(read[i] - values[i]), 0.153F * factor) << i;
    if (i >= 128 && i < 192) {
      EXPECT_EQ(read[i], 0) << i;
    }
  }
  // Reading from the middle of a byte gives the same numbers.
  std::vector<float> later(values.size() - 333);
  read_four_bit(tensor, format, 333, later);
  EXPECT_TRUE(std::equal(later.begin(), later.end(), read.begin() + 333));
}

}  // namespace
}  // namespace primus::turbo::test
