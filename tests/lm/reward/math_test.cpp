// Tests the comparison of mathematical answers.
#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "lm/reward/math_expression.h"
#include "reward_testing.h"

namespace primus {
namespace {

TEST(EqualMath, EqualAnswersInDifferentForms) {
  const std::pair<const char*, const char*> kEqual[] = {
      {"\\frac{1}{2}", "0.5"},
      {"\\dfrac12", "1/2"},
      {"\\frac{\\sqrt{3}}{2}", "\\sqrt{3}/2"},
      {"\\sqrt[3]{8}", "2"},
      {"\\sqrt[3]{-8}", "-2"},
      {"2\\sqrt{2}", "\\sqrt8"},
      {"2^{10}", "1024"},
      {"2^10", "1024"},
      {"(x+1)^2", "x^2+2x+1"},
      {"\\sin^2 x+\\cos^2 x", "1"},
      {"2\\pi r", "2 * pi * r"},
      {"e^{i\\pi}", "-1"},
      {"5!", "120"},
      {"\\log_2 8", "3"},
      {"|{-3}|", "3"},
      {"1,000", "1000"},
      {"1{,}000", "1000"},
      {"50\\%", "0.5"},
      {"50\\%", "50"},
      {"90^\\circ", "90"},
      {"5\\text{ cm}", "5"},
      {"12\\text{ m}^2", "12"},
      {"x = 5", "5"},
      {"x=5", "x = 5.0"},
      {"(1, 2)", "\\left( 1, \\frac{4}{2} \\right)"},
      {"\\{1,2,3\\}", "\\{3, 2, 1\\}"},
      {"1, 2", "2,1"},
      {"[0, 1)", "[0,1)"},
      {"(-\\infty, 2) \\cup (3, \\infty)", "(3,\\infty)\\cup(-\\infty,2)"},
      {"x \\in [0,1]", "[0,1]"},
      {"1\\pm\\sqrt2", "1\\pm\\sqrt{2}"},
      {"y = 2x + 1", "2x - y + 1 = 0"},
      {"x > 3", "3 < x"},
      {"x \\ge 3", "3 \\leq x"},
      {"\\text{Monday}", "Monday"},
      {"\\text{(B)}", "(B)"},
      {"10^{-3}", "0.001"},
      {"-\\frac{1}{2}", "\\frac{-1}{2}"},
      {"$42$.", "42"},
      {"3\\cdot10^8", "300000000"},
      {"a_1+a_2", "a_2+a_1"},
      {"\\frac{x^2-1}{x-1}", "x+1"},
  };
  for (const auto& [a, b] : kEqual) {
    EXPECT_TRUE(equal_math(a, b)) << a << " and " << b;
    EXPECT_TRUE(equal_math(b, a)) << b << " and " << a;
  }
}

TEST(EqualMath, DifferentAnswers) {
  const std::pair<const char*, const char*> kDifferent[] = {
      {"\\frac{1}{2}", "0.51"},
      {"0.333", "\\frac13"},
      {"(1,2)", "(2,1)"},
      {"(0,1)", "[0,1]"},
      {"\\{1,2\\}", "\\{1,2,2\\}"},
      {"\\{1\\}", "\\{2\\}"},
      {"x", "y"},
      {"x", "|x|"},
      {"\\sqrt{x^2}", "x"},
      {"x > 3", "x < 3"},
      {"x > 3", "x \\ge 3"},
      {"1\\pm\\sqrt2", "1+\\sqrt2"},
      {"y = 2x", "y = 3x"},
      {"x = 5", "y = 5"},
      {"Monday", "Tuesday"},
      {"", "5"},
      {"", ""},
      {"1/0", "2/0"},
      {"9^{9^{9^9}}", "8^{9^{9^9}}"},
      {"5", "5 or 6"},
      {"1,2", "12"},
  };
  for (const auto& [a, b] : kDifferent) {
    EXPECT_FALSE(equal_math(a, b)) << a << " and " << b;
    EXPECT_FALSE(equal_math(b, a)) << b << " and " << a;
  }
}

TEST(EqualMath, HostileTextsTakeBoundedTime) {
  const auto start = std::chrono::steady_clock::now();
  for (const std::string part : {"(", "{", "\\frac{", "-", "2^", "x!", "|", "[", "\\{", "\\sqrt", "1,", "x+",
                                 "\\pm1", "\\", "\\text{", "9^9", "sin", "\\left("}) {
    std::string text;
    while (text.size() < 4000) text += part;
    equal_math(text, "1");
    equal_math(text + "1", text + "2");
    while (text.size() < (1U << 20)) text += text;
    equal_math(text, "1");
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
}

TEST(MathReward, ReadsTheMarkedAnswer) {
  const nlohmann::json record = {{"answer", "\\frac{3}{4}"}};
  EXPECT_EQ(value_of(score_one("math:answer", "So we get $x$. \\boxed{0.75}", record)), 1);
  EXPECT_EQ(value_of(score_one("math:answer", "The value is $\\frac{6}{8}$.", record)), 1);
  EXPECT_EQ(value_of(score_one("math:answer", "Steps\n3/4", record)), 1);
  EXPECT_EQ(value_of(score_one("math:answer", "\\boxed{4/3}", record)), 0);
  EXPECT_EQ(value_of(score_one("math:answer", "", record)), 0);
}

}  // namespace
}  // namespace primus
