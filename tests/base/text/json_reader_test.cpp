// Tests of the streaming JSON reader.
#include "base/text/json_reader.h"

#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"

namespace primus {
namespace {

// Returns the error of reading all of `text`, or "" if it is accepted.
std::string refused(std::string_view text, const std::function<void(JsonReader&)>& read,
                    JsonReaderOptions options = {}) {
  try {
    JsonReader json(text, "f", options);
    read(json);
    json.finish();
  } catch (const Error& error) {
    return error.render();
  }
  return {};
}

void skip(JsonReader& json) { json.skip(); }

TEST(JsonReader, ReadsValues) {
  JsonReader json(
      R"( {"a":[1, 18446744073709551615,0] ,"b":"x\n\u00e4\ud83d\ude00ä", "c":{"d":[{},[],null,-1.5e+3,true,"\\"]}} )",
      "f");
  std::vector<std::uint64_t> numbers;
  std::string text;
  json.object([&](std::string_view key) {
    if (key == "a") {
      json.array([&] { numbers.push_back(json.read_unsigned()); });
    } else if (key == "b") {
      text = json.read_string();
    } else {
      json.skip();
    }
  });
  json.finish();
  EXPECT_EQ(numbers, (std::vector<std::uint64_t>{1, 18446744073709551615U, 0}));
  EXPECT_EQ(text, "x\nä😀ä");
}

TEST(JsonReader, RefusesNumbersThatAreNotSizes) {
  const auto number = [](JsonReader& json) { json.read_unsigned(); };
  const auto size = [](JsonReader& json) { json.read_size(); };
  for (const char* text :
       {"-1", "-0", "1.0", "1e3", "01", "18446744073709551616", "\"1\"", "", "+1", "NaN", "-"}) {
    EXPECT_NE(refused(text, number), "") << text;
    EXPECT_NE(refused(text, size), "") << text;
  }
  EXPECT_EQ(refused("9223372036854775808", number), "");
  EXPECT_EQ(refused("9223372036854775807", size), "");
  EXPECT_EQ(refused("9223372036854775808", size),
            "f:1:1: error: broken JSON: a whole number from 0 to below 2^63 is expected here");
}

TEST(JsonReader, DepthIsLimited) {
  EXPECT_EQ(refused(std::string(128, '[') + std::string(128, ']'), skip), "");
  EXPECT_NE(refused(std::string(100'000, '['), skip).find("nested too deeply"), std::string::npos);
}

TEST(JsonReader, KeysAreLimited) {
  const auto with_key = [](std::size_t bytes) { return "{\n \"" + std::string(bytes, 'k') + "\": \"v\"}"; };
  const auto members = [](JsonReader& json) { json.object([&](std::string_view) { json.skip(); }); };
  for (const auto& read :
       {std::function<void(JsonReader&)>(skip), std::function<void(JsonReader&)>(members)}) {
    EXPECT_EQ(refused(with_key(JsonReader::kMaxKeyBytes - 1), read), "");
    EXPECT_EQ(refused(with_key(JsonReader::kMaxKeyBytes), read),
              "f:2:2: error: broken JSON: a key of more than a megabyte");
  }
  EXPECT_EQ(refused('"' + std::string(JsonReader::kMaxKeyBytes + 1, 'v') + '"', skip), "");
}

TEST(JsonReader, ErrorsNamePlaceAndNextStep) {
  EXPECT_EQ(refused("[1,\n }", skip, {.first_line = 7, .hint = "get it again"}),
            "f:8:2: error: broken JSON: a value is expected here\n  hint: get it again");
}

// Python's additions to JSON are accepted only with the option `python`.
TEST(JsonReader, PythonsExtensionsAreOptional) {
  for (const char* text : {"NaN", "[Infinity]", "[1, -Infinity]", R"("\ud800")", R"("\udc00 \ud800x")"}) {
    EXPECT_NE(refused(text, skip), "") << text;
    EXPECT_EQ(refused(text, skip, {.python = true}), "") << text;
  }
  // An unpaired surrogate cannot be read as a string.
  EXPECT_NE(refused(R"("\ud800")", [](JsonReader& json) { json.read_string(); }, {.python = true}), "");
}

// JSON permits numbers beyond the range of double, for which nlohmann-json throws out_of_range.
bool reference_accepts(const std::string& text) {
  try {
    return !nlohmann::json::parse(text).is_discarded();
  } catch (const nlohmann::json::out_of_range&) {
    return true;
  } catch (const nlohmann::json::parse_error&) {
    return false;
  }
}

// Mutates a text with all kinds of values. JsonReader must accept exactly the texts that nlohmann-json
// accepts.
TEST(JsonReader, AgreesWithAnotherParser) {
  const std::string seed =
      R"({"a":[1,-2.5e-7,0],"b":"x\n\u00e4\ud83d\ude00 ä é 😀","c":{"d":[{},[],null,true,false]}})";
  const std::string alphabet = "{}[]\",:\\u0123456789abcdefDntr-+.eE \n\t\x01\x80\xc3\xa4\xed\xf0\x9f";
  std::mt19937_64 generator(7);
  const auto below = [&](std::size_t limit) { return static_cast<std::size_t>(generator() % limit); };
  int accepted = 0;
  for (int round = 0; round < 30000; ++round) {
    std::string text = seed;
    for (std::size_t edits = below(3); edits-- > 0;) {
      const auto at = below(text.size());
      switch (below(3)) {
        case 0:
          text[at] = alphabet[below(alphabet.size())];
          break;
        case 1:
          text.erase(at, 1 + below(3));
          break;
        default:
          text.insert(at, 1, alphabet[below(alphabet.size())]);
      }
    }
    const bool reference = reference_accepts(text);
    accepted += reference ? 1 : 0;
    ASSERT_EQ(refused(text, skip).empty(), reference) << text;
  }
  EXPECT_GT(accepted, 3000);
  EXPECT_LT(accepted, 27000);
}

}  // namespace
}  // namespace primus
