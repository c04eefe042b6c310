#include "turbo/embedding/embedding.h"

#include <cassert>

namespace primus::turbo {

void EmbeddingForward::check() const {
  assert(tokens.dtype == DType::kI32);
  assert(table.dtype == DType::kF32 || table.dtype == DType::kBF16);
  assert(out.dtype == table.dtype && out.cols() == table.cols() && out.rows() == tokens.elements());
}

void EmbeddingBackwardWeight::check() const {
  assert(tokens.dtype == DType::kI32);
  assert(d_out.dtype == DType::kF32 || d_out.dtype == DType::kBF16);
  assert(d_table.dtype == DType::kF32);
  assert(d_out.cols() == d_table.cols() && d_out.rows() == tokens.elements());
}

}  // namespace primus::turbo
