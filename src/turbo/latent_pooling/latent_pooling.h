// Pools a sequence's latents over blocks of `ratio` tokens, weighted by gates. Compressed attention
// (DeepSeek-V4) attends to the pooled latents for tokens before its window. Each column has its own softmax
// over the slots of a block:
//   out[w, c] = Σ_s softmax_s(gate[s, c] + bias[s, c]) value[s, c].
// Without overlap, the slots of block w are the tokens of block w. With overlap, each token has two values
// and two gates. The slots are then the first values and gates of the tokens of block w - 1 (if w > 0), and
// the second values and gates of the tokens of block w. Tokens after the last complete block belong to no
// block.
//
// A row of the projection holds all values, then all gates: [2 * parts * dim]. `parts` is 2 with overlap,
// else 1.
#pragma once

#include "tensor/tensor.h"
#include "turbo/kernel_table.h"

namespace primus::turbo {

struct PoolingShape {
  static constexpr std::int64_t kMaxRatio = 1024;

  std::int64_t batch, sequence;  // number of sequences, and of tokens per sequence
  std::int64_t ratio, dim;
  bool overlap;

  std::int64_t parts() const { return overlap ? 2 : 1; }
  std::int64_t width() const { return 2 * parts() * dim; }  // columns of a projection row
  std::int64_t blocks() const { return sequence / ratio; }  // blocks per sequence
  std::int64_t rows() const { return batch * sequence; }
  std::int64_t pooled() const { return batch * blocks(); }
  void check(KernelId kernel) const;
};

struct LatentPooling {
  static constexpr KernelId kId = KernelId::kLatentPooling;
  PoolingShape shape;
  Tensor x;     // [rows, width] fp32 or bf16
  Tensor bias;  // [ratio, parts*dim] fp32
  Tensor out;   // output: [pooled, dim], x's type
  void check() const;
  double flops() const { return 0; }
};

struct LatentPoolingBackward {
  static constexpr KernelId kId = KernelId::kLatentPoolingBackward;
  PoolingShape shape;
  Tensor x, bias;  // from the forward pass
  Tensor d_out;    // [pooled, dim]
  Tensor d_x;      // output: [rows, width]; zero where the forward pass does not read x
  Tensor d_bias;   // output: [ratio, parts*dim] fp32; the summation order does not depend on threads
  Tensor workspace;
  void check() const;
  double flops() const { return 0; }
};

// Lists the rows that each query attends to, in a matrix of latents followed by pooled rows. A query attends
// to the last `window` tokens of its sequence, including the query's own token. A query also attends to the
// pooled blocks that end at or before the query: all of these blocks, or only the chosen blocks. Unused
// entries are -1.
struct WindowAndPooled {
  static constexpr KernelId kId = KernelId::kWindowAndPooled;
  std::int64_t batch, sequence, window;
  std::int64_t ratio;  // tokens per block; 0: no pooling
  Tensor chosen;       // [batch*sequence, k] int32: pooled rows, or -1; absent: all visible rows
  Tensor selected;     // output: [batch*sequence, window + (k, or all blocks of a sequence)] int32
  std::int64_t blocks() const { return ratio > 0 ? sequence / ratio : 0; }
  void check() const;
  double flops() const { return 0; }
};

}  // namespace primus::turbo
