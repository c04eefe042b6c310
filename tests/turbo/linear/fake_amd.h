// What a test tells the stand-ins for hipBLASLt and rocBLAS, and what they tell it. Each of them is a library
// of its own that is opened like the real one, computes on the host, and is as strict as it can be about what
// it is given. One test at a time.
#pragma once

#include <cstdint>
#include <cstring>

#include "tensor/bfloat16.h"
#include "tensor/dtype.h"
#include "tensor/float16.h"

namespace primus::turbo::test {

// Found in each library as "fake_amd_state".
struct FakeAmd {
  // What the test sets.
  int version = 100100;  // of hipBLASLt
  int start_status = 0;  // what creating a handle answers
  int algorithms = 3;    // for every product; 0: hipBLASLt has none
  bool trials = false;   // products compute nothing, and the first `slow` algorithms take long
  int slow = 0;
  int status = 0;           // what a product answers
  int workspace = 1 << 20;  // bytes that the even algorithms need
  // What the library says.
  char error[200] = "";          // the first thing that was wrong
  int handles = 0, objects = 0;  // that are alive
  int questions = 0, products = 0;
  int last_algorithm = -1;
  void *stream = nullptr, *workspace_memory = nullptr;
  bool atomics = true;  // of rocBLAS
};

// A matrix by columns, of fp32, bf16 or fp16, as a library sees it.
struct FakeMatrix {
  DType type;
  std::int64_t rows, cols, leading;
  void* data;

  std::int64_t at(std::int64_t row, std::int64_t col) const { return col * leading + row; }
  double get(std::int64_t row, std::int64_t col) const {
    if (type == DType::kF32) return static_cast<const float*>(data)[at(row, col)];
    if (type == DType::kF16) return static_cast<float>(static_cast<const Float16*>(data)[at(row, col)]);
    return static_cast<float>(static_cast<const BFloat16*>(data)[at(row, col)]);
  }
  void set(std::int64_t row, std::int64_t col, double value) const {
    if (type == DType::kF32) {
      static_cast<float*>(data)[at(row, col)] = static_cast<float>(value);
    } else if (type == DType::kF16) {
      static_cast<Float16*>(data)[at(row, col)] = Float16(static_cast<float>(value));
    } else {
      static_cast<BFloat16*>(data)[at(row, col)] = BFloat16(static_cast<float>(value));
    }
  }
};

// d = alpha * op(a) * op(b) + beta * c. False where their sizes do not fit.
inline bool fake_multiply(const FakeMatrix& a, bool a_transposed, const FakeMatrix& b, bool b_transposed,
                          const FakeMatrix& c, const FakeMatrix& d, double alpha, double beta) {
  const std::int64_t m = a_transposed ? a.cols : a.rows, k = a_transposed ? a.rows : a.cols;
  const std::int64_t n = b_transposed ? b.rows : b.cols;
  if ((b_transposed ? b.cols : b.rows) != k) return false;
  for (const FakeMatrix* result : {&c, &d}) {
    if (result->rows != m || result->cols != n) return false;
  }
  for (const FakeMatrix* matrix : {&a, &b, &c, &d}) {
    if (matrix->leading < matrix->rows || !matrix->data) return false;
  }
  for (std::int64_t j = 0; j < n; ++j) {
    for (std::int64_t i = 0; i < m; ++i) {
      double sum = 0;
      for (std::int64_t p = 0; p < k; ++p)
        sum += (a_transposed ? a.get(p, i) : a.get(i, p)) * (b_transposed ? b.get(j, p) : b.get(p, j));
      // As BLAS says: without beta, c is not read.
      d.set(i, j, alpha * sum + (beta == 0 ? 0 : beta * c.get(i, j)));
    }
  }
  return true;
}

}  // namespace primus::turbo::test
