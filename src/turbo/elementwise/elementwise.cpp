#include "turbo/elementwise/elementwise.h"

#include <cassert>

namespace primus::turbo {
namespace {

[[maybe_unused]] bool is_float(const Tensor& tensor) {
  return tensor.dtype == DType::kF32 || tensor.dtype == DType::kBF16;
}

}  // namespace

void Add::check() const {
  assert(is_float(a));
  assert(b.dtype == a.dtype && out.dtype == a.dtype);
  assert(b.shape == a.shape && out.shape == a.shape);
}

void Cast::check() const {
  assert(is_float(x) && is_float(out));
  assert(x.elements() == out.elements());
}

void Sum::check() const {
  assert(x.dtype == DType::kF32);
  assert(out.dtype == DType::kF32 && out.elements() == 1);
}

void CountNonFinite::check() const {
  assert(is_float(x));
  assert(out.dtype == DType::kI32 && out.elements() == 1);
}

void RandomNormal::check() const {
  assert(out.dtype == DType::kF32);
  assert(offset >= 0);
}

void Fill::check() const { assert(is_float(out)); }

void CopyRows::check() const {
  assert(from.dtype == to.dtype);
  assert(rows >= 0 && cols >= 0 && group_rows > 0);
  assert(from_stride >= cols && to_stride >= cols);
}

}  // namespace primus::turbo
