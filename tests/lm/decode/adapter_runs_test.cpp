#include "lm/decode/adapter_runs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace primus {
namespace {

using engine::AdapterRun;
using testing::ElementsAre;
using testing::IsEmpty;

const std::vector<std::int64_t> kSizes{1, 2, 4, 8, 16};

// Model 0 has no adapters, and the last rows of a pass belong to no text.
TEST(AdapterRuns, JoinNeighboursOfTheSameModel) {
  const std::vector<RowsOfModel> parts{{0, 2}, {1, 1}, {1, 4}, {3, 1}, {0, 1}, {3, 2}};
  EXPECT_THAT(adapter_runs(parts, kSizes, 16),
              ElementsAre(AdapterRun{1, 2, 7, 2, 8}, AdapterRun{3, 7, 8, 7, 1}, AdapterRun{3, 9, 11, 9, 2}));
  EXPECT_THAT(adapter_runs(std::vector<RowsOfModel>{{0, 5}}, kSizes, 8), IsEmpty());
}

// The number of computed rows is one of the sizes, and these rows lie within the pass.
TEST(AdapterRuns, ComputeRowsOfMeasuredSizes) {
  EXPECT_THAT(adapter_runs(std::vector<RowsOfModel>{{0, 5}, {2, 3}}, kSizes, 8),
              ElementsAre(AdapterRun{2, 5, 8, 4, 4}));
  EXPECT_THAT(adapter_runs(std::vector<RowsOfModel>{{1, 5}, {2, 11}}, kSizes, 16),
              ElementsAre(AdapterRun{1, 0, 5, 0, 8}, AdapterRun{2, 5, 16, 0, 16}));
}

}  // namespace
}  // namespace primus
