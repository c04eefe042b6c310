// Tests of UTF-8: encoding, and valid and unfinished texts.
#include "base/text/utf8.h"

#include <gtest/gtest.h>

#include <string>

namespace primus::unicode {
namespace {

TEST(Utf8, AppendsOnlyValidText) {
  for (char32_t c = 0; c < 0x110000; c += c < 0x1000 ? 1 : 0x55) {
    std::string text;
    append(c, text);
    const bool surrogate = c >= 0xD800 && c < 0xE000;
    ASSERT_EQ(is_valid(text), !surrogate) << static_cast<unsigned>(c);
  }
  // Overlong encodings, a code point beyond the last, a lone continuation byte, and bytes that start no
  // character.
  for (const std::string text : {"\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xF0\x8F\xBF\xBF",
                                 "\xF4\x90\x80\x80", "\xED\xA0\x80", "\x80", "\xF5\x80\x80\x80", "\xFF"}) {
    EXPECT_EQ(valid_prefix("plain text, " + text), 12U);
  }
}

TEST(Utf8, DistinguishesIncompleteFromInvalid) {
  std::size_t incomplete = 9;
  EXPECT_EQ(valid_prefix("a\xE2\x82", &incomplete), 1U);
  EXPECT_EQ(incomplete, 2U);
  EXPECT_EQ(valid_prefix("a\xE2\x28", &incomplete), 1U);
  EXPECT_EQ(incomplete, 0U);
  int bad = 0;
  EXPECT_EQ(well_formed("\xF0\x9F\x98\x80", bad), 4);
  EXPECT_EQ(well_formed("\xF0\x9F\x98x", bad), 0);
  EXPECT_EQ(bad, 3);
}

}  // namespace
}  // namespace primus::unicode
