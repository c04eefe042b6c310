// A reference of MXFP4 in double, which uses tables. It is for tests of the rounding and of products.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "turbo/mxfp4/mxfp4.h"
#include "turbo/operator_test.h"

namespace primus::turbo::test {

// The magnitudes of codes 0 to 7. Codes 8 to 15 are their negatives.
inline constexpr std::array<double, 8> kNumbers = {0, 0.5, 1, 1.5, 2, 3, 4, 6};

inline double nearest(double x) {
  const double magnitude = std::abs(x);
  std::size_t best = 0;
  for (std::size_t code = 1; code < kNumbers.size(); ++code) {
    const double here = std::abs(kNumbers[code] - magnitude), before = std::abs(kNumbers[best] - magnitude);
    if (here < before || (here == before && code % 2 == 0)) best = code;
  }
  return std::copysign(kNumbers[best], x);
}

// Returns the scale of a block, or NaN if one of its elements is not finite.
inline double scale_of(const Values& block) {
  double largest = 0;
  for (const double x : block) {
    if (!std::isfinite(x)) return NAN;
    largest = std::max(largest, std::abs(x));
  }
  if (largest == 0) return std::ldexp(1.0, -127);
  int exponent = 0;  // largest = fraction * 2^exponent, fraction in [1, 2)
  const double fraction = 2 * std::frexp(largest, &exponent);
  --exponent;
  // The exponent field of fp32 numbers below the smallest normal number is 0, so their magnitude is not
  // rounded up.
  if (exponent >= -126 && fraction >= 1.75) ++exponent;
  return std::ldexp(1.0, std::clamp(exponent - 2, -127, 125));
}

// Rounds matrices whose rows are consecutive in x; each matrix has `of_matrix` rows.
inline Values expected_numbers(const Values& x, std::int64_t cols, RoundMxfp4::Blocks blocks,
                               std::int64_t of_matrix) {
  const auto rows = static_cast<std::int64_t>(x.size()) / cols;
  const std::int64_t height = blocks == RoundMxfp4::Blocks::kRows ? 1 : kMxBlock,
                     width = blocks == RoundMxfp4::Blocks::kColumns ? 1 : kMxBlock;
  Values out(x.size());
  for (std::int64_t matrix = 0; matrix < rows; matrix += of_matrix) {
    for (std::int64_t r = matrix; r < matrix + of_matrix; r += height) {
      for (std::int64_t c = 0; c < cols; c += width) {
        std::vector<std::size_t> places;
        for (std::int64_t i = r; i < std::min(r + height, matrix + of_matrix); ++i)
          for (std::int64_t j = c; j < std::min(c + width, cols); ++j)
            places.push_back(static_cast<std::size_t>(i * cols + j));
        Values block;
        for (const std::size_t place : places) block.push_back(x[place]);
        const double scale = scale_of(block);
        for (const std::size_t place : places) out[place] = nearest(x[place] / scale) * scale;
      }
    }
  }
  return out;
}

// Multiplies each complete group of 16 consecutive rows by H/4, where H is Sylvester's Hadamard matrix.
inline Values transformed(const Values& x, std::int64_t cols, std::int64_t begin, std::int64_t end) {
  Values out = x;
  for (std::int64_t block = begin; block < end; block += kMxBlock) {
    for (std::int64_t first = block; first + 16 <= std::min(block + kMxBlock, end); first += 16) {
      for (std::int64_t c = 0; c < cols; ++c) {
        for (unsigned r = 0; r < 16; ++r) {
          double sum = 0;
          for (unsigned k = 0; k < 16; ++k)
            sum += (std::popcount(r & k) % 2 ? -1 : 1) * x[static_cast<std::size_t>((first + k) * cols + c)];
          out[static_cast<std::size_t>((first + r) * cols + c)] = sum / 4;
        }
      }
    }
  }
  return out;
}

// Returns small integers, whose sums are exact.
inline Values integers(std::int64_t n, std::uint64_t seed) {
  Values x = random_values(n, seed, 40);
  for (double& value : x) value = std::round(value);
  return x;
}

}  // namespace primus::turbo::test
