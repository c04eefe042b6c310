#include "turbo/fp8_rows/fp8_rows.h"

#include "turbo/check.h"

namespace primus::turbo {
namespace {

bool is_list_of_rows(const Tensor& list, std::int64_t rows) { return is_vector(list, DType::kI32, rows); }

// Returns whether `encoded` has the shape and the alignment of encoded rows of `cols` elements.
bool is_encoded(const Tensor& encoded, std::int64_t cols) {
  return encoded.dtype == DType::kU8 && encoded.shape.rank() == 2 && cols > 0 &&
         encoded.cols() == Fp8RowLayout{cols}.bytes() &&
         reinterpret_cast<std::uintptr_t>(encoded.data) % Fp8RowLayout::kAlignment == 0;
}

}  // namespace

void EncodeRows::check() const {
  PRIMUS_CHECK(kId, is_float(x) && x.shape.rank() == 2 && is_encoded(out, x.cols()));
  PRIMUS_CHECK(kId, is_list_of_rows(rows, out.rows()));
}

void DecodeRows::check() const {
  PRIMUS_CHECK(kId, is_float(out) && out.shape.rank() == 2 && is_encoded(x, out.cols()));
  PRIMUS_CHECK(kId, x.rows() == out.rows() && is_list_of_rows(used, out.rows()));
}

}  // namespace primus::turbo
