#include "lm/reward/math_expression.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <limits>
#include <numbers>
#include <string>

#include "lm/reward/math_tree.h"

namespace primus {
namespace {

using Value = std::complex<double>;

constexpr double kNoNumber = std::numeric_limits<double>::quiet_NaN();
constexpr int kPoints = 8;

// Returns the value of a variable at point `index`, which depends only on the variable's name and the point.
// Its absolute value is 0.25 to 3. It may be negative, so that sqrt(x^2) and x differ.
Value value_of_variable(const std::string& name, int index) {
  if (name == "\\pi") return std::numbers::pi;
  if (name == "e") return std::numbers::e;
  if (name == "i") return {0, 1};
  std::uint64_t hash = 1469598103934665603ULL + static_cast<std::uint64_t>(index) * 0x9E3779B97F4A7C15ULL;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
  hash ^= hash >> 29;
  hash *= 0xBF58476D1CE4E5B9ULL;
  hash ^= hash >> 32;
  const double unit = static_cast<double>(hash >> 11) / 9007199254740992.0;
  const double size = 0.25 + 2.75 * unit;
  return (hash & 1) != 0 ? size : -size;
}

Value function_value(const std::string& name, Value x) {
  if (name == "abs") return std::abs(x);
  if (name == "sin") return std::sin(x);
  if (name == "cos") return std::cos(x);
  if (name == "tan") return std::tan(x);
  if (name == "cot") return 1.0 / std::tan(x);
  if (name == "sec") return 1.0 / std::cos(x);
  if (name == "csc") return 1.0 / std::sin(x);
  if (name == "arcsin") return std::asin(x);
  if (name == "arccos") return std::acos(x);
  if (name == "arctan") return std::atan(x);
  if (name == "sinh") return std::sinh(x);
  if (name == "cosh") return std::cosh(x);
  if (name == "tanh") return std::tanh(x);
  if (name == "exp") return std::exp(x);
  return std::log(x);
}

Value power_of(Value base, Value exponent) {
  if (base == Value(0))
    return exponent.real() > 0 ? Value(0) : exponent == Value(0) ? Value(1) : Value(kNoNumber);
  // Uses real powers where possible, because they are exact for integers.
  const bool integer = exponent.imag() == 0 && exponent.real() == std::round(exponent.real());
  if (base.imag() == 0 && exponent.imag() == 0 && (integer || base.real() > 0)) {
    return std::pow(base.real(), exponent.real());
  }
  return std::pow(base, exponent);
}

Value root_of(Value x, Value degree) {
  if (degree == Value(2)) return std::sqrt(x);
  // An odd root of a negative real number is real, as in school.
  const double n = degree.real();
  if (x.imag() == 0 && x.real() < 0 && degree.imag() == 0 && std::fmod(n, 2) != 0 && n == std::round(n)) {
    return -std::pow(-x.real(), 1 / n);
  }
  return power_of(x, 1.0 / degree);
}

bool is_finite(Value x) { return std::isfinite(x.real()) && std::isfinite(x.imag()); }

bool close(Value a, Value b) {
  constexpr double kTolerance = 1e-9;
  // Differences up to kZero count as 0, because rounding leaves about 1e-16 instead of 0.
  constexpr double kZero = 1e-13;
  const double difference = std::abs(a - b);
  return difference <= kTolerance * std::max(std::abs(a), std::abs(b)) || difference <= kZero;
}

bool equal_nodes(const MathNode& a, const MathNode& b, int& budget);

bool is_value(const MathNode& node) {
  return node.kind != MathKind::kTuple && node.kind != MathKind::kSet && node.kind != MathKind::kUnion &&
         node.kind != MathKind::kRelation;
}

bool equal_values_at_signs(const MathNode& a, const MathNode& b, bool percent_as_part, int sign_a,
                           int sign_b) {
  int compared = 0;
  for (int index = 0; index < kPoints; ++index) {
    const Value x = evaluate_math(a, {index, percent_as_part, sign_a});
    const Value y = evaluate_math(b, {index, percent_as_part, sign_b});
    if (!is_finite(x) && !is_finite(y)) continue;
    if (!is_finite(x) || !is_finite(y) || !close(x, y)) return false;
    ++compared;
  }
  return compared > kPoints / 2;
}

bool equal_values(const MathNode& a, const MathNode& b) {
  const bool signs_a = has_math_kind(a, MathKind::kPlusMinus),
             signs_b = has_math_kind(b, MathKind::kPlusMinus);
  if (signs_a != signs_b) return false;
  const bool percents = has_math_kind(a, MathKind::kPercent) || has_math_kind(b, MathKind::kPercent);
  for (const bool part : {true, false}) {
    if (!part && !percents) break;
    if (!signs_a) {
      if (equal_values_at_signs(a, b, part, 1, 1)) return true;
      continue;
    }
    const auto same = [&](int sign_a, int sign_b) {
      return equal_values_at_signs(a, b, part, sign_a, sign_b);
    };
    if ((same(1, 1) && same(-1, -1)) || (same(1, -1) && same(-1, 1))) return true;
  }
  return false;
}

// Matches each element of `a` with an equal element of `b` that is not matched yet. Takes the first equal
// element, because equality is nearly transitive.
bool equal_sets(const MathNode& a, const MathNode& b, int& budget) {
  if (a.children.size() != b.children.size()) return false;
  std::vector<bool> taken(b.children.size(), false);
  for (const auto& element : a.children) {
    bool found = false;
    for (std::size_t i = 0; i < b.children.size() && !found; ++i) {
      if (taken[i] || !equal_nodes(*element, *b.children[i], budget)) continue;
      taken[i] = found = true;
    }
    if (!found) return false;
  }
  return true;
}

bool equal_in_order(const MathNode& a, const MathNode& b, int& budget) {
  if (a.children.size() != b.children.size() || a.name != b.name) return false;
  for (std::size_t i = 0; i < a.children.size(); ++i) {
    if (!equal_nodes(*a.children[i], *b.children[i], budget)) return false;
  }
  return true;
}

// Returns whether left - right of one equation is a constant multiple of left - right of the other equation.
bool equal_equations(const MathNode& a, const MathNode& b) {
  for (const MathNode* const node : {&a, &b}) {
    if (!is_value(*node->children[0]) || !is_value(*node->children[1])) return false;
  }
  std::optional<Value> ratio;
  for (int index = 0; index < kPoints; ++index) {
    const MathPoint point{.index = index};
    const Value x = evaluate_math(*a.children[0], point) - evaluate_math(*a.children[1], point);
    const Value y = evaluate_math(*b.children[0], point) - evaluate_math(*b.children[1], point);
    if (!is_finite(x) || !is_finite(y)) return false;
    if (y == Value(0) || x == Value(0)) return false;
    if (!ratio) ratio = x / y;
    if (!close(x / y, *ratio)) return false;
  }
  return true;
}

bool equal_nodes(const MathNode& a, const MathNode& b, int& budget) {
  if (--budget < 0) return false;
  if (is_value(a) && is_value(b)) return equal_values(a, b);
  if (a.kind != b.kind) return false;
  switch (a.kind) {
    case MathKind::kSet:
    case MathKind::kUnion:
      return equal_sets(a, b, budget);
    case MathKind::kTuple:
      return equal_in_order(a, b, budget);
    case MathKind::kRelation:
      return equal_in_order(a, b, budget) || (a.name == "=" && b.name == "=" && equal_equations(a, b));
    default:
      return false;
  }
}

// Returns the right side of "x = 5" or "x \in ...", and other nodes unchanged.
const MathNode& without_name(const MathNode& node) {
  const bool named = node.kind == MathKind::kRelation && (node.name == "=" || node.name == "in") &&
                     node.children[0]->kind == MathKind::kVariable;
  return named ? *node.children[1] : node;
}

// Returns the text without white space and LaTeX's spacing.
std::string compact(std::string_view text) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == ' ' || c == '\n' || c == '\t' || c == '\r' || c == '$' || c == '~') continue;
    if (c == '\\') {
      bool skipped = false;
      for (const std::string_view word : {"\\,", "\\;", "\\!", "\\left", "\\right"}) {
        if (!text.substr(i).starts_with(word) || text.substr(i).starts_with("\\leftarrow") ||
            text.substr(i).starts_with("\\rightarrow")) {
          continue;
        }
        i += word.size() - 1;
        skipped = true;
        break;
      }
      if (skipped) continue;
      constexpr std::string_view kText = "\\text{";
      if (text.substr(i).starts_with(kText)) {
        const std::size_t close = text.find('}', i);
        // Stops here, because searching for a '}' again after each later \text{ would take quadratic time.
        if (close == std::string_view::npos) return result;
        for (const char inner : text.substr(i + kText.size(), close - i - kText.size())) {
          if (inner != ' ') result += inner;
        }
        i = close;
        continue;
      }
    }
    result += c;
  }
  while (result.ends_with('.')) result.pop_back();
  return result;
}

}  // namespace

