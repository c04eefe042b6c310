// Rotary position embedding (Su et al. 2021) on some heads of each row, in the "half-split" layout of Hugging
// Face: the pair (i, i + rotary_dim/2) of a head turns by the angle of frequency i. The transposed rotation
// is the gradient.
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
  std::int64_t rotary_dim;  // leading part of each head that is rotated; even
  bool inverse;             // backward: rotate by the negative angle
  void check() const;
  double flops() const { return 0; }
};

}  // namespace primus::turbo
