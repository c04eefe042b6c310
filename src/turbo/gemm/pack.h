// Packing functions for the operand layouts of kernel.h.
#pragma once

#include <algorithm>
#include <cstdint>

#include "turbo/gemm/kernel.h"

namespace primus::turbo::gemm {

// The source rows of a packing function, which are consecutive or gathered. at() returns the rows of a block.
// ahead() also accepts indices after the last row. The address that ahead() returns may be prefetched, but
// must not be read.
template <class T>
struct RowsInOrder {
  const T* first;
  std::int64_t ld;

  static constexpr bool kPicked = false;
  const T* operator[](std::int64_t row) const { return first + row * ld; }
  const T* ahead(std::int64_t row) const { return first + row * ld; }
  RowsInOrder at(std::int64_t row, std::int64_t column) const { return {first + row * ld + column, ld}; }
};

template <class T>
struct PickedRows {
  const T* source;
  std::int64_t ld;
  const std::int32_t* rows;
  std::int64_t count;

  static constexpr bool kPicked = true;
  const T* operator[](std::int64_t row) const { return source + rows[row] * ld; }
  const T* ahead(std::int64_t row) const { return source + rows[std::min(row, count - 1)] * ld; }
  PickedRows at(std::int64_t row, std::int64_t column) const {
    return {source + column, ld, rows + row, count - row};
  }
};

// Calls body(rows) with the rows of `call`: consecutive rows, or the `count` rows that its index array
// selects.
template <class T, class Body>
void with_rows(const PackCall& call, std::int64_t count, Body body) {
  const auto* source = static_cast<const T*>(call.source);
  if (call.rows) {
    body(PickedRows<T>{source, call.ld, call.rows, count});
  } else {
    body(RowsInOrder<T>{source, call.ld});
  }
}

// Returns packers for fp32 operands from fp32 or bf16 memory, on any CPU. The name has the tile shape (mr,
// nr, kb).
OperandPackers f32_packers_64x64x64(DType source);
OperandPackers f32_packers_4x8x64(DType source);
// Returns packers for fp32 operands from fp32 memory. The packers need avx512bw.
OperandPackers f32_packers_64x64x64_avx512();

// These functions return packers for bf16 operands in VNNI order from bf16 memory. The packers need avx512bw.
OperandPackers bf16_packers_32x32x32();
OperandPackers bf16_packers_64x64x64();

}  // namespace primus::turbo::gemm
