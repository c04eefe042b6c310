// Tests of suggestions for mistyped names.
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

TEST(Closest, ReturnsNothingIfNoNameIsSimilar) {
  EXPECT_EQ(closest("colour_of_the_sky", kNames), "");
  EXPECT_EQ(closest("", kNames), "");
  EXPECT_EQ(closest(std::string(100000, 'a'), kNames), "");
  EXPECT_EQ(closest("lr", {}), "");
}

TEST(DidYouMean, SuggestsWordsOfOptions) {
  constexpr std::string_view kOptions[] = {"--help",      "-t",       "--temperature", "--output-prefix",
                                           "--json-key",  "--config", "--intra-sizes", "--inter-sizes",
                                           "--max-tokens"};
  EXPECT_EQ(did_you_mean_option("--temp", kOptions), "did you mean '--temperature'?");
  EXPECT_EQ(did_you_mean_option("--output", kOptions), "did you mean '--output-prefix'?");
  EXPECT_EQ(did_you_mean_option("--output-prefix-name", kOptions), "did you mean '--output-prefix'?");
  EXPECT_EQ(did_you_mean_option("--key", kOptions), "did you mean '--json-key'?");
  EXPECT_EQ(did_you_mean_option("--conf", kOptions), "did you mean '--config'?");
  EXPECT_EQ(did_you_mean_option("--sizes", kOptions), "did you mean '--intra-sizes' or '--inter-sizes'?");
  EXPECT_EQ(did_you_mean_option("--max_token", kOptions), "did you mean '--max-tokens'?");
  EXPECT_EQ(did_you_mean_option("--hepl", kOptions), "did you mean '--help'?");
  for (const char* far : {"--seed", "--x", "-x", "--", "", "--lora"})
    EXPECT_EQ(did_you_mean_option(far, kOptions), "") << far;
}

TEST(DidYouMean, IsAQuestion) {
  EXPECT_EQ(did_you_mean("min_ler", kNames), "did you mean 'min_lr'?");
  EXPECT_EQ(did_you_mean("zzzzzz", kNames), "");
}

}  // namespace
}  // namespace primus
