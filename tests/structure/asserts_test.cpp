// Tests that the build option PRIMUS_ASSERTS enables assertions.
#include <gtest/gtest.h>

#include <cassert>

namespace {

TEST(Build, AssertionsRunOnlyInBuildsThatEnableThem) {
  bool ran = false;
  assert(ran = true);
  EXPECT_TRUE(ran || !PRIMUS_ASSERTS_ON);
}

}  // namespace
