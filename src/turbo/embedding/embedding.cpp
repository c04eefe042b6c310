#include "turbo/embedding/embedding.h"

#include "turbo/check.h"

namespace primus::turbo {
namespace {

bool is_part(const Tensor& table, std::int64_t first, std::int64_t vocabulary) {
  return vocabulary == 0 ? first == 0 : first >= 0 && first + table.rows() <= vocabulary;
}

}  // namespace

void EmbeddingForward::check() const {
  PRIMUS_CHECK(kId, tokens.dtype == DType::kI32);
  PRIMUS_CHECK(kId, is_float(table));
  PRIMUS_CHECK(kId,
               out.dtype == table.dtype && out.cols() == table.cols() && out.rows() == tokens.elements());
  PRIMUS_CHECK(kId, is_part(table, first, vocabulary));
}

void EmbeddingBackwardWeight::check() const {
  PRIMUS_CHECK(kId, tokens.dtype == DType::kI32);
  PRIMUS_CHECK(kId, is_float(d_out));
  PRIMUS_CHECK(kId, is_float(d_table));
  PRIMUS_CHECK(kId, d_out.cols() == d_table.cols() && d_out.rows() == tokens.elements());
  PRIMUS_CHECK(kId, is_part(d_table, first, vocabulary));
}

}  // namespace primus::turbo
