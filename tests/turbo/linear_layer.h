// Reference products of a linear layer for the tests of linear and fp8_linear.
#pragma once

#include <cstdint>

#include "turbo/linear/linear.h"
#include "turbo/operator_test.h"

namespace primus::turbo::test {

struct Layer {
  std::int64_t tokens, in, out;
};

inline constexpr GemmRole kRoles[] = {GemmRole::kForward, GemmRole::kInputGradient,
                                      GemmRole::kWeightGradient};

// Returns the product of a role in double, computed by definition.
inline Values product(GemmRole role, const Layer& layer, const Values& a, const Values& b) {
  const auto [tokens, in, out] = layer;
  const auto sum = [](std::int64_t rows, std::int64_t cols, std::int64_t inner, auto term) {
    Values c;
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = 0; j < cols; ++j) {
        double total = 0;
        for (std::int64_t p = 0; p < inner; ++p) total += term(i, j, p);
        c.push_back(total);
      }
    }
    return c;
  };
  const auto at = [](const Values& x, std::int64_t cols, std::int64_t i, std::int64_t j) {
    return x[static_cast<std::size_t>(i * cols + j)];
  };
  switch (role) {
    case GemmRole::kForward:
      return sum(tokens, out, in, [&](auto t, auto o, auto i) { return at(a, in, t, i) * at(b, in, o, i); });
    case GemmRole::kInputGradient:
      return sum(tokens, in, out, [&](auto t, auto i, auto o) { return at(a, out, t, o) * at(b, in, o, i); });
    case GemmRole::kWeightGradient:
      return sum(out, in, tokens, [&](auto o, auto i, auto t) { return at(a, out, t, o) * at(b, in, t, i); });
  }
  return {};
}

struct Shapes {
  Shape a, b, c;
};

inline Shapes shapes(GemmRole role, const Layer& l) {
  switch (role) {
    case GemmRole::kForward:
      return {{l.tokens, l.in}, {l.out, l.in}, {l.tokens, l.out}};
    case GemmRole::kInputGradient:
      return {{l.tokens, l.out}, {l.out, l.in}, {l.tokens, l.in}};
    case GemmRole::kWeightGradient:
      return {{l.tokens, l.out}, {l.tokens, l.in}, {l.out, l.in}};
  }
  return {};
}

}  // namespace primus::turbo::test
