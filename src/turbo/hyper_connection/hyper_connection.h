// Manifold-constrained hyper-connections (mHC; Xie et al. 2026, arXiv:2512.24880). The residual has several
// parallel streams. A layer reads a mixture of the streams, and the layer's output is added to each stream. A
// matrix mixes the streams; the sum of each row and of each column of this matrix is 1.
//
// For a token with streams x[0 .. n), each `hidden` wide, the caller supplies p = x · fnᵀ of all streams as
// one row:
//   s = p / sqrt(mean(x²) + norm_eps)                        one factor for the whole row
//   pre[j]     = sigmoid(scale[0] s[j] + base[j]) + eps      j < n
//   post[j]    = 2 sigmoid(scale[1] s[n + j] + base[n + j])
//   comb[i, j] = balance(softmax over j of (scale[2] s[2n + i n + j] + base[2n + i n + j]) + eps)
//   y = Σ_j pre[j] x[j]                      HyperRead: the layer's input
//   z[k] = post[k] out + Σ_j comb[j, k] x[j]   HyperWrite: the streams after the layer
// balance (Sinkhorn and Knopp) divides columns by their sums + eps. Then balance divides rows and columns in
// the same way, `iterations` - 1 times. After the last layer, which only reads the streams, `iterations` is 0
// and only `pre` exists. All factors are in fp32.
//
// Streams are most of the memory traffic: x is read twice and written once, in addition to the read for p.
#pragma once

#include "tensor/tensor.h"
#include "turbo/kernel_table.h"

namespace primus::turbo {

struct HyperShape {
  static constexpr std::int64_t kMaxStreams = 8, kMaxIterations = 64;

  std::int64_t streams;
  std::int64_t iterations;  // iterations of balance; 0: only `pre` exists
  float eps, norm_eps;

  constexpr bool mixes() const { return iterations > 0; }
  // These functions return the number of columns of p, the number of elements of `scale`, and the number of
  // columns of `mixing`. A row of `mixing` holds post, then comb row by row.
  constexpr std::int64_t products() const { return mixes() ? (2 + streams) * streams : streams; }
  constexpr std::int64_t scales() const { return mixes() ? 3 : 1; }
  constexpr std::int64_t mixing() const { return streams + streams * streams; }
  void check(KernelId kernel) const;
};

struct HyperRead {
  static constexpr KernelId kId = KernelId::kHyperRead;
  HyperShape shape;
  Tensor x;            // [tokens, streams*hidden] fp32 or bf16
  Tensor products;     // [tokens, products()] fp32
  Tensor base, scale;  // [products()], [scales()] fp32
  Tensor y;            // output: [tokens, hidden], x's type
  Tensor mixing;       // output: [tokens, mixing()] fp32; absent if iterations is 0
  Tensor rstd;         // output: [tokens] fp32
  void check() const;
  double flops() const { return 0; }
};

struct HyperReadBackward {
  static constexpr KernelId kId = KernelId::kHyperReadBackward;
  HyperShape shape;
  Tensor x, products, base, scale, rstd;  // from the forward pass
  Tensor d_y;                             // [tokens, hidden]
  Tensor d_mixing;                        // [tokens, mixing()] fp32; absent: zero
  Tensor previous;                        // [tokens, streams*hidden] added to d_x, or absent; may be d_x
  Tensor d_x;         // output: [tokens, streams*hidden], without the gradient through products
  Tensor d_products;  // output: [tokens, products()] fp32
  // The contributions of each token to the gradients of base and scale; the caller sums them over tokens.
  Tensor d_base, d_scale;  // output: [tokens, products()], [tokens, scales()] fp32
  void check() const;
  double flops() const { return 0; }
};

struct HyperWrite {
  static constexpr KernelId kId = KernelId::kHyperWrite;
  HyperShape shape;  // iterations > 0
  Tensor x;          // [tokens, streams*hidden]
  Tensor out;        // [tokens, hidden]: output of the layer
  Tensor mixing;     // [tokens, mixing()] fp32
  Tensor z;          // output: [tokens, streams*hidden]
  void check() const;
  double flops() const { return 0; }
};

struct HyperWriteBackward {
  static constexpr KernelId kId = KernelId::kHyperWriteBackward;
  HyperShape shape;
  Tensor x, out, mixing;  // from the forward pass
  Tensor d_z;             // [tokens, streams*hidden]
  Tensor previous;        // [tokens, streams*hidden] added to d_x, or absent; may be d_x
  Tensor d_x;             // output: [tokens, streams*hidden]; must not share memory with d_z
  Tensor d_out;           // output: [tokens, hidden]
  Tensor d_mixing;        // output: [tokens, mixing()] fp32
  void check() const;
  double flops() const { return 0; }
};

}  // namespace primus::turbo
