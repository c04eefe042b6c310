#include "turbo/embedding/embedding.h"

#include "turbo/check.h"

namespace primus::turbo {

void EmbeddingForward::check() const {
  PRIMUS_CHECK(kId, tokens.dtype == DType::kI32);
  PRIMUS_CHECK(kId, is_float(table));
  PRIMUS_CHECK(kId,
               out.dtype == table.dtype && out.cols() == table.cols() && out.rows() == tokens.elements());
}

void EmbeddingBackwardWeight::check() const {
  PRIMUS_CHECK(kId, tokens.dtype == DType::kI32);
  PRIMUS_CHECK(kId, is_float(d_out));
  PRIMUS_CHECK(kId, d_table.dtype == DType::kF32);
  PRIMUS_CHECK(kId, d_out.cols() == d_table.cols() && d_out.rows() == tokens.elements());
}

}  // namespace primus::turbo
