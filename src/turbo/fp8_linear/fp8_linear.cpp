#include "turbo/fp8_linear/fp8_linear.h"

#include "base/error.h"
#include "turbo/check.h"

namespace primus::turbo {
namespace {

// Returns whether rows of codes can be read and written 16 bytes at a time.
bool is_aligned_to_16(const Tensor& tensor) {
  return reinterpret_cast<std::uintptr_t>(tensor.data) % 16 == 0;
}

bool is_matrix(const Tensor& tensor, std::int64_t rows, std::int64_t cols) {
  return tensor.rows() == rows && tensor.cols() == cols;
}

}  // namespace

void check_fp8_extents(std::int64_t rows, std::int64_t cols) {
  // Tensor cores read fp8 operands 16 bytes at a time.
  constexpr std::int64_t kMultiple = 16;
  if (rows > 0 && cols > 0 && rows % kMultiple == 0 && cols % kMultiple == 0) return;
  throw invalid("fp8 products need matrix dimensions that are multiples of " + std::to_string(kMultiple) +
                    ", not " + std::to_string(rows) + " x " + std::to_string(cols),
                "choose such sizes, or compute in bf16");
}

void QuantizeFp8::check() const {
  PRIMUS_CHECK(kId, is_float(x) && x.shape.rank() >= 1 && is_vector(scales, DType::kF32, 2));
  PRIMUS_CHECK(kId, !codes.absent() || !transposed.absent());
  PRIMUS_CHECK(kId, codes.absent() || (is_fp8(codes.dtype) && is_matrix(codes, x.rows(), x.cols())));
  PRIMUS_CHECK(
      kId, transposed.absent() || (is_fp8(transposed.dtype) && is_matrix(transposed, x.cols(), x.rows())));
  PRIMUS_CHECK(kId, codes.absent() || transposed.absent() || codes.dtype == transposed.dtype);
  PRIMUS_CHECK(kId, is_aligned_to_16(x) && is_aligned_to_16(codes) && is_aligned_to_16(transposed) &&
                        is_aligned_to_16(scales));
  PRIMUS_CHECK(kId, largest.absent() || (known && is_vector(largest, DType::kI32, 1)));
  check_fp8_extents(x.rows(), x.cols());
}

void UpdateFp8Scales::check() const {
  PRIMUS_CHECK(kId, largest.dtype == DType::kI32 && largest.shape.rank() == 2 && largest.cols() == kTensors);
  PRIMUS_CHECK(kId, history.dtype == DType::kF32 && history.cols() > 0 && history.shape.rank() == 3 &&
                        history.rows() == largest.elements());
  PRIMUS_CHECK(kId, is_vector(scales, DType::kF32, kPlace * largest.elements()));
  PRIMUS_CHECK(kId, is_vector(norm, DType::kF32, 1) && is_fp8(gradients) && margin >= 0);
}

void Fp8Gemm::check() const {
  PRIMUS_CHECK(kId, is_fp8(a.dtype) && is_fp8(b.dtype) && is_float(c));
  PRIMUS_CHECK(kId, a.dtype == DType::kF8E4M3 || b.dtype == DType::kF8E4M3);
  PRIMUS_CHECK(kId, a.cols() == b.cols() && is_matrix(c, a.rows(), b.rows()));
  PRIMUS_CHECK(kId, is_vector(a_scales, DType::kF32, 2) && is_vector(b_scales, DType::kF32, 2));
  PRIMUS_CHECK(kId, is_aligned_to_16(a) && is_aligned_to_16(b) && is_aligned_to_16(c));
  PRIMUS_CHECK(kId, is_aligned_to_16(a_scales) && is_aligned_to_16(b_scales));
  check_fp8_extents(a.rows(), a.cols());
  check_fp8_extents(b.rows(), b.cols());
}

double Fp8Gemm::flops() const {
  return 2 * static_cast<double>(a.elements()) * static_cast<double>(b.rows());
}

}  // namespace primus::turbo
