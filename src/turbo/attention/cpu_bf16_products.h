// Products of bf16 matrices with fp32 sums on the units that CPUs have for them: AMX tiles, or vdpbf16ps. For
// tiles that lie in L1 or L2; operands are packed in blocks of 32 (Bf16Tiles packs them).
#pragma once

#include <cstdint>

namespace primus::turbo::PRIMUS_CPU_ISA {

constexpr std::int64_t kBf16Block = 32;

// C = (C +) A · B with A of `row_blocks` strips of 32 rows, B of `col_blocks` strips of 32 columns, and k =
// 32 * k_blocks. A strip of A is [k / 32][32 rows][32 k]; a strip of B is [k / 2][32 columns][2].
struct Bf16Product {
  const std::uint16_t *a, *b;
  std::int64_t a_strip, b_strip;  // elements from one strip to the next
  float* c;
  std::int64_t ldc;             // floats from row to row inside a block
  std::int64_t c_rows, c_cols;  // floats from a block to the one below it, and to the one beside it
  std::int64_t row_blocks, col_blocks, k_blocks;
};

struct Bf16Unit {
  void (*begin)();  // around the products of a work item; leaves no state behind after end()
  void (*end)();
  void (*multiply)(const Bf16Product& product);
  void (*multiply_accumulate)(const Bf16Product& product);
};

// Null when this CPU multiplies bf16 no faster than fp32.
const Bf16Unit* bf16_unit();

}  // namespace primus::turbo::PRIMUS_CPU_ISA
