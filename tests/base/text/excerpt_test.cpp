// Tests of excerpts of long texts in messages.
#include "base/text/excerpt.h"

#include <gtest/gtest.h>

#include <string>

namespace primus {
namespace {

TEST(Excerpt, IsCutBetweenCharactersAndKeepsTheMessageWhole) {
  using std::string_literals::operator""s;
  EXPECT_EQ(excerpt("caf\xc3\xa9"), "caf\xc3\xa9");
  EXPECT_EQ(excerpt("a\0b"s), "a\\x00b");
  EXPECT_EQ(excerpt(std::string(120, 'x')), std::string(120, 'x'));
  EXPECT_EQ(excerpt(std::string(121, 'x')), std::string(120, 'x') + "...");
  EXPECT_EQ(excerpt(std::string(119, 'x') + "\xc3\xa9"), std::string(119, 'x') + "...");
  EXPECT_EQ(excerpt(std::string(200, '\x80')), "...");  // no byte starts a character
}

}  // namespace
}  // namespace primus
