#include "lm/checkpoint/json_cursor.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "checkpoint_testing.h"

namespace primus {
namespace {

std::string refused(std::string_view text, const std::function<void(JsonCursor&)>& read) {
  return error_of([&] {
    JsonCursor json(text, "f");
    read(json);
    json.end();
  });
}

TEST(JsonCursor, ReadsValues) {
  JsonCursor json(
      R"( {"a":[1, 18446744073709551615,0] ,"b":"x\n\u00e4\ud83d\ude00ä", "c":{"d":[{},[],null,-1.5e+3,true,"\\"]}} )",
      "f");
  std::vector<std::uint64_t> numbers;
  std::string text;
  json.object([&](std::string_view key) {
    if (key == "a") {
      json.array([&] { numbers.push_back(json.unsigned_number()); });
    } else if (key == "b") {
      text = json.string();
    } else {
      json.skip();
    }
  });
  json.end();
  EXPECT_EQ(numbers, (std::vector<std::uint64_t>{1, 18446744073709551615U, 0}));
  EXPECT_EQ(text, "x\nä😀ä");
}

TEST(JsonCursor, RefusesNumbersThatAreNoSizes) {
  const auto number = [](JsonCursor& json) { json.unsigned_number(); };
  for (const char* text : {"-1", "1.0", "1e3", "01", "18446744073709551616", "\"1\"", "", "+1", "NaN"}) {
    EXPECT_NE(refused(text, number), "") << text;
  }
  EXPECT_NE(refused("9223372036854775808", [](JsonCursor& json) { json.size_number(); }), "");
}

TEST(JsonCursor, DepthIsLimited) {
  const auto skip = [](JsonCursor& json) { json.skip(); };
  EXPECT_EQ(refused(std::string(60, '[') + std::string(60, ']'), skip), "");
  EXPECT_NE(refused(std::string(100'000, '['), skip).find("nested too deeply"), std::string::npos);
}

TEST(JsonCursor, ErrorsNameFileAndByte) {
  EXPECT_EQ(refused("[1,}", [](JsonCursor& json) { json.skip(); }),
            "f: a value expected (byte 3 of its JSON)");
}

// nlohmann-json also refuses numbers that no double can hold; JSON itself has no such limit.
bool reference_accepts(const std::string& text) {
  try {
    return !nlohmann::json::parse(text).is_discarded();
  } catch (const nlohmann::json::out_of_range&) {
    return true;
  } catch (const nlohmann::json::parse_error&) {
    return false;
  }
}

// Accepts exactly what nlohmann-json accepts, on mutations of a text with a bit of everything.
TEST(JsonCursor, AgreesWithAnotherParser) {
  const std::string seed =
      R"({"a":[1,-2.5e-7,0],"b":"x\n\u00e4\ud83d\ude00 ä é 😀","c":{"d":[{},[],null,true,false]}})";
  const std::string alphabet = "{}[]\",:\\u0123456789abcdefDntr-+.eE \n\t\x01\x80\xc3\xa4\xed\xf0\x9f";
  TestRandom random(7);
  int accepted = 0;
  for (int round = 0; round < 30000; ++round) {
    std::string text = seed;
    for (std::uint64_t edits = random.below(3); edits-- > 0;) {
      const auto at = random.below(text.size());
      switch (random.below(3)) {
        case 0:
          text[at] = alphabet[random.below(alphabet.size())];
          break;
        case 1:
          text.erase(at, 1 + random.below(3));
          break;
        default:
          text.insert(at, 1, alphabet[random.below(alphabet.size())]);
      }
    }
    const bool reference = reference_accepts(text);
    accepted += reference ? 1 : 0;
    ASSERT_EQ(refused(text, [](JsonCursor& json) { json.skip(); }).empty(), reference) << text;
  }
  EXPECT_GT(accepted, 3000);
  EXPECT_LT(accepted, 27000);
}

TEST(Excerpt, IsCutBetweenCharactersAndKeepsTheMessageWhole) {
  using std::string_literals::operator""s;
  EXPECT_EQ(excerpt("caf\xc3\xa9"), "caf\xc3\xa9");
  EXPECT_EQ(excerpt("a\0b"s), "a\\x00b");
  EXPECT_EQ(excerpt(std::string(120, 'x')), std::string(120, 'x'));
  EXPECT_EQ(excerpt(std::string(121, 'x')), std::string(120, 'x') + "...");
  EXPECT_EQ(excerpt(std::string(119, 'x') + "\xc3\xa9"), std::string(119, 'x') + "...");
  EXPECT_EQ(excerpt(std::string(200, '\x80')), "...");  // no character's begin
}

}  // namespace
}  // namespace primus
