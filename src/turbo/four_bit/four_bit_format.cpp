#include "turbo/four_bit/four_bit_format.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <utility>

namespace primus::turbo {
namespace {

using CodeValues = std::array<float, kFourBitCodes>;

constexpr CodeValues kNf4 = {-1.0F,
                             -0.6961928009986877F,
                             -0.5250730514526367F,
                             -0.39491748809814453F,
                             -0.28444138169288635F,
                             -0.18477343022823334F,
                             -0.09105003625154495F,
                             0.0F,
                             0.07958029955625534F,
                             0.16093020141124725F,
                             0.24611230194568634F,
                             0.33791524171829224F,
                             0.44070982933044434F,
                             0.5626170039176941F,
                             0.7229568362236023F,
                             1.0F};
constexpr float kTiny = 0.0052083334885537624F, kSixth = 0.1666666716337204F, kThird = 0.3333333432674408F,
                kTwoThirds = 0.6666666865348816F;
constexpr CodeValues kFp4 = {0, kTiny,  kTwoThirds,  1,  kThird,  0.5F,  kSixth,  0.25F,
                             0, -kTiny, -kTwoThirds, -1, -kThird, -0.5F, -kSixth, -0.25F};

// The codes in ascending order of their numbers, and the midpoints between neighbours. A number on a midpoint
// gets the smaller neighbour.
struct Nearest {
  std::array<float, kFourBitCodes - 1> midpoints{};
  std::array<std::uint8_t, kFourBitCodes> codes{};

