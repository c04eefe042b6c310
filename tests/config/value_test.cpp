// Tests of parsed values: scalars, inline lists and maps, merging, and origins.
#include "config/value.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

namespace primus::config {
namespace {

using Kind = Value::Kind;

Value plain(std::string_view text) { return plain_scalar(text, {}); }

TEST(PlainScalar, FollowsYamlsCoreSchema) {
  for (const char* text : {"", "~", "null", "Null", "NULL"}) EXPECT_EQ(plain(text).kind, Kind::kNull) << text;
  for (const char* text : {"true", "True", "TRUE"}) EXPECT_TRUE(plain(text).boolean) << text;
  for (const char* text : {"false", "False", "FALSE"}) EXPECT_EQ(plain(text).kind, Kind::kBool) << text;
  for (const char* text :
       {"yes", "no",  "on",  "off",  "tRUE", "nULL", "a b", "1.2.3", "1e",  "e5",  ".", "-",
        "+",   "1-2", "007", "0x10", "1__0", "_1",   "1_",  "12abc", ".e5", "--1", "[1"}) {
    EXPECT_EQ(plain(text).kind, Kind::kString) << text;
  }
}

TEST(PlainScalar, ReadsIntegers) {
  for (const auto& [text, number] :
       {std::pair("0", 0L), std::pair("-0", 0L), std::pair("12", 12L), std::pair("-7", -7L),
        std::pair("+7", 7L), std::pair("1_000_000", 1000000L), std::pair("9223372036854775807", INT64_MAX),
        std::pair("-9223372036854775808", INT64_MIN)}) {
    const Value value = plain(text);
    ASSERT_EQ(value.kind, Kind::kInt) << text;
    EXPECT_EQ(value.integer, number) << text;
    EXPECT_EQ(value.text, text);
  }
}

TEST(PlainScalar, ReadsFloats) {
  for (const auto& [text, number] :
       {std::pair("1e-5", 1e-5), std::pair("1E5", 1e5), std::pair("2.0e-05", 2e-5), std::pair(".5", 0.5),
        std::pair("1.", 1.0), std::pair("-1.5", -1.5), std::pair("0.1", 0.1), std::pair("1_0.2_5", 10.25),
        std::pair("9223372036854775808", 9223372036854775808.0), std::pair("1e-400", 0.0)}) {
    const Value value = plain(text);
    ASSERT_EQ(value.kind, Kind::kFloat) << text;
    EXPECT_EQ(value.real, number) << text;
  }
  EXPECT_TRUE(std::isinf(plain("1e400").real));
  EXPECT_TRUE(std::isinf(plain(".inf").real));
  EXPECT_LT(plain("-.inf").real, 0);
  EXPECT_TRUE(std::isnan(plain(".nan").real));
}

TEST(ParseInline, ReadsListsMapsAndQuotes) {
  const Value list = parse_inline("[a, 2, 1e-3, 'x y', null]", {});
  ASSERT_TRUE(list.is_list());
  ASSERT_EQ(list.items.size(), 5u);
  EXPECT_EQ(list.items[0].text, "a");
  EXPECT_EQ(list.items[1].integer, 2);
  EXPECT_EQ(list.items[2].real, 1e-3);
  EXPECT_EQ(list.items[3].text, "x y");
  EXPECT_TRUE(list.items[4].is_null());
  EXPECT_EQ(parse_inline("{a: {b: 1}}", {}).find("a")->find("b")->integer, 1);
  EXPECT_EQ(parse_inline("\"12\"", {}).kind, Kind::kString);
  EXPECT_EQ(parse_inline("12", {}).kind, Kind::kInt);
  EXPECT_EQ(parse_inline("a: b", {}).text, "a: b");
  EXPECT_EQ(parse_inline("[&a x, *a]", {}).items[1].text, "x");
  EXPECT_TRUE(parse_inline("None", {}).is_null());
  // As in Python, parentheses are a list only with a comma.
  EXPECT_EQ(parse_inline("(1, 'a b')", {}).items[1].text, "a b");
  EXPECT_EQ(parse_inline("(1,)", {}).items.size(), 1u);
  EXPECT_EQ(parse_inline("(1)", {}).text, "(1)");
  EXPECT_EQ(parse_inline("([0]*3+[1]*58)", {}).text, "([0]*3+[1]*58)");
  // Text that only begins like a list or a map stays text.
  for (const char* text : {"[a", "[0,", "{not: closed", "[*a]", "]["}) {
    EXPECT_EQ(parse_inline(text, {}).kind, Kind::kString) << text;
    EXPECT_EQ(parse_inline(text, {}).text, text);
  }
}

TEST(Merge, MergesMapsAndReplacesOtherValues) {
  Value base = parse_inline("{a: {x: 1, y: 2}, b: [1, 2], c: 3}", {});
  merge(base, parse_inline("{a: {y: 5, z: 6}, b: [9], d: null}", {}));
  EXPECT_EQ(base.find("a")->find("x")->integer, 1);
  EXPECT_EQ(base.find("a")->find("y")->integer, 5);
  EXPECT_EQ(base.find("a")->find("z")->integer, 6);
  EXPECT_EQ(base.find("b")->items.size(), 1u);
  EXPECT_EQ(base.find("c")->integer, 3);
  EXPECT_TRUE(base.find("d")->is_null());
  merge(base, parse_inline("{a: 7}", {}));
  EXPECT_EQ(base.find("a")->integer, 7);
}

Origin in_file(std::string text, int line, int column) {
  auto source = std::make_shared<Source>();
  source->name = "f.yaml";
  source->text = std::move(text);
  return {std::move(source), line, column, {}};
}

TEST(Origin, CountsColumnsInCharacters) {
  const Origin origin = in_file("a: 1\n\"\xC3\xBC\": x\n", 2, 7);  // byte 7 is character 6
  EXPECT_EQ(origin.describe(), "f.yaml:2:6");
  EXPECT_EQ(origin.snippet(), " 2 | \"\xC3\xBC\": x\n   |      ^");
}

TEST(Origin, ShowsTheEndOfALineAndTabs) {
  EXPECT_EQ(in_file("ab\tc\r\n", 1, 6).snippet(3), " 1 | ab c\n   |     ^");
  EXPECT_EQ(in_file("abc", 1, 2).snippet(100), " 1 | abc\n   |  ^^");
}

TEST(Origin, CutsLongLines) {
  const std::string snippet =
      in_file(std::string(1000, 'a') + "X" + std::string(1000, 'b'), 1, 1001).snippet();
  const size_t newline = snippet.find('\n');
  EXPECT_LT(snippet.size(), 300u);
  EXPECT_EQ(snippet[snippet.find('^') - newline - 1], 'X');
}

TEST(Origin, NamesTheVariable) {
  Origin origin = in_file("a: ${X}\n", 1, 4);
  origin.variable = "X";
  EXPECT_EQ(origin.describe(), "f.yaml:1:4 (environment X)");
  EXPECT_EQ(Origin{}.describe(), "default");
  EXPECT_EQ(Origin{}.snippet(), "");
}

}  // namespace
}  // namespace primus::config
