#include "lm/checkpoint/slice.h"

#include <gtest/gtest.h>

#include <numeric>

#include "checkpoint_testing.h"

namespace primus {
namespace {

bool tiles(const std::vector<Slice>& slices, const std::vector<std::int64_t>& shape) {
  std::vector<const Slice*> pointers;
  for (const auto& slice : slices) pointers.push_back(&slice);
  return tile(pointers, shape);
}

TEST(Slice, Tiling) {
  EXPECT_TRUE(tiles({whole(std::vector<std::int64_t>{4, 6})}, {4, 6}));
  EXPECT_TRUE(tiles({whole(std::vector<std::int64_t>{})}, {}));
  EXPECT_FALSE(tiles({}, {}));
  EXPECT_FALSE(tiles({{{}, {}}, {{}, {}}}, {}));
  EXPECT_TRUE(tiles({}, {0, 3}));
  EXPECT_TRUE(tiles({{{0, 3}, {4, 3}}, {{0, 0}, {4, 3}}}, {4, 6})) << "columns";
  // A flat range of a 3x4 tensor, elements [0, 6) and [6, 12), as boxes.
  EXPECT_TRUE(tiles({{{0, 0}, {1, 4}}, {{1, 0}, {1, 2}}, {{1, 2}, {1, 2}}, {{2, 0}, {1, 4}}}, {3, 4}));
  EXPECT_FALSE(tiles({{{0, 0}, {2, 6}}}, {4, 6})) << "a gap";
  EXPECT_FALSE(tiles({{{0, 0}, {3, 6}}, {{2, 0}, {2, 6}}}, {4, 6})) << "too many elements";
  EXPECT_FALSE(tiles({{{0, 0}, {2, 6}}, {{1, 0}, {2, 6}}}, {4, 6})) << "right size, overlapping";
  EXPECT_FALSE(tiles({{{0, 0}, {4, 3}}, {{0, 2}, {4, 3}}}, {4, 6})) << "right size, overlapping in columns";
  EXPECT_FALSE(tiles({{{0, 4}, {4, 3}}, {{0, 0}, {4, 3}}}, {4, 6})) << "outside";
  EXPECT_FALSE(tiles({{{0}, {4}}}, {4, 6})) << "wrong rank";
}

TEST(Slice, BoxesBeyondTheTensorAreNotInside) {
  const std::vector<std::int64_t> shape = {4, 6};
  EXPECT_TRUE(is_inside({{4, 0}, {0, 6}}, shape)) << "empty, at the end";
  for (const Slice& slice : {Slice{{-1, 0}, {1, 6}},
                             {{0, -1}, {4, 1}},
                             {{0, 0}, {-1, 6}},
                             {{1, 0}, {4, 6}},
                             {{5, 0}, {0, 6}},
                             {{0, 0, 0}, {4, 6, 1}},
                             {{0, 0}, {4}}}) {
    EXPECT_FALSE(is_inside(slice, shape)) << testing::PrintToString(slice.offset);
  }
}

// For every box of a 3x4x2 tensor, the runs cover its elements in row-major order and are as long as
// possible.
TEST(Slice, RunsCoverTheBoxInRowMajorOrder) {
  const std::vector<std::int64_t> shape = {3, 4, 2};
  TestRandom random(1);
  for (int round = 0; round < 500; ++round) {
    Slice slice;
    for (const std::int64_t extent : shape) {
      slice.offset.push_back(static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(extent) + 1)));
      slice.extent.push_back(static_cast<std::int64_t>(
          random.below(static_cast<std::uint64_t>(extent - slice.offset.back()) + 1)));
    }
    ASSERT_TRUE(is_inside(slice, shape));
    std::vector<std::int64_t> expected, got;
    for (std::int64_t a = 0; a < slice.extent[0]; ++a) {
      for (std::int64_t b = 0; b < slice.extent[1]; ++b) {
        for (std::int64_t c = 0; c < slice.extent[2]; ++c) {
          expected.push_back(((a + slice.offset[0]) * 4 + b + slice.offset[1]) * 2 + c + slice.offset[2]);
        }
      }
    }
    std::int64_t end_before = -1;
    for_each_run(shape, slice, [&](std::int64_t first, std::int64_t count) {
      EXPECT_NE(first, end_before) << "two runs could be merged";
      for (std::int64_t i = 0; i < count; ++i) got.push_back(first + i);
      end_before = first + count;
    });
    EXPECT_EQ(got, expected);
  }
}

}  // namespace
}  // namespace primus
