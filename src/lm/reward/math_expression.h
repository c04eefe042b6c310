// Compares mathematical answers in LaTeX or plain text by their values.
//
// The parser reads numbers, fractions, roots, powers, factorials, absolute values, pi, e, i, usual functions,
// variables of one letter, percentages, degrees, tuples, sets, lists, intervals, unions, equations and
// inequalities. Expressions are evaluated with complex numbers at several values of their variables.
#pragma once

#include <string_view>

namespace primus {

// Returns whether the answers are equal: by value within 1e-9 (relative), with sets and lists in any order,
// or as texts after removal of white space and LaTeX's spacing. Texts over 4 KiB are compared only as texts.
// Time and memory are bounded. Pure function.
bool equal_math(std::string_view a, std::string_view b);

}  // namespace primus
