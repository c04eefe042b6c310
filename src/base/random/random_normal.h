// Building blocks of standard normal numbers (base/random/random.h). All compilers and machines compute
// identical bits from the same random word, because the functions use our own polynomials in double
// precision. The numbers are pairs by Box-Muller: one random word gives the radius, and the next word the
// angle.
//
// The functions are constexpr, so that GPU kernels can call them. Callers must be compiled without
// contraction to fused multiply-add.
#pragma once

#include <bit>
#include <cstdint>

namespace primus {

// Converts integers below 2^52 to double, without the int64 conversion, which needs AVX-512.
[[gnu::always_inline]] constexpr double small_to_double(std::uint64_t value) {
  return std::bit_cast<double>(value | 0x4330000000000000ULL) - 0x1p52;
}

// Returns ln((word + 1) / 2^32), with a relative error below 1e-13. Method: x = 2^e * m with m in [sqrt(1/2),
// sqrt(2)), and ln m = 2 artanh(s), s = (m - 1) / (m + 1), |s| < 0.1716.
[[gnu::always_inline]] constexpr double log_unit(std::uint32_t word) {
  const auto bits = std::bit_cast<std::uint64_t>(small_to_double(std::uint64_t{word} + 1));
  constexpr std::uint64_t kSqrtHalf = 0x3FE6A09E667F3BCDULL;  // sqrt(1/2)
  const std::uint64_t shifted = bits - kSqrtHalf + 0x3FF0000000000000ULL;
  const double exponent = small_to_double(shifted >> 52) - (1023.0 + 32.0);
  const double m = std::bit_cast<double>((shifted & 0x000FFFFFFFFFFFFFULL) + kSqrtHalf);
  const double s = (m - 1.0) / (m + 1.0);
  const double z = s * s;
  double p = 1.0 / 15.0;
  p = p * z + 1.0 / 13.0;
  p = p * z + 1.0 / 11.0;
  p = p * z + 1.0 / 9.0;
  p = p * z + 1.0 / 7.0;
  p = p * z + 1.0 / 5.0;
  p = p * z + 1.0 / 3.0;
  p = p * z + 1.0;
  return exponent * 0x1.62e42fefa39efp-1 + 2.0 * s * p;
}

struct CirclePoint {
  double x, y;
};

// Returns a point on the unit circle. The two top bits select the quadrant, and the other bits an angle in
// [-pi/4, pi/4). The constant rotation by pi/4 is omitted, because it does not change the distribution.
[[gnu::always_inline]] constexpr CirclePoint on_circle(std::uint32_t angle) {
  const double t = (small_to_double(angle & 0x3FFFFFFFU) * 0x1p-30 - 0.5) * 0x1.921fb54442d18p+0;
  const double z = t * t;
  // Sine and cosine by Taylor series. At pi/4, the first omitted terms are below 1e-14.
  double sine = 1.0 / 6227020800.0;
  sine = sine * z - 1.0 / 39916800.0;
  sine = sine * z + 1.0 / 362880.0;
  sine = sine * z - 1.0 / 5040.0;
  sine = sine * z + 1.0 / 120.0;
  sine = sine * z - 1.0 / 6.0;
  sine = (sine * z + 1.0) * t;
  double cosine = -1.0 / 87178291200.0;
  cosine = cosine * z + 1.0 / 479001600.0;
  cosine = cosine * z - 1.0 / 3628800.0;
  cosine = cosine * z + 1.0 / 40320.0;
  cosine = cosine * z - 1.0 / 720.0;
  cosine = cosine * z + 1.0 / 24.0;
  cosine = cosine * z - 0.5;
  cosine = cosine * z + 1.0;
  const std::uint32_t quadrant = angle >> 30;
  const double x = (quadrant & 1U) != 0 ? -sine : cosine;
  const double y = (quadrant & 1U) != 0 ? cosine : sine;
  const double sign = (quadrant & 2U) != 0 ? -1.0 : 1.0;
  return {x * sign, y * sign};
}

}  // namespace primus
