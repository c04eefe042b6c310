// Tests the calls of tools that are found in generated texts.
#include "lm/reward/tool_calls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace primus {
namespace {

using testing::HasSubstr;
using testing::SizeIs;

nlohmann::json function_of(const ToolCalls& found, std::size_t i) { return found.calls.at(i).at("function"); }

TEST(ToolCalls, OfHermesAreBetweenMarks) {
  const ToolCalls found = find_tool_calls(
      "I add.\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1, \"b\": [2]}}\n</tool_call>\n"
      "<tool_call>{\"name\": \"now\"}</tool_call><tool_call>{\"arguments\": \"{\\\"x\\\": 3}\", \"name\": "
      "\"text\"}</tool_call>",
      7, false);
  ASSERT_THAT(found.calls, SizeIs(3));
  EXPECT_TRUE(found.invalid.empty());
  EXPECT_EQ(function_of(found, 0),
            nlohmann::json::parse(R"({"name": "add", "arguments": {"a": 1, "b": [2]}})"));
  EXPECT_EQ(function_of(found, 1), nlohmann::json::parse(R"({"name": "now", "arguments": {}})"));
  EXPECT_EQ(function_of(found, 2), nlohmann::json::parse(R"({"name": "text", "arguments": {"x": 3}})"));
  EXPECT_EQ(found.calls[0].at("id"), "call00007");
  EXPECT_EQ(found.calls[2].at("id"), "call00009");
  EXPECT_EQ(found.calls[0].at("type"), "function");
}

TEST(ToolCalls, OfLlamaAreTheWholeText) {
  const std::string call = R"({"name": "add", "parameters": {"a": 1}})";
  ASSERT_THAT(find_tool_calls(call, 0, true).calls, SizeIs(1));
  EXPECT_EQ(function_of(find_tool_calls(" " + call + "\n", 0, true), 0),
            nlohmann::json::parse(R"({"name": "add", "arguments": {"a": 1}})"));
  EXPECT_THAT(find_tool_calls("<|python_tag|>" + call, 0, false).calls, SizeIs(1));
  // A text that is JSON is an answer if there are no tools.
  EXPECT_THAT(find_tool_calls(call, 0, false).calls, SizeIs(0));
  const ToolCalls answer = find_tool_calls("{\"sum\": 3}", 0, true);
  EXPECT_TRUE(answer.calls.empty());
  EXPECT_TRUE(answer.invalid.empty());
}

TEST(ToolCalls, ThatCannotBeReadAreInvalid) {
  const auto problem = [](const std::string& text) {
    const ToolCalls found = find_tool_calls(text, 0, true);
    EXPECT_THAT(found.calls, SizeIs(0)) << text;
    return found.invalid.empty() ? "" : found.invalid.front().problem;
  };
  EXPECT_THAT(problem("<tool_call>{\"name\": </tool_call>"), HasSubstr("no JSON"));
  EXPECT_THAT(problem("<tool_call>{\"name\": \"a\"}"), HasSubstr("</tool_call> is missing"));
  EXPECT_THAT(problem("<tool_call>[1]</tool_call>"), HasSubstr("no name"));
  EXPECT_THAT(problem("<tool_call>{\"name\": 1}</tool_call>"), HasSubstr("no name"));
  EXPECT_THAT(problem("<tool_call>{\"name\": \"a\", \"arguments\": 3}</tool_call>"),
              HasSubstr("no JSON object"));
  EXPECT_THAT(problem("<tool_call>{\"name\": \"a\", \"arguments\": \"{\"}</tool_call>"),
              HasSubstr("no JSON object"));
  EXPECT_THAT(problem("{\"name\": \"a\", \"parameters\": {"), HasSubstr("no JSON"));
  EXPECT_THAT(problem("<tool_call></tool_call>"), HasSubstr("no JSON"));
}

TEST(ToolCalls, AreBoundedInHostileTexts) {
  std::string many;
  for (int i = 0; i < 1000; ++i) many += "<tool_call>{\"name\": \"a\"}</tool_call>";
  const ToolCalls found = find_tool_calls(many, 0, true);
  EXPECT_THAT(found.calls, SizeIs(ToolCalls::kMaxCalls));
  EXPECT_THAT(found.invalid, SizeIs(ToolCalls::kMaxCalls));
  // Deep nesting would exhaust the stack of a recursive parser.
  EXPECT_THAT(find_tool_calls("<tool_call>" + std::string(1 << 20, '[') + "</tool_call>", 0, true).invalid,
              SizeIs(1));
}

}  // namespace
}  // namespace primus
