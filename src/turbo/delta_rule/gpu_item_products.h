// Products of small matrices of the delta rule, one per item, on GPUs.
#pragma once

#include "turbo/gpu/gemm_tile.h"

namespace primus::turbo::PRIMUS_GPU {

// One matrix per item, and the strides with which a product reads the matrix.
template <class T>
struct ItemMatrix {
  T* data;
  std::int64_t row, col, size;  // strides of rows, columns and items, in elements
  ItemMatrix transposed() const { return {data, col, row, size}; }
};
template <class T>
ItemMatrix<T> matrix(T* data, std::int64_t rows, std::int64_t cols) {
  return {data, cols, 1, rows * cols};
}

// c [m, n] (+)= a [m, k] · b [k, n] for all items. Rows of c have n elements.
template <class T>
void multiply_items(Context& context, std::int64_t items, std::int64_t m, std::int64_t n, std::int64_t k,
                    const ItemMatrix<T>& a, const ItemMatrix<T>& b, float* c, bool accumulate = false) {
  run_product(context, TileProduct<T, T, float>{m,     n,          k,       a.data, b.data,  c,      a.row,
                                                a.col, b.col,      b.row,   n,      items,   a.size, b.size,
                                                m * n, accumulate, nullptr, false,  nullptr, nullptr});
}

}  // namespace primus::turbo::PRIMUS_GPU
