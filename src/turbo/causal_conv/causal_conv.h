// Short convolutions: each channel by itself is convolved over the last `width` tokens,
//   c[t] = bias + sum over d < width of weight[width - 1 - d] * u[t - d].
// Two forms, each one kernel, because all of it is bound by memory: what lies between is never stored.
//   kGated  that of LFM2 (Liquid AI 2025), gated before and after: u = B * x, y = C * c, with B, C and x side
//   by
//           side in one projection
//   kSilu   that in front of linear attention (Qwen3-Next, Kimi Linear): u = x, y = silu(c)
// Sums are in fp32; results are rounded once.
//
// A token sees tokens of its own document alone, those from first_key on (turbo/attention/attention.h).
//
// Rows are cut into segments: runs of neighbouring tokens of one sequence. Where a segment begins inside its
// sequence, as on context ranks, what is in front of it comes from elsewhere: `before` holds the last
// width - 1 inputs u in front of each segment, and gradients of such inputs come and go likewise.
#pragma once

#include <cstdint>

#include "tensor/tensor.h"
#include "turbo/attention/paged_attention.h"
#include "turbo/kernel_table.h"

namespace primus::turbo {

struct CausalConvShape {
  static constexpr std::int64_t kMaxWidth = 16;

  std::int64_t segments, tokens;  // how many, and tokens of each
  std::int64_t channels, width;   // width: from 1 to kMaxWidth
  // Position, within its sequence, of the first token of segments 0, 2, 4, ..., and of segments 1, 3, 5, ...
  std::int64_t first_of_even = 0, first_of_odd = 0;
  enum class Form : std::uint8_t { kGated, kSilu } form = Form::kGated;

  std::int64_t rows() const { return segments * tokens; }
  // Of a row that goes in.
  std::int64_t columns() const { return columns(form, channels); }
  static std::int64_t columns(Form form, std::int64_t channels) {
    return form == Form::kGated ? 3 * channels : channels;
  }
  Shape edge() const { return {segments * (width - 1), channels}; }  // of `before` and its like
  void check(KernelId kernel) const;
};

struct CausalConvForward {
  static constexpr KernelId kId = KernelId::kCausalConvForward;
  CausalConvShape shape;
  Tensor bcx;        // [rows, columns]: B, C, x; of kSilu x alone
  Tensor weight;     // [channels, width], bcx's type: the last column meets the token itself
  Tensor bias;       // [channels] fp32; absent: none
  Tensor before;     // edge() fp32; absent: all segments begin at position 0
  Tensor first_key;  // [rows] int32; absent: 0
  Tensor y;          // [rows, channels] out
  void check() const;
  double flops() const { return 0; }
};

struct CausalConvBackwardInput {
  static constexpr KernelId kId = KernelId::kCausalConvBackwardInput;
  CausalConvShape shape;
  Tensor bcx, weight, bias, before, first_key;  // of the forward
  Tensor d_y;                                   // [rows, channels]
  // edge() fp32: what tokens behind each segment add to the gradients of its last width - 1 inputs; absent:
  // nothing.
  Tensor d_after;
  Tensor d_bcx;  // [rows, columns] out; no operand's memory
  void check() const;
  double flops() const { return 0; }
};

// d_weight (+)= the gradient of the weights, or of the bias, in an order that does not depend on the number
// of threads.
struct CausalConvBackwardWeight {
  static constexpr KernelId kId = KernelId::kCausalConvBackwardWeight;
  CausalConvShape shape;
  Tensor bcx, before, first_key;  // of the forward
  Tensor weight, bias;            // of kSilu; absent without it
  Tensor d_y;                     // [rows, channels]
  bool of_bias;
  Tensor d_weight;  // [channels, width], of the bias [channels]; fp32, or bf16 that is rounded once
  bool accumulate;
  Tensor workspace;
  void check() const;
  double flops() const { return 0; }
};

// The last width - 1 inputs u of each segment: what is `before` the segment behind it.
struct CausalConvEdge {
  static constexpr KernelId kId = KernelId::kCausalConvEdge;
  CausalConvShape shape;  // tokens >= width - 1
  Tensor bcx;             // [rows, columns]
  Tensor edge;            // edge() fp32 out
  void check() const;
  double flops() const { return 0; }
};

// The gradients of `before`: `d_after` of the segment in front.
struct CausalConvBackwardEdge {
  static constexpr KernelId kId = KernelId::kCausalConvBackwardEdge;
  CausalConvShape shape;
  Tensor bcx, weight, first_key;  // of the forward
  Tensor bias, before;            // of kSilu, whose first tokens' sums they are in; absent without it
  Tensor d_y;                     // [rows, channels]
  Tensor d_edge;                  // edge() fp32 out
  void check() const;
  double flops() const { return 0; }
};

// Generation: the new tokens of many sequences. The last inputs u of each sequence lie in a ring, where
// position p has row p % ring, and those of the new tokens are put there. So the same pass may run again, and
// a sequence may lose its last tokens, as long as the ring holds the width - 1 inputs before the next one.
// A sequence that begins anew needs no clearing.
struct CachedCausalConv {
  static constexpr KernelId kId = KernelId::kCachedCausalConv;
  PagedSequences sequences;  // the pages are not looked at
  std::int64_t width;
  CausalConvShape::Form form;
  Tensor bcx;     // [T, columns]
  Tensor weight;  // [channels, width], bcx's type
  Tensor bias;    // [channels] fp32; absent: none
  Tensor ring;    // [sequences, ring, channels] fp32, ring >= width; read and written
  Tensor y;       // [T, channels] out; zero for rows that belong to no sequence
  void check() const;
  double flops() const { return 0; }
};

}  // namespace primus::turbo
