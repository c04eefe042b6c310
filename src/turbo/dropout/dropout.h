// Inverted dropout (Srivastava et al. 2014, JMLR 15): each element is set to zero with probability `rate`.
// All other elements are divided by 1 - rate, so that the mean stays the same.
//
// The mask is not stored. The mask of an element is a function of the step, the index of the token in the
// step's global batch, the column in the complete matrix, and `stream`, the hash of a name
// (base/random/random.h, purpose kDropout). Therefore the mask does not depend on the distribution of tokens
// and columns over ranks and microbatches. Recomputation reproduces the mask.
#pragma once

#include <array>

#include "tensor/tensor.h"
#include "turbo/kernel_table.h"

namespace primus::turbo {

// out = x · [u >= rate] / (1 - rate), u uniform in [0, 1). The backward pass is the same operator: if x is
// the gradient of the output, out is the gradient of the input.
struct Dropout {
  static constexpr KernelId kId = KernelId::kDropout;
  // A range of consecutive columns, from `begin` up to the next range. In the complete matrix, this range
  // begins at column `whole`. A shard of a fused matrix (q, k and v, or gate and up) has several ranges.
  struct Columns {
    std::int64_t begin = 0, whole = 0;
  };
  static constexpr int kMaxRuns = 3;
  using Runs = std::array<Columns, kMaxRuns>;

  Tensor x;        // [tokens, cols] fp32 or bf16
  Tensor out;      // x's type and shape; may be x
  Tensor tokens;   // [tokens] int32: (index of the sample in the global batch) * sequence length + position
  Tensor scalars;  // step scalars (turbo/step_scalars.h)
  std::uint64_t seed = 0;
  std::uint64_t stream = 0;  // random_stream_id() of a name
  float rate = 0;            // in (0, 1)
  int run_count = 1;
  Runs runs = {};  // runs[0].begin is 0

  // Returns the factor of elements that are not dropped.
  float factor() const { return 1 / (1 - rate); }
  void check() const;
  double flops() const { return 0; }
};

}  // namespace primus::turbo
