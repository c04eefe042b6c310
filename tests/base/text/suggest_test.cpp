#include "base/text/suggest.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace primus {
namespace {

TEST(EditDistance, CountsEdits) {
  EXPECT_EQ(edit_distance("", ""), 0u);
  EXPECT_EQ(edit_distance("abc", ""), 3u);
  EXPECT_EQ(edit_distance("", "abc"), 3u);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3u);
  EXPECT_EQ(edit_distance("seed", "sede"), 1u);  // a swap is one edit
}

TEST(EditDistance, IgnoresCaseAndDashes) {
  EXPECT_EQ(edit_distance("Micro-Batch-Size", "micro_batch_size"), 0u);
}

constexpr std::string_view kNames[] = {"lr", "min_lr", "micro_batch_size", "seq_length", "lr_decay_style"};

TEST(Closest, FindsTheMeantName) {
  EXPECT_EQ(closest("micro_batchsize", kNames), "micro_batch_size");
  EXPECT_EQ(closest("lr_decay_stile", kNames), "lr_decay_style");
  EXPECT_EQ(closest("lrr", kNames), "lr");
}

TEST(Closest, StaysSilentWhenNothingIsNear) {
  EXPECT_EQ(closest("colour_of_the_sky", kNames), "");
  EXPECT_EQ(closest("", kNames), "");
  EXPECT_EQ(closest(std::string(100000, 'a'), kNames), "");
  EXPECT_EQ(closest("lr", {}), "");
}

TEST(DidYouMean, IsAQuestion) {
  EXPECT_EQ(did_you_mean("min_ler", kNames), "did you mean 'min_lr'?");
  EXPECT_EQ(did_you_mean("zzzzzz", kNames), "");
}

}  // namespace
}  // namespace primus
