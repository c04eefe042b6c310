#include "turbo/indexer/indexer.h"

#include <algorithm>

#include "turbo/check.h"

namespace primus::turbo {
namespace {

bool is_bounds(const Tensor& bounds, std::int64_t tokens) {
  return bounds.absent() || is_vector(bounds, DType::kI32, tokens);
}

bool is_weighted_query(const Tensor& q, const Tensor& w, std::int64_t tokens, std::int64_t heads,
                       std::int64_t head_dim) {
  return is_float(q) && q.shape == Shape{tokens, heads * head_dim} &&
         (w.dtype == q.dtype || w.dtype == DType::kF32) && w.shape == Shape{tokens, heads};
}

bool is_selection(const Tensor& selected, std::int64_t tokens, std::int64_t top_k) {
  return selected.dtype == DType::kI32 && selected.shape == Shape{tokens, top_k};
}

}  // namespace

void IndexerShape::check(KernelId kernel) const {
  PRIMUS_CHECK(kernel, batch > 0 && seq_q > 0 && seq_k > 0 && heads > 0 && head_dim > 0);
  PRIMUS_CHECK(kernel, top_k > 0 && stride > 0 && q_first >= 0);
}

void IndexerSelect::check() const {
  shape.check(kId);
  PRIMUS_CHECK(kId, is_weighted_query(q, w, shape.tokens(), shape.heads, shape.head_dim));
  PRIMUS_CHECK(kId, k.dtype == q.dtype && k.shape == (Shape{shape.batch * shape.seq_k, shape.head_dim}));
  PRIMUS_CHECK(kId, is_bounds(first_row, shape.tokens()) && is_bounds(end_row, shape.tokens()));
  PRIMUS_CHECK(kId, is_selection(selected, shape.tokens(), shape.top_k));
}

double IndexerSelect::flops() const {
  double pairs = 0;
  for (std::int64_t i = 0; i < shape.seq_q; ++i) {
    pairs += static_cast<double>(std::min(shape.seq_k, (shape.q_first + i + 1) / shape.stride));
  }
  return 2 * pairs * static_cast<double>(shape.batch * shape.heads * shape.head_dim);
}

void PagedIndexerSelect::check() const {
  sequences.check(kId);
  PRIMUS_CHECK(kId, heads > 0 && head_dim > 0 && top_k > 0);
  PRIMUS_CHECK(kId, is_weighted_query(q, w, q.rows(), heads, head_dim));
  PRIMUS_CHECK(kId, pages.dtype == q.dtype && pages.cols() == head_dim);
  PRIMUS_CHECK(kId, is_selection(selected, q.rows(), top_k));
}

}  // namespace primus::turbo
