// The syntax tree of a mathematical answer, for equal_math().
#pragma once

#include <complex>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace primus {

enum class MathKind : std::uint8_t {
  kNumber,
  kVariable,  // `name`
  kAdd,
  kMultiply,
  kDivide,
  kPower,
  kNegate,
  kRoot,      // children: radicand, degree
  kFunction,  // `name`: sin, ln, abs ...
  kFactorial,
  kPercent,
  kPlusMinus,  // children: left, right
  kTuple,      // `name`: the brackets, "()" or "[)"
  kSet,        // also a list without brackets
  kUnion,
  kRelation,  // `name`: "=", "<", "<=", "!=", "in"; '>' is stored as '<' with swapped children
};

struct MathNode {
  MathKind kind = MathKind::kNumber;
  double value = 0;
  std::string name = {};
  std::vector<std::unique_ptr<MathNode>> children = {};
};

// Parses an answer. Returns null if the text is not an expression that the parser can read, has more than 512
// nodes, or is nested more than 48 times.
std::unique_ptr<MathNode> parse_math(std::string_view text);

// The values for one evaluation.
struct MathPoint {
  int index = 0;                // selects the values of the variables
  bool percent_as_part = true;  // true: 50% is 0.5; false: 50
  int sign = 1;                 // 1 or -1: the sign that replaces plus-minus
};
// Evaluates a node that is a number, or is made of numbers. Returns NaN for other nodes, such as sets.
std::complex<double> evaluate_math(const MathNode& node, const MathPoint& point);
// Returns whether the node or a node below it has this kind.
bool has_math_kind(const MathNode& node, MathKind kind);

}  // namespace primus