  explicit Nearest(const CodeValues& values) {
    std::iota(codes.begin(), codes.end(), std::uint8_t{0});
    std::ranges::stable_sort(codes, {}, [&](std::uint8_t code) { return values[code]; });
    for (std::size_t i = 0; i < midpoints.size(); ++i)
      midpoints[i] = (values[codes[i]] + values[codes[i + 1]]) / 2;
  }
};

const Nearest& nearest_of(FourBitType type) {
  static const Nearest nf4(kNf4), fp4(kFp4);
  return type == FourBitType::kNf4 ? nf4 : fp4;
}

// Returns torch.linspace(0.1, 1, count)[i] in fp32: PyTorch counts from the nearer end and rounds once.
float linspace(int i, int count) {
  constexpr float kFirst = 0.1F, kLast = 1;
  const float step = (kLast - kFirst) / static_cast<float>(count - 1);
  return i < count / 2 ? std::fma(step, static_cast<float>(i), kFirst)
                       : std::fma(-step, static_cast<float>(count - 1 - i), kLast);
}

std::array<float, kNestedCodes> make_nested_values() {
  constexpr int kExponents = 7;
  std::array<float, kNestedCodes> values{};
  std::size_t at = 0;
  for (int exponent = 0; exponent < kExponents; ++exponent) {
    const auto power = static_cast<float>(std::pow(10.0, exponent - (kExponents - 1)));
    const int count = (1 << exponent) + 1;
    for (int i = 0; i + 1 < count; ++i) {
      const float value = power * ((linspace(i, count) + linspace(i + 1, count)) / 2);
      values[at++] = value;
      values[at++] = -value;
    }
  }
  values[at++] = 0;
  values[at++] = 1;
  std::ranges::sort(values);
  return values;
}

// bitsandbytes rounds a factor to one of 65536 numbers in [-1, 1] before it looks up the nearest code.
constexpr int kSteps = 65536;

std::array<std::uint8_t, kSteps> make_nested_codes() {
  const auto& values = nested_values();
  std::array<std::uint8_t, kSteps> codes{};
  std::size_t code = 0;
  for (int i = 0; i < kSteps; ++i) {
    const float value = -1.0F + (2.0F * static_cast<float>(i)) / static_cast<float>(kSteps - 1);
    while (code + 1 < values.size() && 0.5F * (values[code] + values[code + 1]) < value) ++code;
    codes[static_cast<std::size_t>(i)] = static_cast<std::uint8_t>(code);
  }
  return codes;
}

std::uint8_t nested_code(float value) {
  static const std::array<std::uint8_t, kSteps> codes = make_nested_codes();
  if (!(value >= -1.0F)) value = -1;
  const float step = (std::min(value, 1.0F) + 1.0F) * 0.5F * static_cast<float>(kSteps - 1) + 0.5F;
  return codes[static_cast<std::size_t>(step)];
}

// Sums in the order of PyTorch on a CPU with vectors of 8 numbers: four vectors are summed independently, in
// a cascade of at most four levels, so that the rounding error of long sums stays small.
float torch_sum(std::span<const float> values) {
  constexpr std::size_t kLanes = 8, kVectors = 4, kLevels = 4;
  using Row = std::array<float, kLanes * kVectors>;
  const std::size_t vectors = values.size() / kLanes, rows = vectors / kVectors;
  std::size_t bits = 0;
  while ((std::size_t{1} << bits) < rows) ++bits;
  const std::size_t power = std::max<std::size_t>(4, bits / kLevels), step = std::size_t{1} << power;
  std::array<Row, kLevels> levels{};
  const auto add_row = [&](std::size_t row) {
    for (std::size_t i = 0; i < levels[0].size(); ++i) levels[0][i] += values[row * levels[0].size() + i];
  };
  std::size_t row = 0;
  while (row + step <= rows) {
    for (std::size_t i = 0; i < step; ++i) add_row(row++);
    for (std::size_t level = 1; level < kLevels; ++level) {
      for (std::size_t i = 0; i < levels[0].size(); ++i) levels[level][i] += levels[level - 1][i];
      levels[level - 1] = {};
      if ((row & ((step - 1) << (level * power))) != 0) break;
    }
  }
  while (row < rows) add_row(row++);
  Row& sums = levels[0];
  for (std::size_t level = 1; level < kLevels; ++level) {
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += levels[level][i];
  }
  for (std::size_t vector = rows * kVectors; vector < vectors; ++vector) {
    for (std::size_t i = 0; i < kLanes; ++i) sums[i] += values[vector * kLanes + i];
  }
  for (std::size_t vector = 1; vector < kVectors; ++vector) {
    for (std::size_t i = 0; i < kLanes; ++i) sums[i] += sums[vector * kLanes + i];
  }
  float sum = 0;
  for (std::size_t i = vectors * kLanes; i < values.size(); ++i) sum += values[i];
  for (std::size_t i = 0; i < kLanes; ++i) sum += sums[i];
  return sum;
}

// Returns the largest magnitude; NaN if there is a NaN. Bits of magnitudes are ordered as the magnitudes are,
// and codes of NaN come last.
float largest_magnitude(std::span<const float> values) {
  std::int32_t largest = 0;
  for (const float value : values)
    largest = std::max(largest, std::bit_cast<std::int32_t>(value) & 0x7FFFFFFF);
  return std::bit_cast<float>(largest);
}

// Returns the factor of each block, and writes the codes of all numbers.
std::vector<float> quantise_blocks(std::span<const float> values, const FourBitFormat& format,
                                   std::span<std::uint8_t> packed) {
  constexpr float kSmallest = 1e-38F;
  constexpr std::size_t kAtOnce = 16;  // numbers that are compared at once, a multiple of 2
  const Nearest& nearest = nearest_of(format.type);
  const auto block = static_cast<std::size_t>(format.block);
  std::vector<float> factors, scaled((block + kAtOnce - 1) / kAtOnce * kAtOnce);
  factors.reserve(values.size() / block + 1);
  for (std::size_t first = 0; first < values.size(); first += block) {
    const std::span<const float> of_block = values.subspan(first, std::min(block, values.size() - first));
    const std::size_t count = of_block.size();
    float factor = largest_magnitude(of_block);
    // bitsandbytes multiplies complete blocks by the inverse, and divides the incomplete block at the end.
    if (count == block) {
      const float inverse = 1.0F / std::max(factor, kSmallest);
      for (std::size_t i = 0; i < count; ++i) scaled[i] = of_block[i] * inverse;
    } else {
      factor = std::max(factor, kSmallest);
      for (std::size_t i = 0; i < count; ++i) scaled[i] = of_block[i] / factor;
      std::fill(scaled.begin() + static_cast<std::ptrdiff_t>(count), scaled.end(), 0.0F);
    }
    factors.push_back(factor);
    for (std::size_t i = 0; i < count; i += kAtOnce) {
      std::array<std::int32_t, kAtOnce> below{};  // number of midpoints below each number
      for (const float midpoint : nearest.midpoints) {
        for (std::size_t k = 0; k < kAtOnce; ++k) below[k] += scaled[i + k] > midpoint ? 1 : 0;
      }
      const auto code = [&](std::size_t k) { return nearest.codes[static_cast<std::size_t>(below[k])]; };
      for (std::size_t k = 0; k < kAtOnce && i + k < count; k += 2)
        packed[(first + i + k) / 2] = static_cast<std::uint8_t>(code(k) << 4U | code(k + 1));
    }
  }
  return factors;
}

}  // namespace

std::string_view name_of(FourBitType type) {
  return type == FourBitType::kNf4 ? "nf4" : type == FourBitType::kFp4 ? "fp4" : "none";
}

const CodeValues& code_values(FourBitType type) { return type == FourBitType::kNf4 ? kNf4 : kFp4; }

const std::array<float, kNestedCodes>& nested_values() {
  static const std::array<float, kNestedCodes> values = make_nested_values();
  return values;
}

FourBitTensor quantise_four_bit(std::span<const float> values, const FourBitFormat& format) {
  if (!format || format.block < 2 || format.block % 2 != 0)
    throw std::logic_error("quantise_four_bit: a format with an even block is needed");
  const FourBitSizes sizes(static_cast<std::int64_t>(values.size()), format);
  FourBitTensor result;
  result.packed.resize(static_cast<std::size_t>(sizes.packed));
  result.factors = quantise_blocks(values, format, result.packed);
  if (!format.nested) return result;
  std::vector<float> factors = std::exchange(result.factors, {});
  result.offset = torch_sum(factors) / static_cast<float>(factors.size());
  for (float& factor : factors) factor -= result.offset;
  constexpr auto kGroup = static_cast<std::size_t>(FourBitFormat::kNestedBlock);
  for (std::size_t first = 0; first < factors.size(); first += kGroup) {
    const auto group = std::span(factors).subspan(first, std::min(kGroup, factors.size() - first));
    const float largest = largest_magnitude(group), inverse = 1.0F / largest;
    result.factors.push_back(largest);
    for (const float factor : group)
      result.factor_codes.push_back(largest == 0 ? std::uint8_t{0} : nested_code(factor * inverse));
  }
  return result;
}

void read_four_bit(const FourBitTensor& tensor, const FourBitFormat& format, std::int64_t first,
                   std::span<float> out) {
  const CodeValues& values = code_values(format.type);
  const float* const nested = tensor.nested_map.empty() ? nested_values().data() : tensor.nested_map.data();
  const auto block = static_cast<std::size_t>(format.block);
  for (std::size_t i = 0; i < out.size();) {
    const std::size_t at = static_cast<std::size_t>(first) + i, b = at / block;
    float factor = 0;
    if (format.nested) {
      factor = nested[tensor.factor_codes[b]] * tensor.factors[b / FourBitFormat::kNestedBlock];
      factor += tensor.offset;
    } else {
      factor = tensor.factors[b];
    }
    const std::size_t end = std::min(out.size(), i + (b + 1) * block - at);
    for (std::size_t element = at; i < end; ++i, ++element) {
      const unsigned pair = tensor.packed[element / 2];
      out[i] = values[element % 2 == 0 ? pair >> 4U : pair & 0xFU] * factor;
    }
  }
}

}  // namespace primus::turbo
