// Tests the kernel that copies cuDNN's contiguous gradients into the strided rows of a call, on the emulated
// GPU.
#define PRIMUS_EMULATED_WARP 32
#include <gtest/gtest.h>

#include <vector>

#include "turbo/attention/gpu_spread.h"

namespace primus::turbo::emulated32 {
namespace {

// Copies contiguous rows of `cols` elements with the values 0, 1, 2, ... into rows of `stride` elements,
// which all are 1000 before the copy.
template <class T>
std::vector<float> spread(std::int64_t rows, std::int64_t cols, std::int64_t stride, bool add) {
  std::vector<BFloat16> from;
  for (std::int64_t i = 0; i < rows * cols; ++i) from.push_back(from_float<BFloat16>(static_cast<float>(i)));
  std::vector<T> to(static_cast<std::size_t>(rows * stride), from_float<T>(1000));
  const Spread<T> kernel{from.data(), to.data(), rows, cols, stride, add};
  ThreadPool pool(2);
  const std::int64_t blocks = blocks_for(rows * cols, Spread<T>::kThreads * Spread<T>::kElements);
  gpu::emulator::run(
      pool, {blocks, Spread<T>::kThreads, 32, 0},
      [](const void* arguments) { (*static_cast<const Spread<T>*>(arguments))(); }, &kernel);
  std::vector<float> result;
  for (const T value : to) result.push_back(to_float(value));
  return result;
}

template <class T>
void expect_rows(bool add) {
  constexpr std::int64_t kRows = 9, kCols = 28, kStride = 40;
  const std::vector<float> result = spread<T>(kRows, kCols, kStride, add);
  for (std::int64_t i = 0; i < kRows * kStride; ++i) {
    const std::int64_t row = i / kStride, col = i % kStride;
    const auto own = static_cast<float>(row * kCols + col);
    const float expected = col >= kCols ? 1000 : add ? 1000 + own : own;
    ASSERT_EQ(result[static_cast<std::size_t>(i)], to_float(from_float<T>(expected))) << row << ' ' << col;
  }
}

// The kernel overwrites only the columns of the gradient.
TEST(Spread, AssignsAndKeepsOtherColumns) {
  expect_rows<float>(false);
  expect_rows<BFloat16>(false);
}

TEST(Spread, AddsToTheOutput) {
  expect_rows<float>(true);
  expect_rows<BFloat16>(true);
}

}  // namespace
}  // namespace primus::turbo::emulated32
