// Scales the first columns of each row by a factor that grows with the position of the row's token. The
// factor sharpens attention over long contexts (temperature tuning of queries). Llama 4 scales queries in
// layers without rotary positions, Ministral 3 in all layers:
//   y = x * (1 + attn_scale * log(1 + floor((position + first) / floor_scale)))
// The gradient scales d_y in the same way.
#pragma once

#include "tensor/tensor.h"
#include "turbo/kernel_table.h"

namespace primus::turbo {

struct PositionScale {
  static constexpr KernelId kId = KernelId::kPositionScale;
  Tensor x;           // [tokens, width] fp32 or bf16
  Tensor y;           // output: [tokens, width]; may be x. Columns from `cols` on are copied
  Tensor positions;   // [tokens] int32, >= 0
  std::int64_t cols;  // number of columns to scale, from the first column on
  float floor_scale;  // > 0, in positions
  float attn_scale;
  int first = 1;  // the number of the first position: 1 (Llama 4), or 0 (Ministral 3)
  void check() const;
  double flops() const { return 0; }
};

}  // namespace primus::turbo
