// Short convolutions: each channel is convolved separately over the last `width` tokens,
//   c[t] = bias + sum over d < width of weight[width - 1 - d] * u[t - d].
// There are two forms. Each form has one kernel. The kernel stores no intermediate values, because memory
// bandwidth is the limit.
//   kGated  LFM2 (Liquid AI 2025), gated before and after: u = B * x, y = C * c,
//           with B, C and x in adjacent columns of one projection
//   kSilu   before linear attention (Qwen3-Next, Kimi Linear): u = x, y = silu(c)
// Sums are in fp32; results are rounded once.
//
// A token sees only tokens of its own document, from first_key on (turbo/attention/attention.h).
//
// Rows are divided into segments: consecutive tokens of one sequence. With context parallelism, a segment may
// begin inside its sequence; the preceding inputs then come from another rank. `before` holds the last width
// - 1 inputs u before each segment. Gradients of these inputs are exchanged in the same layout.
#pragma once

#include <cstdint>

#include "tensor/tensor.h"
#include "turbo/attention/paged_attention.h"
#include "turbo/kernel_table.h"

namespace primus::turbo {

struct CausalConvShape {
  static constexpr std::int64_t kMaxWidth = 16;

  std::int64_t segments, tokens;  // number of segments, and tokens per segment
  std::int64_t channels, width;   // width: from 1 to kMaxWidth
  // Position, within its sequence, of the first token of segments 0, 2, 4, ..., and of segments 1, 3, 5, ...
  std::int64_t first_of_even = 0, first_of_odd = 0;
  enum class Form : std::uint8_t { kGated, kSilu } form = Form::kGated;

  std::int64_t rows() const { return segments * tokens; }
  // Returns the number of columns of an input row.
  std::int64_t columns() const { return columns(form, channels); }
  static std::int64_t columns(Form form, std::int64_t channels) {
    return form == Form::kGated ? 3 * channels : channels;
  }
  Shape edge() const { return {segments * (width - 1), channels}; }  // shape of `before` and of its gradients
  void check(KernelId kernel) const;
};

struct CausalConvForward {
  static constexpr KernelId kId = KernelId::kCausalConvForward;
  CausalConvShape shape;
  Tensor bcx;     // [rows, columns]: B, C, x; for kSilu only x
  Tensor weight;  // [channels, width], bcx's type; the last column multiplies the input of the token itself
  Tensor bias;    // [channels] fp32; absent: no bias
  Tensor before;  // edge() fp32; absent: all segments begin at position 0
  Tensor first_key;  // [rows] int32: the first position that a token sees; absent: 0
  Tensor y;          // output: [rows, channels]
  void check() const;
  double flops() const { return 0; }
};

struct CausalConvBackwardInput {
  static constexpr KernelId kId = KernelId::kCausalConvBackwardInput;
  CausalConvShape shape;
  Tensor bcx, weight, bias, before, first_key;  // as in the forward pass
  Tensor d_y;                                   // [rows, channels]
  // edge() fp32: for the last width - 1 inputs of each segment, the gradients that come from tokens after the
  // segment; absent: zero.
  Tensor d_after;
  Tensor d_bcx;  // output: [rows, columns]; must not share memory with an input
  void check() const;
  double flops() const { return 0; }
};

// d_weight (+)= the gradient of the weights, or of the bias if of_bias is set. The order of the sum does not
// depend on the number of threads.
struct CausalConvBackwardWeight {
  static constexpr KernelId kId = KernelId::kCausalConvBackwardWeight;
  CausalConvShape shape;
  Tensor bcx, before, first_key;  // as in the forward pass
  Tensor weight, bias;            // for kSilu only; absent otherwise
  Tensor d_y;                     // [rows, channels]
  bool of_bias;
  Tensor d_weight;  // [channels, width], or [channels] for the bias; fp32, or bf16 rounded once
  bool accumulate;
  Tensor workspace;
  void check() const;
  double flops() const { return 0; }
};

// Copies the last width - 1 inputs u of each segment. These inputs are `before` of the next segment.
struct CausalConvEdge {
  static constexpr KernelId kId = KernelId::kCausalConvEdge;
  CausalConvShape shape;  // tokens >= width - 1
  Tensor bcx;             // [rows, columns]
  Tensor edge;            // output: edge() fp32
  void check() const;
  double flops() const { return 0; }
};

// Computes the gradients of `before`. These gradients are `d_after` of the preceding segment.
struct CausalConvBackwardEdge {
  static constexpr KernelId kId = KernelId::kCausalConvBackwardEdge;
  CausalConvShape shape;
  Tensor bcx, weight, first_key;  // as in the forward pass
  Tensor bias, before;            // only for kSilu (the gradient of silu needs the sums); otherwise absent
  Tensor d_y;                     // [rows, channels]
  Tensor d_edge;                  // output: edge() fp32
  void check() const;
  double flops() const { return 0; }
};

// Processes the new tokens of many sequences, for generation. The last inputs u of each sequence are in a
// ring buffer: the input at position p is in row p % ring. The call writes the inputs of the new tokens to
// the ring. The caller may repeat a pass or truncate a sequence if the ring still holds the width - 1 inputs
// before the next token. A sequence may restart at position 0 without clearing the ring.
struct CachedCausalConv {
  static constexpr KernelId kId = KernelId::kCachedCausalConv;
  PagedSequences sequences;  // the pages are not used
  std::int64_t width;
  CausalConvShape::Form form;
  Tensor bcx;     // [T, columns]
  Tensor weight;  // [channels, width], bcx's type
  Tensor bias;    // [channels] fp32; absent: no bias
  Tensor ring;    // [sequences, ring, channels] fp32, ring >= width; read and written
  Tensor y;       // output: [T, channels]; zero for rows that belong to no sequence
  void check() const;
  double flops() const { return 0; }
};

}  // namespace primus::turbo