Value evaluate_math(const MathNode& node, const MathPoint& point) {
  const auto child = [&](std::size_t i) { return evaluate_math(*node.children[i], point); };
  switch (node.kind) {
    case MathKind::kNumber:
      return node.value;
    case MathKind::kVariable:
      return value_of_variable(node.name, point.index);
    case MathKind::kAdd:
      return child(0) + child(1);
    case MathKind::kMultiply:
      return child(0) * child(1);
    case MathKind::kDivide: {
      const Value divisor = child(1);
      return divisor == Value(0) ? Value(kNoNumber) : child(0) / divisor;
    }
    case MathKind::kPower:
      return power_of(child(0), child(1));
    case MathKind::kNegate:
      return -child(0);
    case MathKind::kRoot:
      return root_of(child(0), child(1));
    case MathKind::kFunction:
      return function_value(node.name, child(0));
    case MathKind::kFactorial: {
      const Value x = child(0);
      return x.imag() == 0 ? Value(std::tgamma(x.real() + 1)) : Value(kNoNumber);
    }
    case MathKind::kPercent:
      return point.percent_as_part ? child(0) / 100.0 : child(0);
    case MathKind::kPlusMinus:
      return child(0) + static_cast<double>(point.sign) * child(1);
    case MathKind::kTuple:
    case MathKind::kSet:
    case MathKind::kUnion:
    case MathKind::kRelation:
      break;
  }
  return kNoNumber;
}

bool has_math_kind(const MathNode& node, MathKind kind) {
  return node.kind == kind || std::ranges::any_of(node.children, [kind](const auto& child) {
           return has_math_kind(*child, kind);
         });
}

bool equal_math(std::string_view a, std::string_view b) {
  constexpr std::size_t kMaxBytes = 4096;
  const std::string text_a = compact(a), text_b = compact(b);
  if (text_a == text_b) return !text_a.empty();
  if (a.size() > kMaxBytes || b.size() > kMaxBytes) return false;
  const auto ends_cut = [](std::string_view text) {
    return text.substr(0, text.find_last_not_of(" \t\r\n.$") + 1);
  };
  const auto left = parse_math(ends_cut(a)), right = parse_math(ends_cut(b));
  if (left == nullptr || right == nullptr) return false;
  constexpr int kMaxComparisons = 4096;
  int budget = kMaxComparisons;
  if (equal_nodes(*left, *right, budget)) return true;
  // Accepts "x = 5" if 5 is expected, because the question may ask for x.
  const MathNode &short_left = without_name(*left), &short_right = without_name(*right);
  const bool both_named = &short_left != left.get() && &short_right != right.get();
  return !both_named && equal_nodes(short_left, short_right, budget);
}

}  // namespace primus
