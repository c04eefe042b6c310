// Integers beyond 64 bits, for templates that compute or print them as Python does.
//
// Errors: std::length_error if a result has more than kMaxDigits decimal digits (Python's own limit for
// printing). Values are immutable; functions are thread-safe.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace primus::jinja {

class BigInteger {
 public:
  static constexpr std::size_t kMaxDigits = 4300;

  BigInteger() = default;
  explicit BigInteger(std::int64_t value);
  // Parses digits of `base` (2, 8, 10 or 16), without a sign or a prefix.
  static BigInteger parse(std::string_view digits, int base);
  // Rounds toward zero; `value` must be finite.
  static BigInteger truncated(double value);

  std::string str() const;
  double to_double() const;
  // Returns nullopt if the value does not fit.
  std::optional<std::int64_t> to_int64() const;
  bool negative() const { return negative_; }
  bool is_zero() const { return limbs_.empty(); }

  BigInteger operator-() const;
  friend BigInteger operator+(const BigInteger& a, const BigInteger& b);
  friend BigInteger operator-(const BigInteger& a, const BigInteger& b) { return a + -b; }
  friend BigInteger operator*(const BigInteger& a, const BigInteger& b);
  // Returns the floor quotient, and the remainder with the sign of `b`. `b` must not be 0.
  static std::pair<BigInteger, BigInteger> floor_divide(const BigInteger& a, const BigInteger& b);
  friend std::strong_ordering operator<=>(const BigInteger& a, const BigInteger& b);
  friend bool operator==(const BigInteger& a, const BigInteger& b) = default;

 private:
  static constexpr std::uint32_t kBase = 1'000'000'000;
  using Limbs = std::vector<std::uint32_t>;  // little-endian, without leading zeros
  static std::strong_ordering compare(const Limbs& a, const Limbs& b);
  static Limbs add(const Limbs& a, const Limbs& b);
  static Limbs subtract(const Limbs& a, const Limbs& b);  // a >= b
  static Limbs multiply(const Limbs& a, std::uint32_t factor);
  static void trim(Limbs& limbs);
  BigInteger(bool negative, Limbs limbs);

  bool negative_ = false;  // false for 0
  Limbs limbs_;
};

}  // namespace primus::jinja
