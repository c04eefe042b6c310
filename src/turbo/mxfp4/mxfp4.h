// Rounds operands of products to MXFP4 (mxfp4_format.h): each number becomes the value of a 4-bit code times
// its block's scale, in its original type. engine/mxfp4_products.h multiplies such numbers.
//
// Neither the supported GPUs nor CPUs multiply fp4 (GPUs do from NVIDIA Blackwell and AMD MI350 on). An MXFP4
// value is exact in bf16, so an ordinary product of the values equals the product of the codes. Codes are
// never stored: packing them would move half a byte more per number.
#pragma once

#include <array>

#include "tensor/tensor.h"
#include "turbo/kernel_table.h"
#include "turbo/mxfp4/mxfp4_format.h"

namespace primus::turbo {

// Stochastic rounding (for gradients; section 4.2 of arXiv:2509.25149). An element's random bits are a
// function of the step, of its token's number within the global batch, of its column within the complete
// matrix and of `stream`. So they do not depend on the distribution over ranks and microbatches.
struct Mxfp4Random {
  // A run of columns. The columns from `begin` up to the next run are the columns from `whole` on in the
  // complete matrix. For shards of fused columns (q, k and v; gate and up).
  struct Columns {
    std::int64_t begin = 0, whole = 0;
  };
  static constexpr int kMaxRuns = 3;
  using Runs = std::array<Columns, kMaxRuns>;

  Tensor tokens = {};   // [rows] int32; absent: rounds to nearest
  Tensor scalars = {};  // the step's scalars (turbo/step_scalars.h)
  std::uint64_t stream = 0;
  std::int64_t width = 0;  // columns of the complete matrix
  int run_count = 1;
  Runs runs = {};  // runs of x's columns; the first run begins at 0

  bool absent() const { return tokens.absent(); }
};

// out = x rounded to MXFP4. Blocks at the end of a row or a column may be shorter than 32.
struct RoundMxfp4 {
  static constexpr KernelId kId = KernelId::kRoundMxfp4;
  enum class Blocks : std::uint8_t {
    kRows,     // 32 neighbours in a row
    kColumns,  // 32 neighbours in a column
    kTiles,    // squares of 32 x 32, so that a matrix and its transpose round equally
  };
  Tensor x;    // [rows, cols] fp32 or bf16; kTiles: or [matrices, rows, cols]
  Tensor out;  // x's type, not x's memory; [rows, cols], or [picks, cols]
  Blocks blocks = Blocks::kRows;
  // With kColumns: first multiplies each complete run of 16 rows of a block by the orthogonal matrix H/4,
  // where H is the Hadamard matrix of size 16. If both operands are transformed, a product over their rows is
  // unchanged, and outliers are spread over 16 rows. Fewer than 16 rows at the end are unchanged.
  bool hadamard = false;
  // With kColumns: rows are in groups, and blocks restart in each (GroupedGemm::offsets). Rows from
  // offsets[groups] on are not written. [groups + 1] int32.
  Tensor offsets = {};
  Tensor picks = {};  // with offsets: [picks] int32, row r is x[picks[r]]; absent: in order
  Mxfp4Random random = {};
  void check() const;
  double flops() const { return 0; }
};

}  // namespace primus::turbo
