// Tests of parsing a JSON text into an object.
#include "base/text/json_text.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"

namespace primus {
namespace {

std::string refusal(const std::string& text) {
  try {
    parse_json_object(text, "f");
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    return error.location() + ": " + error.what();
  }
  return "";
}

TEST(JsonText, ObjectsAreRead) {
  EXPECT_EQ(parse_json_object(R"({"a": [1, {"b": null}], "b": 2})", "f").dump(),
            R"({"a":[1,{"b":null}],"b":2})");
  EXPECT_EQ(parse_json_object("\xef\xbb\xbf{}", "f").dump(), "{}");
  EXPECT_EQ(refusal("[]"), "f: this is not a JSON object");
}

TEST(JsonText, ErrorsHaveALocation) {
  EXPECT_EQ(refusal("{\n\"a\": NaN}"), "f:2:6: broken JSON: while parsing value - invalid literal");
  EXPECT_EQ(refusal("{} x"),
            "f:1:4: broken JSON: while parsing value - invalid literal; expected end of input");
  EXPECT_EQ(refusal("{} 1"),
            "f:1:4: broken JSON: while parsing value - unexpected number literal; expected end of input");
  EXPECT_EQ(refusal(R"({"a": 1,})"),
            "f:1:9: broken JSON: while parsing object key - unexpected '}'; expected string literal");
  EXPECT_EQ(refusal("{\"a\": 1"),
            "f:1:8: broken JSON: while parsing object - unexpected end of input; expected '}'");
  EXPECT_EQ(
      refusal(""),
      "f:1:1: broken JSON: while parsing value - unexpected end of input; expected '[', '{', or a literal");
  EXPECT_EQ(refusal("{\"a\": \"\xff\"}"),
            "f:1:8: broken JSON: while parsing value - invalid string: ill-formed UTF-8 byte");
  EXPECT_EQ(refusal(R"({"a": 1e999})"), "f:1:12: broken JSON: number overflow parsing '1e999'");
}

TEST(JsonText, DuplicateKeysAreRefused) {
  EXPECT_EQ(refusal("{\"a\": 1,\n \"b\": {\"a\": 2}, \"a\": 3}"), "f:2:17: the key \"a\" is given twice");
  EXPECT_EQ(refusal(R"({"x": {"q\"": 1, "q\u0022": 2}})"), R"(f:1:18: the key "q\"" is given twice)");
}

TEST(JsonText, BracesMakeAnObject) {
  EXPECT_EQ(json_text({{"a", 1}, {"b", {2, 3}}}, -1), R"({"a":1,"b":[2,3]})");
}

TEST(JsonText, NestingIsLimited) {
  const auto nested = [](std::size_t depth) {
    return "{\"a\": " + std::string(depth, '[') + std::string(depth, ']') + "}";
  };
  EXPECT_EQ(refusal(nested(100)), "");
  EXPECT_NE(refusal(nested(1000000)).find("nested too deeply"), std::string::npos);
}

}  // namespace
}  // namespace primus
