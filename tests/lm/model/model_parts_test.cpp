// Tests how blocks are distributed to pipeline parts, and the errors for numbers that do not divide evenly.
#include "lm/model/model_parts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/error.h"

namespace primus {
namespace {

using engine::PipelineShape;
using ::testing::HasSubstr;
using Blocks = std::vector<std::int64_t>;

template <class Call>
std::string refusal(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    return std::string(error.what()) + " | " + error.hint();
  }
  return "none";
}

TEST(SplitBlocks, DividesEvenlyByDefault) {
  EXPECT_EQ(split_blocks(8, {4, 1}), (Blocks{2, 2, 2, 2}));
  EXPECT_EQ(split_blocks(8, {2, 2}), (Blocks{2, 2, 2, 2}));
  // The last stage also computes the loss, so the last stage is the first one to get one block fewer. Next
  // are the first stage, the second stage, and so on.
  EXPECT_EQ(split_blocks(7, {4, 1}), (Blocks{2, 2, 2, 1}));
  EXPECT_EQ(split_blocks(61, {8, 1}), (Blocks{7, 7, 8, 8, 8, 8, 8, 7}));
  EXPECT_EQ(split_blocks(126, {8, 1}), (Blocks{15, 16, 16, 16, 16, 16, 16, 15}));
  // Parts may differ if all stages have equal sums. In a V schedule of s stages, stage i has the parts i and
  // 2 s - 1 - i.
  EXPECT_EQ(split_blocks(12, {4, 2}), (Blocks{2, 2, 2, 2, 1, 1, 1, 1}));
  EXPECT_EQ(split_blocks(6, {2, 2, true}), (Blocks{2, 2, 1, 1}));
  EXPECT_EQ(split_blocks(14, {4, 2, true}), (Blocks{2, 2, 2, 2, 1, 2, 2, 1}));
  EXPECT_EQ(split_blocks(61, {4, 1}, {.first = 13}), (Blocks{13, 16, 16, 16}));
  EXPECT_EQ(split_blocks(61, {4, 1}, {.first = 15, .last = 14}), (Blocks{15, 16, 16, 14}));
  // With interleaving, the chunks of a stage share its blocks. In a V schedule, the first stage has the last
  // part.
  EXPECT_EQ(split_blocks(12, {2, 2}, {.first = 4}), (Blocks{2, 4, 2, 4}));
  EXPECT_EQ(split_blocks(12, {2, 2, true}, {.first = 4}), (Blocks{2, 4, 4, 2}));
  EXPECT_EQ(split_blocks(14, {4, 1}, {.embedding = true, .loss = true}), (Blocks{3, 4, 4, 3}));
  EXPECT_EQ(split_blocks(15, {2, 2}, {.loss = true}), (Blocks{4, 4, 4, 3}));
}

TEST(SplitBlocks, NamesTheNumberToChange) {
  EXPECT_EQ(refusal([] {
              split_blocks(7, {4, 1}, {.first = 2});
            }),
            "the 5 blocks of the other stages are not a multiple of their number, 3 | set num_layers to 5 or "
            "8, or set the blocks of each stage with pipeline_model_parallel_layout");
  EXPECT_EQ(refusal([] {
              split_blocks(7, {4, 2});
            }),
            "7 blocks are fewer than the 8 parts of the pipeline | set num_layers to 8 or more, or use fewer "
            "stages");
  EXPECT_THAT(refusal([] { split_blocks(12, {4, 2}, {.first = 3}); }), HasSubstr("a multiple of 4 times 2"));
  EXPECT_EQ(
      refusal([] {
        split_blocks(15, {4, 1}, {.embedding = true, .loss = true});
      }),
      "17 blocks, embedding and loss counted, are not a multiple of 4 parts | set num_layers to 14 or 18");
  EXPECT_THAT(refusal([] { split_blocks(8, {4, 1}, {.first = 9}); }), HasSubstr("9 of 8 blocks"));
  EXPECT_THAT(refusal([] { split_blocks(8, {2, 1}, {.first = 5, .last = 5}); }), HasSubstr("2 blocks more"));
  EXPECT_THAT(refusal([] {
                split_blocks(8, {2, 1}, {.first = 3, .last = 3});
              }),
              HasSubstr("assigned to no stage"));
  EXPECT_THAT(refusal([] { split_blocks(8, {2, 1}, {.first = 3, .loss = true}); }), HasSubstr("remove one"));
}

TEST(ParseLayout, ReadsMegatronsNotation) {
  EXPECT_EQ(parse_layout("Et|t|t|tL", 4, 0), (Blocks{1, 1, 1, 1}));
  EXPECT_EQ(parse_layout("E|t*2|tt|L", 4, 0), (Blocks{0, 2, 2, 0}));
  EXPECT_EQ(parse_layout("E|(t|)*3, L", 3, 0), (Blocks{0, 1, 1, 1, 0}));
  EXPECT_EQ(parse_layout("E((t)*2|)*2,tmmL", 5, 2), (Blocks{2, 2, 1}));
  // Without m, the multi-token prediction module precedes the loss.
  EXPECT_EQ(parse_layout("Et*2|t*3L", 5, 1), (Blocks{2, 3}));
  Blocks deepseek(31, 2);  // DeepSeek-V3: 61 blocks in 31 parts
  deepseek.front() = 3;
  deepseek.back() = 0;
  EXPECT_EQ(parse_layout("Et*3|(tt|)*29,mL", 61, 1), deepseek);
}

TEST(ParseLayout, RefusesInvalidLayouts) {
  const auto of = [](const char* layout, std::int64_t blocks = 4, std::int64_t modules = 0) {
    return refusal([&] { parse_layout(layout, blocks, modules); });
  };
  EXPECT_THAT(of(""), HasSubstr("begin it with E and end it with L"));
  EXPECT_THAT(of("tt|tL"), HasSubstr("begin it with E"));
  EXPECT_THAT(of("Ett|Et|tL"), HasSubstr("embedding after another part"));
  EXPECT_THAT(of("EttL|ttL"), HasSubstr("loss before another part"));
  EXPECT_THAT(of("Ett|ttt|L"),
              HasSubstr("has 5 blocks, but the model has 4 | write 4 times t, or set num_layers to 5"));
  EXPECT_THAT(of("Ett|ttmL"), HasSubstr("set mtp_num_layers to 1"));
  EXPECT_THAT(of("Ett|tt,m|L", 4, 1), HasSubstr("right before the L"));
  EXPECT_THAT(of("Et?t|L"), HasSubstr("'?' at character 3"));
  EXPECT_THAT(of("E(tt|L"), HasSubstr("'(' without its ')'"));
  EXPECT_THAT(of("Ett)|L"), HasSubstr("')' without its '('"));
  // Hostile numbers and nesting depths are refused quickly.
  EXPECT_THAT(of("E(((t*9999)*9999)*9999)L"), HasSubstr("more than 65536 letters"));
  EXPECT_THAT(of("Et*99999999999999999999L"), HasSubstr("number from 1 to 65536"));
  EXPECT_THAT(of("Et*0L"), HasSubstr("number from 1 to 65536"));
  EXPECT_THAT(of(("E" + std::string(10000, '(')).c_str()), HasSubstr("too many nested"));
}

}  // namespace
}  // namespace primus
