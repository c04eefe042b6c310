#include "turbo/elementwise/elementwise.h"

#include <algorithm>

#include "turbo/check.h"

namespace primus::turbo {

void Add::check() const {
  PRIMUS_CHECK(kId, is_float(a));
  PRIMUS_CHECK(kId, b.dtype == a.dtype && out.dtype == a.dtype);
  PRIMUS_CHECK(kId, out.shape == a.shape);
  PRIMUS_CHECK(kId, ranks > 1 && ranks <= kMaxRanks && rank >= 0 && rank < ranks);
  PRIMUS_CHECK(kId,
               is_pair() ? b.shape == a.shape : b.elements() == (by_rank ? ranks : ranks - 1) * a.elements());
}

void Cast::check() const {
  PRIMUS_CHECK(kId, is_operand(x) && is_operand(out));
  PRIMUS_CHECK(kId, x.elements() == out.elements());
}

void RoundMasters::check() const {
  const std::int64_t n = masters.elements();
  PRIMUS_CHECK(kId, is_vector(masters, DType::kF32, n) && is_vector(working, DType::kBF16, n));
  PRIMUS_CHECK(kId, remainder.absent() || is_vector(remainder, DType::kI16, n));
}

void Sum::check() const {
  PRIMUS_CHECK(kId, x.dtype == DType::kF32);
  PRIMUS_CHECK(kId, out.dtype == DType::kF32 && out.elements() == 1);
}

void CountNonFinite::check() const {
  PRIMUS_CHECK(kId, is_float(x));
  PRIMUS_CHECK(kId, out.dtype == DType::kI32 && out.elements() == 1);
}

void RandomNormal::check() const {
  PRIMUS_CHECK(kId, out.dtype == DType::kF32);
  PRIMUS_CHECK(kId, offset >= 0 && length >= 0 && stride >= 0);
  PRIMUS_CHECK(kId, length == 0 ? stride == 0 : out.elements() % length == 0);
}

void Fill::check() const { PRIMUS_CHECK(kId, is_float(out)); }

void Scale::check() const {
  PRIMUS_CHECK(kId, is_float(x));
  PRIMUS_CHECK(kId, same(out, x));
}

void LogUniform::check() const {
  PRIMUS_CHECK(kId, x.dtype == DType::kF32);
  PRIMUS_CHECK(kId, low > 0 && high > low);
}

CopyRows CopyRows::strided(const Tensor& from, const Tensor& to, std::int64_t rows, std::int64_t cols,
                           std::int64_t from_stride, std::int64_t to_stride) {
  return {.from = from,
          .to = to,
          .rows = rows,
          .cols = cols,
          .from_stride = from_stride,
          .to_stride = to_stride,
          .group_rows = std::max<std::int64_t>(rows, 1),
          .to_group_stride = 0};
}

void CopyRows::check() const {
  PRIMUS_CHECK(kId, from.dtype == to.dtype && (!add || is_float(to)));
  PRIMUS_CHECK(kId, rows >= 0 && cols >= 0 && group_rows > 0);
  PRIMUS_CHECK(kId, from_stride >= cols && to_stride >= cols);
}

}  // namespace primus::turbo
