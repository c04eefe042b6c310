#include "base/text/counted.h"

#include <gtest/gtest.h>

namespace primus {
namespace {

TEST(Counted, OneIsSingularAndOthersArePlural) {
  EXPECT_EQ(counted(1, "GPU"), "1 GPU");
  EXPECT_EQ(counted(0, "GPU"), "0 GPUs");
  EXPECT_EQ(counted(2, "reward function"), "2 reward functions");
  EXPECT_EQ(counted(-2, "step"), "-2 steps");
}

TEST(Counted, PluralsAfterHissingSoundsAndYAreSpelledRight) {
  EXPECT_EQ(counted(2, "microbatch"), "2 microbatches");
  EXPECT_EQ(counted(2, "process"), "2 processes");
  EXPECT_EQ(counted(3, "entry"), "3 entries");
  EXPECT_EQ(counted(1, "entry"), "1 entry");
  EXPECT_EQ(counted(3, "day"), "3 days");
  EXPECT_EQ(noun_for(2, "answer"), "answers");
  EXPECT_EQ(noun_for(1, "answer"), "answer");
}

}  // namespace
}  // namespace primus
