#include "plan/pipeline_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"

namespace primus {
namespace {

using engine::ScheduleKind;
using ::testing::HasSubstr;

TEST(PipelinePlan, DrawsEveryPieceOfWorkWhereItFits) {
  EXPECT_EQ(to_text(plan_pipeline(ScheduleKind::kOneForwardOneBackward, 2, 1, 3), 80),
            "1F1B: 2 stages of 1 chunk, 3 microbatches\n"
            "\n"
            "stage 0   F0 F1 ......B0    F2 B1    ...B2    \n"
            "stage 1   ...F0 B0    F1 B1    F2 B2    ......\n"
            "\n"
            "F forward, B backward, with the number of the microbatch\n"
            "time         12, of which a stage's own work is 9\n"
            "bubble       25.0 % of all stages' time\n"
            "peak stash   2 microbatches at most, 2 of a stage's whole share\n"
            "by stage     2 1\n");
  EXPECT_EQ(
      to_text(plan_pipeline(ScheduleKind::kZeroBubbleV, 1, 2, 1), 80),
      "zero bubble V: 1 stage of 2 chunks, 1 microbatch\n"
      "\n"
      "stage 0   F0  F0' B0' B0  W0' W0  \n"
      "\n"
      "F forward, B backward of inputs, W of weights, with the number of the microbatch; ' for each further "
      "chunk\n"
      "time         6, of which a stage's own work is 6\n"
      "bubble       0.0 % of all stages' time\n"
      "peak stash   2 chunks at most, 1 of a stage's whole share\n"
      "by stage     2\n");
}

TEST(PipelinePlan, DrawsLettersInLittleSpace) {
  const std::string text = to_text(plan_pipeline(ScheduleKind::kZeroBubbleH1, 4, 1, 64), 60);
  EXPECT_THAT(text, HasSubstr("F forward, B backward of inputs, W of weights\n"));
  std::size_t begin = 0;
  for (std::size_t end = text.find('\n'); end != std::string::npos;
       begin = end + 1, end = text.find('\n', begin)) {
    if (text.compare(begin, 6, "stage ") != 0) continue;
    EXPECT_EQ(end - begin, 60U);
  }
}

TEST(PipelinePlan, DrawsAnImageWithARectangleForEachPieceOfWork) {
  const std::string svg = to_svg(plan_pipeline(ScheduleKind::kVHalf, 4, 2, 8));
  std::size_t rectangles = 0;
  for (std::size_t at = svg.find("stroke="); at != std::string::npos; at = svg.find("stroke=", at + 1))
    ++rectangles;
  EXPECT_EQ(rectangles, 4U * 8 * 6);
  EXPECT_THAT(svg, HasSubstr("V-Half: 4 stages of 2 chunks, 8 microbatches"));
  EXPECT_EQ(svg.substr(svg.size() - 7), "</svg>\n");
}

TEST(PipelinePlan, RefusesInvalidCosts) {
  for (const double cost : {-1.0, 1e12, 0.0 / 0.0}) {
    EXPECT_THROW(plan_pipeline(ScheduleKind::kGPipe, 2, 1, 2, {.forward = cost}), Error) << cost;
  }
  EXPECT_THROW(plan_pipeline(ScheduleKind::kGPipe, 2, 1, 2, {.forward = 0, .backward = 0, .weight = 0}),
               Error);
}

}  // namespace
}  // namespace primus
