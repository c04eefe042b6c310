// Rounds operands of products to MXFP4 (mxfp4_format.h): each number becomes (value of a 4-bit code) * (scale
// of its block), in its original type. engine/operators/mxfp4_products.h multiplies such numbers.
//
// The supported GPUs and CPUs have no fp4 instructions. NVIDIA Blackwell and AMD MI350 introduced such
// instructions. An MXFP4 value is exact in bf16, so an ordinary product of the values equals the product of
// the codes. Codes are never stored, because packing them would move half a byte more per number.
#pragma once

#include <array>

#include "tensor/tensor.h"
#include "turbo/kernel_table.h"
#include "turbo/mxfp4/mxfp4_format.h"

namespace primus::turbo {

// Stochastic rounding (for gradients; section 4.2 of arXiv:2509.25149). An element's random bits are a
// function of the step, of its token's number within the global batch, of its column within the complete
// matrix and of `stream`. They therefore do not depend on the distribution over ranks and microbatches.
struct Mxfp4Random {
  // A range of consecutive columns, which ends where the next range begins. The range starts at column
  // `begin` of x and at column `whole` of the complete matrix. A shard of a fused matrix (q, k and v, or gate
  // and up) has several ranges.
  struct Columns {
    std::int64_t begin = 0, whole = 0;
  };
  static constexpr int kMaxRuns = 3;
  using Runs = std::array<Columns, kMaxRuns>;

  Tensor tokens = {};   // [rows] int32; absent: rounds to nearest
  Tensor scalars = {};  // the step's scalars (turbo/step_scalars.h)
  std::uint64_t stream = 0;
  std::int64_t width = 0;  // number of columns of the complete matrix
  int run_count = 1;
  Runs runs = {};  // ranges of x's columns; runs[0].begin is 0

  bool absent() const { return tokens.absent(); }
};

// out = x rounded to MXFP4. Blocks at the end of a row or a column may be shorter than 32.
struct RoundMxfp4 {
  static constexpr KernelId kId = KernelId::kRoundMxfp4;
  enum class Blocks : std::uint8_t {
    kRows,     // a block is 32 adjacent numbers of a row
    kColumns,  // a block is 32 adjacent numbers of a column
    kTiles,    // a block is a square of 32 x 32, so that a matrix and its transpose are rounded equally
  };
  Tensor x;    // [rows, cols] fp32 or bf16; kTiles: or [matrices, rows, cols]
  Tensor out;  // x's type; must not share memory with x; [rows, cols] or, with picks, [picks, cols]
  Blocks blocks = Blocks::kRows;
  // With kColumns: first multiplies each group of 16 consecutive rows of a block by the orthogonal matrix
  // H/4, where H is the Hadamard matrix of size 16. If both operands are transformed, a product over their
  // rows is unchanged, and outliers are spread over 16 rows. If fewer than 16 rows remain at the end, these
  // are not transformed.
  bool hadamard = false;
  // With kColumns: [groups + 1] int32. Rows are divided into groups, as in GroupedGemm::offsets, and blocks
  // do not extend over two groups. Rows from offsets[groups] on are not written.
  Tensor offsets = {};
  Tensor picks = {};  // with offsets: [picks] int32, row r is x[picks[r]]; absent: x[r]
  Mxfp4Random random = {};
  void check() const;
  double flops() const { return 0; }
};

}  // namespace primus::turbo
