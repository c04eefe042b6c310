// The build option PRIMUS_ASSERTS does what it says.
#include <gtest/gtest.h>

#include <cassert>

namespace {

TEST(Build, AssertionsRunWhereTheBuildSaysSo) {
  bool ran = false;
  assert(ran = true);
  EXPECT_TRUE(ran || !PRIMUS_ASSERTS_ON);
}

}  // namespace
