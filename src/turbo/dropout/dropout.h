// Inverted dropout (Srivastava et al. 2014, JMLR 15): each element is zero with probability `rate`, and the
// others are divided by 1 - rate, so that the mean stays.
//
// Nothing is kept of a mask. An element's fate is a function of the step, of its token's number within the
// step's global batch, of its column within the whole matrix and of `stream`, which stands for a name
// (base/random/random.h, purpose kDropout). So it is the same whichever ranks and microbatches tokens and
// columns are spread over, and whenever it is asked for again.
#pragma once

#include <array>

#include "tensor/tensor.h"
#include "turbo/kernel_table.h"

namespace primus::turbo {

// out = x · [u >= rate] / (1 - rate), u uniform in [0, 1). With the gradient of out as x, this is the
// gradient of x.
struct Dropout {
  static constexpr KernelId kId = KernelId::kDropout;
  // The columns from `begin` on, up to the next run, are those from `whole` on of the whole matrix: of a part
  // of fused columns (q, k and v; gate and up).
  struct Columns {
    std::int64_t begin = 0, whole = 0;
  };
  static constexpr int kMostRuns = 3;
  using Runs = std::array<Columns, kMostRuns>;

  Tensor x;        // [tokens, cols] fp32 or bf16
  Tensor out;      // x's type and shape; may be x
  Tensor tokens;   // [tokens] int32: sample within the global batch times sequence length, plus position
  Tensor scalars;  // the step's (turbo/step_scalars.h)
  std::uint64_t seed = 0;
  std::uint64_t stream = 0;  // random_stream_id() of a name
  float rate = 0;            // in (0, 1)
  int run_count = 1;
  Runs runs = {};  // the first begins at 0

  // What the others are multiplied by.
  float factor() const { return 1 / (1 - rate); }
  void check() const;
  double flops() const { return 0; }
};

}  // namespace primus::turbo
