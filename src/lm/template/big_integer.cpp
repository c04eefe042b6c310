#include "lm/template/big_integer.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <stdexcept>

namespace primus::jinja {

BigInteger::BigInteger(bool negative, Limbs limbs) : negative_(negative), limbs_(std::move(limbs)) {
  trim(limbs_);
  if (limbs_.empty()) negative_ = false;
  if (limbs_.size() > (kMaxDigits + 8) / 9) throw std::length_error("an integer has too many digits");
}

BigInteger::BigInteger(std::int64_t value) : negative_(value < 0) {
  auto rest = negative_ ? ~static_cast<std::uint64_t>(value) + 1 : static_cast<std::uint64_t>(value);
  for (; rest != 0; rest /= kBase) limbs_.push_back(static_cast<std::uint32_t>(rest % kBase));
}

BigInteger BigInteger::parse(std::string_view digits, int base) {
  BigInteger value;
  for (const char c : digits) {
    const int digit = c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10;
    value = BigInteger(
        false, add(multiply(value.limbs_, static_cast<std::uint32_t>(base)), BigInteger(digit).limbs_));
  }
  return value;
}

BigInteger BigInteger::truncated(double value) {
  int exponent = 0;
  const double fraction = std::frexp(std::abs(std::trunc(value)), &exponent);  // 0.5 <= fraction < 1
  BigInteger result(static_cast<std::int64_t>(std::ldexp(fraction, 53)));
  for (int i = 53; i < exponent; ++i) result = BigInteger(false, multiply(result.limbs_, 2));
  for (int i = exponent; i < 53 && !result.is_zero(); ++i) result = floor_divide(result, BigInteger(2)).first;
  return value < 0 ? -result : result;
}

std::string BigInteger::str() const {
  if (limbs_.empty()) return "0";
  std::string text = negative_ ? "-" : "";
  text += std::to_string(limbs_.back());
  for (auto limb = limbs_.rbegin() + 1; limb != limbs_.rend(); ++limb) {
    const std::string digits = std::to_string(*limb);
    text.append(9 - digits.size(), '0').append(digits);
  }
  return text;
}

double BigInteger::to_double() const { return std::strtod(str().c_str(), nullptr); }

std::optional<std::int64_t> BigInteger::to_int64() const {
  if (limbs_.size() > 3) return std::nullopt;
  unsigned __int128 sum = 0;
  for (auto limb = limbs_.rbegin(); limb != limbs_.rend(); ++limb) sum = sum * kBase + *limb;
  const unsigned __int128 limit = (static_cast<unsigned __int128>(1) << 63) - (negative_ ? 0 : 1);
  if (sum > limit) return std::nullopt;
  const auto bits = static_cast<std::uint64_t>(sum);
  return static_cast<std::int64_t>(negative_ ? ~bits + 1 : bits);
}

BigInteger BigInteger::operator-() const { return {!negative_, limbs_}; }

BigInteger operator+(const BigInteger& a, const BigInteger& b) {
  if (a.negative_ == b.negative_) return {a.negative_, BigInteger::add(a.limbs_, b.limbs_)};
  if (BigInteger::compare(a.limbs_, b.limbs_) >= 0)
    return {a.negative_, BigInteger::subtract(a.limbs_, b.limbs_)};
  return {b.negative_, BigInteger::subtract(b.limbs_, a.limbs_)};
}

BigInteger operator*(const BigInteger& a, const BigInteger& b) {
  BigInteger::Limbs product(a.limbs_.size() + b.limbs_.size(), 0);
  for (std::size_t i = 0; i < a.limbs_.size(); ++i) {
    std::uint64_t carry = 0;
    for (std::size_t j = 0; j < b.limbs_.size() || carry != 0; ++j) {
      const std::uint64_t factor = j < b.limbs_.size() ? b.limbs_[j] : 0;
      const std::uint64_t sum = product[i + j] + a.limbs_[i] * factor + carry;
      product[i + j] = static_cast<std::uint32_t>(sum % BigInteger::kBase);
      carry = sum / BigInteger::kBase;
    }
  }
  return {a.negative_ != b.negative_, std::move(product)};
}

std::pair<BigInteger, BigInteger> BigInteger::floor_divide(const BigInteger& a, const BigInteger& b) {
  Limbs quotient(a.limbs_.size(), 0), rest;
  for (std::size_t i = a.limbs_.size(); i-- > 0;) {
    rest.insert(rest.begin(), a.limbs_[i]);
    trim(rest);
    // Finds, by bisection, the largest digit whose product with b is not above the rest.
    std::uint32_t low = 0, high = kBase - 1;
    while (low < high) {
      const std::uint32_t middle = low + (high - low + 1) / 2;
      if (compare(multiply(b.limbs_, middle), rest) <= 0)
        low = middle;
      else
        high = middle - 1;
    }
    quotient[i] = low;
    rest = subtract(rest, multiply(b.limbs_, low));
  }
  BigInteger whole(a.negative_ != b.negative_, std::move(quotient)), remainder(a.negative_, std::move(rest));
  if (!remainder.is_zero() && a.negative_ != b.negative_) {
    whole = whole - BigInteger(1);
    remainder = remainder + b;
  }
  return {whole, remainder};
}

std::strong_ordering operator<=>(const BigInteger& a, const BigInteger& b) {
  if (a.negative_ != b.negative_)
    return a.negative_ ? std::strong_ordering::less : std::strong_ordering::greater;
  return a.negative_ ? BigInteger::compare(b.limbs_, a.limbs_) : BigInteger::compare(a.limbs_, b.limbs_);
}

std::strong_ordering BigInteger::compare(const Limbs& a, const Limbs& b) {
  if (a.size() != b.size()) return a.size() <=> b.size();
  for (std::size_t i = a.size(); i-- > 0;)
    if (a[i] != b[i]) return a[i] <=> b[i];
  return std::strong_ordering::equal;
}

BigInteger::Limbs BigInteger::add(const Limbs& a, const Limbs& b) {
  Limbs sum(std::max(a.size(), b.size()) + 1, 0);
  std::uint32_t carry = 0;
  for (std::size_t i = 0; i < sum.size(); ++i) {
    const std::uint32_t digit = (i < a.size() ? a[i] : 0) + (i < b.size() ? b[i] : 0) + carry;
    sum[i] = digit % kBase;
    carry = digit / kBase;
  }
  trim(sum);
  return sum;
}

BigInteger::Limbs BigInteger::subtract(const Limbs& a, const Limbs& b) {
  Limbs difference(a.size(), 0);
  std::int64_t borrow = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::int64_t digit = std::int64_t{a[i]} - (i < b.size() ? b[i] : 0) - borrow;
    borrow = digit < 0 ? 1 : 0;
    if (digit < 0) digit += kBase;
    difference[i] = static_cast<std::uint32_t>(digit);
  }
  trim(difference);
  return difference;
}

BigInteger::Limbs BigInteger::multiply(const Limbs& a, std::uint32_t factor) {
  Limbs product;
  std::uint64_t carry = 0;
  for (std::size_t i = 0; i < a.size() || carry != 0; ++i) {
    const std::uint64_t digit = (i < a.size() ? std::uint64_t{a[i]} * factor : 0) + carry;
    product.push_back(static_cast<std::uint32_t>(digit % kBase));
    carry = digit / kBase;
  }
  trim(product);
  return product;
}

void BigInteger::trim(Limbs& limbs) {
  while (!limbs.empty() && limbs.back() == 0) limbs.pop_back();
}

}  // namespace primus::jinja
