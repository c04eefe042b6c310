// Pooling of a sequence's latents over blocks of `ratio` tokens, weighted by gates: what compressed attention
// keeps of the tokens behind its window (DeepSeek-V4). Each column has its own softmax over the slots of a
// block,
//   out[w, c] = Σ_s softmax_s(gate[s, c] + bias[s, c]) value[s, c].
// Without overlap the slots of block w are its tokens. With overlap each token has two values and two gates,
// and the slots are the tokens of block w - 1 by the first of them, where there is such a block, and those of
// block w by the second. Tokens behind the last whole block belong to none.
//
// A row of the projection is all values, then all gates: [2 * parts * dim], parts 2 with overlap, else 1.
#pragma once

#include "tensor/tensor.h"
#include "turbo/kernel_table.h"

namespace primus::turbo {

struct PoolingShape {
  static constexpr std::int64_t kMaxRatio = 1024;

  std::int64_t batch, sequence;  // tokens of each
  std::int64_t ratio, dim;
  bool overlap;

  std::int64_t parts() const { return overlap ? 2 : 1; }
  std::int64_t width() const { return 2 * parts() * dim; }  // of a row of the projection
  std::int64_t blocks() const { return sequence / ratio; }  // of a sequence
  std::int64_t rows() const { return batch * sequence; }
  std::int64_t pooled() const { return batch * blocks(); }
  void check(KernelId kernel) const;
};

struct LatentPooling {
  static constexpr KernelId kId = KernelId::kLatentPooling;
  PoolingShape shape;
  Tensor x;     // [rows, width] fp32 or bf16
  Tensor bias;  // [ratio, parts*dim] fp32
  Tensor out;   // [pooled, dim] out, x's type
  void check() const;
  double flops() const { return 0; }
};

struct LatentPoolingBackward {
  static constexpr KernelId kId = KernelId::kLatentPoolingBackward;
  PoolingShape shape;
  Tensor x, bias;  // of the forward
  Tensor d_out;    // [pooled, dim]
  Tensor d_x;      // [rows, width] out; zero where nothing was read
  Tensor d_bias;   // [ratio, parts*dim] fp32 out: summed in an order that does not depend on threads
  Tensor workspace;
  void check() const;
  double flops() const { return 0; }
};

// What a query sees, as rows of latents that lie before pooled ones: those of the last `window` tokens of its
// sequence, itself among them, and of the blocks whose last token is not behind it either all or those that
// are chosen. -1 stands for none.
struct WindowAndPooled {
  static constexpr KernelId kId = KernelId::kWindowAndPooled;
  std::int64_t batch, sequence, window;
  std::int64_t ratio;  // tokens of a block; 0: nothing is pooled
  Tensor chosen;       // [batch*sequence, k] int32: of pooled rows, or -1; absent: all that are seen
  Tensor selected;     // [batch*sequence, window + k, or + all blocks of a sequence] int32 out
  std::int64_t blocks() const { return ratio > 0 ? sequence / ratio : 0; }
  void check() const;
  double flops() const { return 0; }
};

}  // namespace primus::turbo
