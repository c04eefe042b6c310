// Products of bf16 matrices with fp32 sums on the CPU's bf16 units: AMX tiles, or vdpbf16ps. Tiles should be
// in L1 or L2. Operands are packed in blocks of 32 (by Bf16Tiles).
#pragma once

#include <cstdint>

namespace primus::turbo::PRIMUS_CPU_ISA {

constexpr std::int64_t kBf16Block = 32;

// C = A · B or C + A · B, with A of `row_blocks` strips of 32 rows, B of `col_blocks` strips of 32 columns,
// and k = 32 * k_blocks. A strip of A is [k / 32][32 rows][32 k]; a strip of B is [k / 2][32 columns][2].
struct Bf16Product {
  const std::uint16_t *a, *b;
  std::int64_t a_strip, b_strip;  // strides between strips, in elements
  float* c;
  std::int64_t ldc;             // stride between rows within a block, in floats
  std::int64_t c_rows, c_cols;  // strides to the block below and to the block on the right, in floats
  std::int64_t row_blocks, col_blocks, k_blocks;
};

struct Bf16Unit {
  void (*begin)();  // call before and after the products of a work item; end() resets the CPU's tile state
  void (*end)();
  void (*multiply)(const Bf16Product& product);
  void (*multiply_accumulate)(const Bf16Product& product);
};

// Returns null if this CPU multiplies bf16 no faster than fp32.
const Bf16Unit* bf16_unit();

}  // namespace primus::turbo::PRIMUS_CPU_ISA
