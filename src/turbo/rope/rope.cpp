#include "turbo/rope/rope.h"

#include <cassert>

namespace primus::turbo {

void Rope::check() const {
  assert(x.dtype == DType::kF32 || x.dtype == DType::kBF16);
  assert(y.dtype == x.dtype && y.shape == x.shape);
  assert(positions.dtype == DType::kI32 && positions.elements() == x.rows());
  assert(table.dtype == DType::kF32 && table.cols() == rotary_dim);
  assert(rotary_dim >= 0 && rotary_dim % 2 == 0);
  assert(rotary_begin >= 0 && rotary_begin + rotary_dim <= head_dim);
  assert(heads >= 0 && heads * head_dim <= x.cols());
}

}  // namespace primus::turbo
