#include "turbo/linear/added_apart.h"

#include <algorithm>

namespace primus::turbo {
namespace {

constexpr std::int64_t kLine = 256;

Tensor rows_of(const Tensor& tensor, std::int64_t begin, std::int64_t end) {
  return tensor.reshaped({tensor.rows(), tensor.cols()}).slice(begin, end);
}

}  // namespace

bool is_added_apart(const Gemm& call) {
  return call.accumulate && size_of(call.c.dtype) == 2 && call.role != GemmRole::kWeightGradient &&
         call.a.dtype == call.b.dtype && call.a.elements() > 0 && call.b.elements() > 0 &&
         call.c.elements() > 0;
}

std::int64_t rows_added_at_once(const Gemm& call, std::int64_t max_bytes) {
  const std::int64_t fit = max_bytes / (call.c.cols() * size_of(DType::kF32));
  return std::min(call.c.rows(), std::max(fit / kAddedRows, std::int64_t{1}) * kAddedRows);
}

std::int64_t added_bytes(const Gemm& call, std::int64_t rows) {
  const std::int64_t bytes = rows * call.c.cols() * size_of(DType::kF32);
  return (bytes + kLine - 1) / kLine * kLine;
}

Gemm product_of_rows(const Gemm& call, std::int64_t begin, std::int64_t end, std::int64_t reserved) {
  Gemm part = call;
  part.a = rows_of(call.a, begin, end);
  part.c = Tensor(call.workspace.data, DType::kF32, {end - begin, call.c.cols()});
  part.accumulate = false;
  part.workspace = Tensor(call.workspace.from(reserved).data, DType::kU8,
                          {std::max(call.workspace.bytes() - reserved, std::int64_t{0})});
  return part;
}

Tensor rows_of_result(const Gemm& call, std::int64_t begin, std::int64_t end) {
  return rows_of(call.c, begin, end);
}

}  // namespace primus::turbo
