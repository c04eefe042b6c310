// Reads numbers from texts of people and language models. Pure functions; time is linear in the text.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace primus {

// A number in a text: "-1,234.5", "1e3", "1/2", "\frac{1}{2}", "$5", "50%".
struct NumberInText {
  double value = 0;      // the number as written: 50 for "50%"
  bool percent = false;  // whether a percent sign follows the number
  // The digits of an integer without leading zeros, with '-' if it is negative; empty for other numbers.
  // Integers of more than 15 digits are compared by these digits.
  std::string integer = {};
};

// Returns the last number in `text`. A '-' is a sign unless it follows a letter, a digit or a closing
// bracket. Commas separate thousands only if groups of three digits follow. Numbers beyond the range of
// double, and fractions with the denominator 0, are not counted as numbers.
std::optional<NumberInText> last_number(std::string_view text);

// Returns the number of an answer: the last number in marked_answer(text), or in the entire text if no answer
// is marked.
std::optional<NumberInText> answer_number(std::string_view text);

// Returns whether the numbers are equal within 1e-9, relative. If only one of them is a percentage, "50%"
// equals both 50 and 0.5.
bool equal_numbers(const NumberInText& a, const NumberInText& b);

}  // namespace primus
