// Checked integer arithmetic for sizes from files or users: throws Error(kInvalid) instead of wrapping
// around.
#pragma once

#include <concepts>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace primus {

[[noreturn]] inline void throw_overflow(std::string_view what) {
  throw invalid("number out of range: " + std::string(what),
                "the input is corrupt, or far larger than it can be");
}

// Returns a * b; `what` names the quantity in the error.
template <std::integral T>
T checked_mul(T a, T b, std::string_view what) {
  T result;
  if (__builtin_mul_overflow(a, b, &result)) throw_overflow(what);
  return result;
}

// Returns a + b; `what` names the quantity in the error.
template <std::integral T>
T checked_add(T a, T b, std::string_view what) {
  T result;
  if (__builtin_add_overflow(a, b, &result)) throw_overflow(what);
  return result;
}

// Returns `value` as a To, or throws if it does not fit.
template <std::integral To, std::integral From>
To checked_cast(From value, std::string_view what) {
  if (!std::in_range<To>(value)) throw_overflow(what);
  return static_cast<To>(value);
}

}  // namespace primus
