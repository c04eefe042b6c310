// Operands of products in MXFP4 (mxfp4_format.h): each number becomes one that 4 bits and its block's scale
// can say, in the type that it had. engine/mxfp4_products.h has products of such numbers.
//
// No GPU that Primus has kernels for multiplies fp4 (NVIDIA's do from Blackwell on, AMD's from MI350 on), nor
// do CPUs. A number of MXFP4 is exact in bf16, so the ordinary product of what codes stand for is the product
// of the codes, and codes are never stored: packing them would write and read half a byte more for each
// number.
#pragma once

#include <array>

#include "tensor/tensor.h"
#include "turbo/kernel_table.h"
#include "turbo/mxfp4/mxfp4_format.h"

namespace primus::turbo {

// Rounding at random (gradients; section 4.2 of arXiv:2509.25149). An element's random bits are a function of
// the step, of its token's number within the step's global batch, of its column within the whole matrix and
// of `stream`: the same whichever ranks and microbatches they are spread over.
struct Mxfp4Random {
  // The columns from `begin` on, up to the next run, are those from `whole` on of the whole matrix: of a part
  // of fused columns (q, k and v; gate and up).
  struct Columns {
    std::int64_t begin = 0, whole = 0;
  };
  static constexpr int kMostRuns = 3;
  using Runs = std::array<Columns, kMostRuns>;

  Tensor tokens = {};   // [rows] int32; absent: numbers are rounded to nearest
  Tensor scalars = {};  // the step's (turbo/step_scalars.h)
  std::uint64_t stream = 0;
  std::int64_t width = 0;  // columns of the whole matrix
  int run_count = 1;
  Runs runs = {};  // of x's columns; the first begins at 0

  bool absent() const { return tokens.absent(); }
};

// out = the numbers of MXFP4 for x. Blocks at the end of a row or a column may be shorter than 32.
struct RoundMxfp4 {
  static constexpr KernelId kId = KernelId::kRoundMxfp4;
  enum class Blocks : std::uint8_t {
    kRows,     // 32 neighbours in a row
    kColumns,  // 32 in a column
    kTiles,    // squares of 32 x 32 share a scale, so that a matrix and its transpose have the same numbers
  };
  Tensor x;    // [rows, cols] fp32 or bf16; kTiles: or [matrices, rows, cols]
  Tensor out;  // x's type, in other memory; [rows, cols], or [picks, cols]
  Blocks blocks = Blocks::kRows;
  // With kColumns: each whole run of 16 rows of a block is first multiplied by the orthogonal matrix H/4, H
  // Hadamard's of 16. A product over the rows of two matrices that both are is what it was, and outliers are
  // spread over 16 rows. The last rows, fewer than 16, stay as they are.
  bool hadamard = false;
  // With kColumns: rows of groups, in each of which blocks begin anew, as GroupedGemm::offsets; rows from
  // offsets[groups] on are not written. [groups + 1] int32.
  Tensor offsets = {};
  Tensor picks = {};  // with offsets: [picks] int32, row r is x[picks[r]]; absent: in order
  Mxfp4Random random = {};
  void check() const;
  double flops() const { return 0; }
};

}  // namespace primus::turbo
