// Rotary position embedding (Su et al. 2021) on some heads of each row. Of the rotated part of a head,
// frequency i turns the pair (i, i + rotary_dim/2), the "half-split" layout of Hugging Face, or, interleaved,
// the pair (2i, 2i + 1) (the paper's, Llama 4, DeepSeek). The transposed rotation is the gradient.
#pragma once

#include "tensor/tensor.h"
#include "turbo/kernel_table.h"

namespace primus::turbo {

struct Rope {
  static constexpr KernelId kId = KernelId::kRope;
  Tensor x;          // [tokens, width]: heads of head_dim side by side
  Tensor y;          // [tokens, width] out; may be x. Columns outside the rotated heads are copied
  Tensor positions;  // [tokens] int32, row of the table
  Tensor
      table;  // [max_positions, rotary_dim] fp32: cos of rotary_dim/2 frequencies, then sin; scaled by mscale
  std::int64_t heads;  // the first `heads` heads of each row are rotated
  std::int64_t head_dim;
  std::int64_t rotary_dim;        // columns of each head that are rotated; even
  std::int64_t rotary_begin = 0;  // the first of them
  bool interleaved = false;
  bool inverse;  // backward: rotate by the negative angle
  void check() const;
  double flops() const { return 0; }
};

}  // namespace primus::turbo
