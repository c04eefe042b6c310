#include "turbo/column_runs/column_runs.h"

#include "turbo/operator_test.h"

namespace primus::turbo::test {
namespace {

class ColumnRunsTest : public ::testing::TestWithParam<DeviceUnderTest> {};
INSTANTIATE_TEST_SUITE_P(Devices, ColumnRunsTest, ::testing::ValuesIn(devices_under_test()));

// Splits rows with interleaved queries and gates, followed by further columns. Some widths allow copying in
// vectors.
TEST_P(ColumnRunsTest, ColumnsAreCopiedToTheirPositions) {
  OperatorBench bench(GetParam());
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const std::int32_t dim : {1, 3, 8, 16}) {
      const std::int32_t heads = 3, offset = 2 * dim, rows = 37;
      const std::int64_t wide = 2 * heads * dim + offset, narrow = heads * dim + offset;
      const Values from = rounded(random_values(rows * wide, 1), dtype);
      const ColumnRun queries{
          .from = 0, .to = 0, .groups = heads, .columns = dim, .from_stride = 2 * dim, .to_stride = dim};
      const ColumnRun rest{.from = 2 * heads * dim, .to = heads * dim, .groups = 1, .columns = offset};
      const auto place = [&](std::int64_t column) {
        return column < heads * dim ? column / dim * 2 * dim + column % dim : column + heads * dim;
      };
      Values expected;
      for (std::int64_t row = 0; row < rows; ++row) {
        for (std::int64_t column = 0; column < narrow; ++column)
          expected.push_back(from[static_cast<std::size_t>(row * wide + place(column))]);
      }
      const Tensor on_from = bench.upload(from, dtype, {rows, wide}), to = bench.empty(dtype, {rows, narrow}),
                   back = bench.zeros(dtype, {rows, wide});
      bench.run(CopyColumns{.from = on_from, .to = to, .runs = {queries, rest}, .run_count = 2});
      EXPECT_EQ(bench.download(to), expected) << dim;
      // Copying back does not change columns outside the runs.
      const auto turned = [](ColumnRun run) {
        std::swap(run.from, run.to);
        std::swap(run.from_stride, run.to_stride);
        return run;
      };
      bench.run(CopyColumns{.from = to, .to = back, .runs = {turned(queries), turned(rest)}, .run_count = 2});
      Values there(from.size(), 0.0);
      for (std::int64_t row = 0; row < rows; ++row) {
        for (std::int64_t column = 0; column < narrow; ++column) {
          const auto at = static_cast<std::size_t>(row * wide + place(column));
          there[at] = from[at];
        }
      }
      EXPECT_EQ(bench.download(back), there) << dim;
    }
  }
}

}  // namespace
}  // namespace primus::turbo::test
