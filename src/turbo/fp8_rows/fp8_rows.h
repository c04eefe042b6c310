// Rows of numbers as fp8 codes, for sending: e4m3 with one fp32 factor for each 128 elements of a row. This
// is the payload of DeepSeek-V3's dispatch (arXiv:2412.19437, section 3.3.2) and of DeepEP.
//
// An encoded row consists of bytes:
//
//   cols codes, padded to a multiple of 16 | ceil(cols / 128) factors, padded to a multiple of 16
//
// factor = (largest magnitude of the 128 elements) / 448, code = nearest(x / factor), decoded x = code *
// factor, rounded to the output's type. The error of an element is at most 1/16 of its magnitude or, if that
// is more, 2^-10 of the factor. If an element is infinite or NaN, all 128 decoded elements are NaN. Padding
// is undefined.
#pragma once

#include "tensor/tensor.h"
#include "turbo/fp8_linear/fp8_format.h"
#include "turbo/kernel_table.h"

namespace primus::turbo {

// The layout of encoded rows of `cols` elements.
struct Fp8RowLayout {
  static constexpr std::int64_t kGroup = 128;  // number of elements that share a factor
  static constexpr std::int64_t kAlignment = 16;
  std::int64_t cols;

  static constexpr std::int64_t padded(std::int64_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  constexpr std::int64_t groups() const { return (cols + kGroup - 1) / kGroup; }
  constexpr std::int64_t factors() const { return padded(cols); }  // the byte at which the factors begin
  constexpr std::int64_t bytes() const { return factors() + padded(groups() * 4); }
};

// out[r] = the encoded row x[rows[r]].
struct EncodeRows {
  static constexpr KernelId kId = KernelId::kEncodeRows;
  Tensor x;     // [tokens, cols] fp32 or bf16
  Tensor rows;  // [n, 1] int32; a value below 0: the row of `out` is not written
  Tensor out;   // [n, Fp8RowLayout::bytes()] uint8
  void check() const;
  double flops() const { return 0; }
};

// out[r] = the decoded row x[r].
struct DecodeRows {
  static constexpr KernelId kId = KernelId::kDecodeRows;
  Tensor x;     // [n, Fp8RowLayout::bytes()] uint8
  Tensor used;  // [n, 1] int32; a value below 0: the row of `out` is not written
  Tensor out;   // [n, cols] fp32 or bf16
  void check() const;
  double flops() const { return 0; }
};

}  // namespace primus::turbo
