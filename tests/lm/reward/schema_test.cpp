// Tests rewards for answers in JSON.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/files/scratch_folder.h"
#include "lm/reward/json_schema.h"
#include "reward_testing.h"

namespace primus {
namespace {

using nlohmann::json;
using testing::HasSubstr;

TEST(JsonSchema, Keywords) {
  struct SchemaCase {
    const char *schema, *valid, *invalid;
  };
  const SchemaCase cases[] = {
      {R"({"type":"integer"})", "1.0", "1.5"},
      {R"({"type":["string","null"]})", "null", "1"},
      {R"({"enum":[1,"a"]})", "\"a\"", "\"b\""},
      {R"({"const":{"a":1}})", R"({"a":1})", R"({"a":2})"},
      {R"({"required":["a"]})", R"({"a":1})", "{}"},
      {R"({"properties":{"a":{"type":"string"}}})", R"({"a":"x","b":1})", R"({"a":1})"},
      {R"({"properties":{"a":{}},"additionalProperties":false})", R"({"a":1})", R"({"b":1})"},
      {R"({"patternProperties":{"^x":{"type":"number"}},"additionalProperties":false})", R"({"xa":1})",
       R"({"xa":"1"})"},
      {R"({"propertyNames":{"maxLength":2}})", R"({"ab":1})", R"({"abc":1})"},
      {R"({"minProperties":1})", R"({"a":1})", "{}"},
      {R"({"maxProperties":0})", "{}", R"({"a":1})"},
      {R"({"dependentRequired":{"a":["b"]}})", R"({"a":1,"b":2})", R"({"a":1})"},
      {R"({"items":{"type":"number"}})", "[1,2]", "[1,\"2\"]"},
      {R"({"prefixItems":[{"type":"string"}],"items":{"type":"number"}})", "[\"a\",1]", "[\"a\",\"b\"]"},
      {R"({"contains":{"const":3}})", "[1,3]", "[1]"},
      {R"({"minItems":2})", "[1,2]", "[1]"},
      {R"({"maxItems":1})", "[1]", "[1,2]"},
      {R"({"uniqueItems":true})", "[1,2]", "[1,1]"},
      {R"({"minLength":2})", "\"\u00e9\u00e9\"", "\"\u00e9\""},
      {R"({"maxLength":1})", "\"\u00e9\"", "\"ab\""},
      {R"({"pattern":"^a+$"})", "\"aa\"", "\"b\\naa\""},
      {R"({"minimum":1})", "1", "0.5"},
      {R"({"maximum":1})", "1", "1.5"},
      {R"({"exclusiveMinimum":1})", "2", "1"},
      {R"({"exclusiveMaximum":1})", "0", "1"},
      {R"({"multipleOf":0.1})", "0.3", "0.35"},
      {R"({"allOf":[{"minimum":1},{"maximum":2}]})", "1", "3"},
      {R"({"anyOf":[{"type":"string"},{"minimum":2}]})", "2", "1"},
      {R"({"oneOf":[{"minimum":1},{"minimum":2}]})", "1", "2"},
      {R"({"not":{"type":"string"}})", "1", "\"a\""},
      {R"({"if":{"type":"string"},"then":{"minLength":2},"else":{"minimum":2}})", "\"ab\"", "1"},
      {R"({"$defs":{"n":{"type":"number"}},"items":{"$ref":"#/$defs/n"}})", "[1]", "[\"a\"]"},
      {R"({"type":"object","properties":{"next":{"$ref":"#"}}})", R"({"next":{"next":{}}})",
       R"({"next":{"next":1}})"},
      {"{\"title\":\"t\",\"format\":\"date\",\"type\":\"string\"}", "\"x\"", "1"},
  };
  for (const SchemaCase& c : cases) {
    const JsonSchema schema(json::parse(c.schema));
    EXPECT_EQ(schema.validate(json::parse(c.valid)), SchemaResult::kValid) << c.schema;
    EXPECT_EQ(schema.validate(json::parse(c.invalid)), SchemaResult::kInvalid) << c.schema;
  }
}

TEST(JsonSchema, InvalidSchemasAreErrors) {
  for (const char* text : {R"({"typ":"string"})", R"({"type":"text"})", R"({"unevaluatedProperties":false})",
                           R"({"$ref":"#/$defs/x"})", R"({"$ref":"http://x"})", R"({"pattern":"("})", "[]",
                           "3", R"({"minLength":-1})", R"({"required":"a"})", R"({"allOf":[]})",
                           R"({"multipleOf":0})", R"({"properties":{"a":3}})"}) {
    EXPECT_THROW(JsonSchema(json::parse(text)), Error) << text;
  }
}

TEST(JsonSchema, EndlessReferencesAndLargeValuesStop) {
  EXPECT_EQ(JsonSchema(json::parse(R"({"$ref":"#"})")).validate(1), SchemaResult::kLimit);
  const JsonSchema twice(json::parse(R"({"allOf":[{"$ref":"#"},{"$ref":"#"}]})"));
  EXPECT_EQ(twice.validate(1), SchemaResult::kLimit);
  json list = json::array();
  for (int i = 0; i < 100'000; ++i) list.push_back(i);
  EXPECT_EQ(JsonSchema(json::parse(R"({"uniqueItems":true})")).validate(list), SchemaResult::kLimit);
}

TEST(SchemaReward, ReadsAColumnOrAFile) {
  const json record = {
      {"schema", {{"required", {"a"}}}}, {"text", R"({"type":"number"})"}, {"bad", {{"typ", 1}}}};
  EXPECT_EQ(value_of(score_one("schema:schema", R"({"a":1})", record)), 1);
  EXPECT_EQ(value_of(score_one("schema:schema", "Here:\n```json\n{\"a\":1}\n```\n", record)), 1);
  EXPECT_EQ(value_of(score_one("schema:schema", "{}", record)), 0);
  EXPECT_EQ(value_of(score_one("schema:schema", "{\"a\":", record)), 0);
  EXPECT_EQ(value_of(score_one("schema:schema", std::string(100'000, '['), record)), 0);
  EXPECT_EQ(value_of(score_one("schema:text", "5", record)), 1);
  EXPECT_THAT(score_one("schema:bad", "{}", record).problem, HasSubstr("'typ' is not supported"));

  const ScratchFolder folder("schema-reward");
  write_file(folder.path() / "s.json", R"({"type":"array"})");
  RewardSettings settings;
  settings.folder = folder.path().string();
  EXPECT_EQ(value_of(score_one("schema:s.json", "[]", nullptr, settings)), 1);
  EXPECT_EQ(value_of(score_one("schema:s.json", "{}", nullptr, settings)), 0);
  EXPECT_THROW(score_one("schema:none.json", "{}", nullptr, settings), Error);
}

TEST(SchemaReward, AnErrorNamesAMissingFileWithoutDots) {
  try {
    score_one("schema:./none.json", "{}", nullptr);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("'none.json'"));
  }
}

}  // namespace
}  // namespace primus
