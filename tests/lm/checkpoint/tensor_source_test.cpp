#include "lm/checkpoint/tensor_source.h"

#include <numeric>

#include "base/system/thread_pool.h"
#include "checkpoint_testing.h"

namespace primus {
namespace {

TEST(AxisOrder, PermutesAxesWithinSlabs) {
  // In memory 2 slabs of [2, 3]; in the file 2 slabs of [3, 2].
  const AxisOrder order{.dims = {2, 2, 3}, .axes = {0, 2, 1}};
  const std::vector<float> memory = {0, 1, 2, 3, 4, 5, 10, 11, 12, 13, 14, 15};
  std::vector<float> published(memory.size()), back(memory.size());
  to_file_order(order, 4, std::as_bytes(std::span(memory)), std::as_writable_bytes(std::span(published)));
  EXPECT_EQ(published, (std::vector<float>{0, 3, 1, 4, 2, 5, 10, 13, 11, 14, 12, 15}));
  to_memory_order(order, 4, std::as_bytes(std::span(published)), std::as_writable_bytes(std::span(back)));
  EXPECT_EQ(back, memory);
}

TEST(AxisOrder, InterleavedRowsOfFourAxes) {
  // One expert, in memory [2, ffn = 2, hidden = 2]: gate rows, then up rows. In the file [hidden, 2 * ffn],
  // with gate and up interleaved.
  const AxisOrder order{.dims = {1, 2, 2, 2}, .axes = {0, 3, 2, 1}};
  const std::vector<float> memory = {100, 101, 110, 111, 200, 201, 210, 211};  // (gate|up)(row)(column)
  std::vector<float> published(memory.size());
  to_file_order(order, 4, std::as_bytes(std::span(memory)), std::as_writable_bytes(std::span(published)));
  EXPECT_EQ(published, (std::vector<float>{100, 200, 110, 210, 101, 201, 111, 211}));
}

// Copies every run, with axes in file order and with permuted axes. The permuted tensors have three slabs of
// 10 elements, or eight slabs of 4 elements.
TEST(AxisOrder, CopiesEveryRun) {
  const AxisOrder orders[] = {{},
                              {.dims = {3, 2, 5}, .axes = {0, 2, 1}},
                              {.dims = {3, 2, 5, 1}, .axes = {0, 3, 2, 1}},
                              {.dims = {8, 2, 2}, .axes = {0, 2, 1}}};
  for (const AxisOrder& order : orders) {
    const std::int64_t all = order.same() ? 30 : order.dims[0] * order.slab_elements();
    std::vector<std::uint16_t> memory(static_cast<std::size_t>(all)), file(memory.size());
    std::iota(memory.begin(), memory.end(), std::uint16_t{100});
    if (order.same()) {
      file = memory;
    } else {
      to_file_order(order, 2, std::as_bytes(std::span(memory)), std::as_writable_bytes(std::span(file)));
    }
    for (std::int64_t begin = 0; begin <= all; ++begin) {
      for (std::int64_t end = begin; end <= all; ++end) {
        std::vector<std::uint16_t> run(static_cast<std::size_t>(end - begin));
        copy_runs(order, 2, std::as_bytes(std::span(file)), one_run(begin, end),
                  std::as_writable_bytes(std::span(run)));
        ASSERT_TRUE(std::equal(run.begin(), run.end(), memory.begin() + begin)) << begin << " to " << end;
      }
    }
    // Columns 1 and 2 of rows of 5, without the first and the last of these elements.
    const HeldRuns columns = {{.begin = 2, .length = 1},
                              {.begin = 6, .length = 2, .count = 4, .stride = 5},
                              {.begin = 26, .length = 1}};
    std::vector<std::uint16_t> held(static_cast<std::size_t>(elements(columns)));
    copy_runs(order, 2, std::as_bytes(std::span(file)), columns, std::as_writable_bytes(std::span(held)));
    EXPECT_EQ(held, (std::vector<std::uint16_t>{102, 106, 107, 111, 112, 116, 117, 121, 122, 126}));
  }
}

// Runs of 20 and 2 MB, whose parts several threads copy.
TEST(AxisOrder, ThreadsCopyTheSameElements) {
  ThreadPool threads(3);
  const AxisOrder orders[] = {{}, {.dims = {2'000'000, 2, 3}, .axes = {0, 2, 1}}};
  for (const AxisOrder& order : orders) {
    std::vector<std::uint16_t> file(12'000'000);
    std::iota(file.begin(), file.end(), std::uint16_t{0});
    const HeldRuns runs = {{.begin = 1, .length = 10'000'000},
                           {.begin = 10'100'003, .length = 5, .count = 200'000, .stride = 7}};
    std::vector<std::uint16_t> alone(static_cast<std::size_t>(elements(runs))), together(alone.size());
    copy_runs(order, 2, std::as_bytes(std::span(file)), runs, std::as_writable_bytes(std::span(alone)));
    copy_runs(order, 2, std::as_bytes(std::span(file)), runs, std::as_writable_bytes(std::span(together)),
              &threads);
    EXPECT_EQ(alone, together);
  }
}

TEST(TensorSource, DescribesItsElements) {
  TensorSource source{.name = "w", .dtype = DType::kBF16, .shape = {4, 5}};
  EXPECT_EQ(source.held(), one_run(0, 20));
  source.runs = one_run(3, 11);
  EXPECT_EQ(source.bytes(), 40U);
  EXPECT_EQ(source.held_bytes(), 16U);
  source.runs = HeldRuns{{.begin = 3, .length = 2, .count = 4, .stride = 5}};
  EXPECT_EQ(source.held_bytes(), 16U);
  const StridedRun first{.begin = 3, .length = 2};
  for (const HeldRuns& wrong : {HeldRuns{{.begin = -1, .length = 3}},
                                {{.begin = 5, .length = 0}},
                                {{.begin = 3, .length = 18}},
                                {{.begin = 3, .length = 2, .count = 5, .stride = 5}},
                                {{.begin = 3, .length = 2, .count = 2, .stride = 1}},
                                {{.begin = 3, .length = 2, .count = 0}},
                                {first, first}}) {
    source.runs = wrong;
    EXPECT_THAT(error_of([&] { source.held(); }), ::testing::HasSubstr("tensor 'w' has 20 elements"));
  }
}

}  // namespace
}  // namespace primus
