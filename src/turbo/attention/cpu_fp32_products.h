// Products of small fp32 matrices in L1 or L2.
#pragma once

#include <cstdint>

namespace primus::turbo::PRIMUS_CPU_ISA {

#if defined(__AVX512F__)
constexpr int kFp32Lanes = 16;
#elif defined(__AVX2__)
constexpr int kFp32Lanes = 8;
#else
constexpr int kFp32Lanes = 4;
#endif

// Element (i, p) of the left operand is data[i * row + p * column]. Any strides are allowed, because elements
// are broadcast one at a time.
struct LeftOperand {
  const float* data;
  std::int64_t row, column;
};

// C[m, n] = A[m, k] · B[k, n], or C + A · B. n is a multiple of kFp32Lanes. Each product is summed separately
// before it is added to C: short chains of additions keep rounding errors small.
void multiply(std::int64_t m, std::int64_t n, std::int64_t k, LeftOperand a, const float* b, std::int64_t ldb,
              float* c, std::int64_t ldc);
void multiply_accumulate(std::int64_t m, std::int64_t n, std::int64_t k, LeftOperand a, const float* b,
                         std::int64_t ldb, float* c, std::int64_t ldc);

}  // namespace primus::turbo::PRIMUS_CPU_ISA
