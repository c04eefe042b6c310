// Rotary position embedding (Su et al. 2021) on some heads of each row. Frequency i rotates columns (i, i +
// rotary_dim/2) of the rotated part of a head, the "half-split" layout of Hugging Face. If `interleaved` is
// true, frequency i rotates columns (2i, 2i + 1), as in the RoPE paper, Llama 4 and DeepSeek. The gradient is
// the transposed rotation.
#pragma once

#include "tensor/tensor.h"
#include "turbo/kernel_table.h"

namespace primus::turbo {

// RMSNorm of each rotated head before the rotation (HeadNormForward), fused for a few tokens, as in decoding.
// The result has the same bits as that of the separate operators, but rstd is not computed. If is_taken()
// returns false, call the separate operators.
struct NormBeforeRope {
  Tensor weight = {};            // [2 * head_dim], x's type: query weights, then key weights; absent: no norm
  std::int64_t query_heads = 0;  // the first heads of a row; the other rotated heads are key heads
  float eps = 0, offset = 0;
  bool absent() const { return weight.absent(); }
};

struct Rope {
  static constexpr KernelId kId = KernelId::kRope;
  Tensor x;          // [tokens, width]: consecutive heads of head_dim
  Tensor y;          // output: [tokens, width]; may be x. Columns outside the rotated heads are copied
  Tensor positions;  // [tokens] int32, row indices of the table
  // [max_positions, rotary_dim] fp32: cos of rotary_dim/2 frequencies, then sin; scaled by mscale.
  Tensor table;
  std::int64_t heads;  // the first `heads` heads of each row are rotated
  std::int64_t head_dim;
  std::int64_t rotary_dim;        // number of columns of each head that are rotated; even
  std::int64_t rotary_begin = 0;  // the first rotated column of each head
  bool interleaved = false;
  bool inverse;  // rotates by the negative angle, as the backward pass needs
  NormBeforeRope norm = {};
  // The workspace size that a device reports if it does not support the call's `norm`.
  static constexpr std::int64_t kNotTaken = -1;
  void check() const;
  double flops() const { return 0; }
};

// Returns whether the device has a kernel for this call including `norm`.
bool is_taken(Device& device, const Rope& call);

}  // namespace primus::turbo
