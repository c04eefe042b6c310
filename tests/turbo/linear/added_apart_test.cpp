#include "turbo/linear/added_apart.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>

namespace primus::turbo {
namespace {

// Operands with addresses but without data; the tests of this file do not multiply them.
struct Operands {
  std::array<char, 1> a, b, c, workspace;

  Gemm call(GemmRole role, std::int64_t tokens, std::int64_t in, std::int64_t out,
            DType dtype = DType::kBF16) {
    const bool forward = role == GemmRole::kForward;
    return {.role = role,
            .a = Tensor(a.data(), dtype, {tokens, forward ? in : out}),
            .b = Tensor(b.data(), dtype, {out, in}),
            .c = Tensor(c.data(), dtype, {tokens, forward ? out : in}),
            .accumulate = true,
            .workspace = Tensor(workspace.data(), DType::kU8, {std::int64_t{1} << 30})};
  }
};

// Only forward and input-gradient products that accumulate into 16 bits are added separately.
TEST(AddedApart, ProductsThatALibraryWouldRoundTwiceAreAddedApart) {
  Operands operands;
  for (const GemmRole role : {GemmRole::kForward, GemmRole::kInputGradient})
    EXPECT_TRUE(is_added_apart(operands.call(role, 4, 8, 16)));
  EXPECT_TRUE(is_added_apart(operands.call(GemmRole::kInputGradient, 4, 8, 16, DType::kF16)));
  Gemm call = operands.call(GemmRole::kInputGradient, 4, 8, 16);
  call.accumulate = false;
  EXPECT_FALSE(is_added_apart(call)) << "the product does not accumulate";
  call = operands.call(GemmRole::kInputGradient, 4, 8, 16);
  call.c.dtype = DType::kF32;
  EXPECT_FALSE(is_added_apart(call)) << "fp32 results are rounded once";
  call = operands.call(GemmRole::kInputGradient, 4, 8, 16);
  call.b.dtype = DType::kF32;
  EXPECT_FALSE(is_added_apart(call)) << "libraries do not support mixed operands";
  EXPECT_FALSE(is_added_apart(operands.call(GemmRole::kInputGradient, 0, 8, 16))) << "the product is empty";
  call = operands.call(GemmRole::kInputGradient, 4, 8, 16);
  call.role = GemmRole::kWeightGradient;
  EXPECT_FALSE(is_added_apart(call)) << "weight gradients may be rounded twice";
}

TEST(AddedApart, PartsHaveRowsThatFillTilesAndFitTheMemory) {
  Operands operands;
  const auto rows = [&](std::int64_t tokens, std::int64_t in, std::int64_t bytes) {
    return rows_added_at_once(operands.call(GemmRole::kInputGradient, tokens, in, 16), bytes);
  };
  EXPECT_EQ(rows(2048, 4096, kAddedBytes), 2048);
  EXPECT_EQ(rows(2049, 4096, kAddedBytes), 2048);
  EXPECT_EQ(rows(8192, 14336, kAddedBytes), 512);  // 32 MiB hold 585 rows of 14336 floats
  EXPECT_EQ(rows(100, 4096, 1 << 20), 100);
  EXPECT_EQ(rows(8192, 1 << 20, kAddedBytes), kAddedRows) << "at least the rows of a tile, for any width";
}

TEST(AddedApart, PartsCoverTheResultOnceAndLeaveWorkspaceForTheLibrary) {
  Operands operands;
  for (const GemmRole role : {GemmRole::kForward, GemmRole::kInputGradient}) {
    const Gemm call = operands.call(role, 1000, 64, 128);
    const std::int64_t at_once = rows_added_at_once(call, 600 * call.c.cols() * 4);
    ASSERT_EQ(at_once, 512);
    const std::int64_t reserved = added_bytes(call, at_once);
    EXPECT_EQ(reserved, 512 * call.c.cols() * 4);
    std::int64_t covered = 0;
    for (std::int64_t begin = 0; begin < 1000; begin += at_once) {
      const std::int64_t end = std::min<std::int64_t>(begin + at_once, 1000);
      const Gemm part = product_of_rows(call, begin, end, reserved);
      EXPECT_NO_THROW(part.check());
      EXPECT_FALSE(part.accumulate);
      EXPECT_EQ(part.c.dtype, DType::kF32);
      EXPECT_EQ(part.c.data, call.workspace.data);
      EXPECT_LE(part.c.bytes(), reserved);
      EXPECT_EQ(part.a.data, static_cast<char*>(call.a.data) + begin * call.a.cols() * 2);
      EXPECT_EQ(part.b.data, call.b.data);
      EXPECT_EQ(part.workspace.data, static_cast<char*>(call.workspace.data) + reserved);
      EXPECT_EQ(part.workspace.bytes(), call.workspace.bytes() - reserved);
      const Tensor to = rows_of_result(call, begin, end);
      EXPECT_EQ(to.data, static_cast<char*>(call.c.data) + covered * call.c.cols() * 2);
      EXPECT_EQ(to.rows(), part.c.rows());
      covered += to.rows();
    }
    EXPECT_EQ(covered, 1000);
  }
}

}  // namespace
}  // namespace primus::turbo
