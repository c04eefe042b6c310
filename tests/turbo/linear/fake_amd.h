// The state that a test shares with fake hipBLASLt and rocBLAS libraries. Each fake is a separate library,
// which is opened like the real library. The fake libraries compute on the host and check their arguments
// strictly. The state is global, so run one test at a time.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>

#include "tensor/bfloat16.h"
#include "tensor/dtype.h"
#include "tensor/float16.h"

namespace primus::turbo::test {

// Each fake library exports its state as "fake_amd_state".
struct FakeAmd {
  // These members are set by the test.
  int version = 100100;  // version of hipBLASLt
  int start_status = 0;  // the status of creating a handle
  int algorithms = 3;    // number of algorithms per product; 0: hipBLASLt has no algorithm
  bool trials = false;   // true: products compute nothing, and the first `slow` algorithms take longer
  int slow = 0;
  int status = 0;           // the status of a product
  int workspace = 1 << 20;  // bytes that algorithms with even numbers need
  // These members are set by the library.
  char error[200] = "";          // describes the first wrong call
  int handles = 0, objects = 0;  // numbers of existing handles and objects
  int questions = 0, products = 0;
  int last_algorithm = -1;
  void *stream = nullptr, *workspace_memory = nullptr;
  bool atomics = true;  // rocBLAS only
};

// The only handle of a fake library. The handle also records the first misuse of the library. Functions
// return the library's statuses; 0 is success.
struct FakeHandle {
  FakeAmd& state;
  int misused;  // the status of a misuse

  int fail(const std::string& why) const {
    if (!state.error[0]) std::strncpy(state.error, why.c_str(), sizeof(state.error) - 1);
    return misused;
  }
  bool is(const void* handle) const { return handle == this; }
  int create(void** handle) {
    if (state.start_status != 0) return state.start_status;
    ++state.handles;
    *handle = this;
    return 0;
  }
  int destroy(const void* handle) const {
    if (!is(handle)) return fail("no handle is destroyed");
    --state.handles;
    return 0;
  }
};

// Returns the value of an fp8 code by the definitions of the formats, with `digits` mantissa bits. `fnuz`:
// the format of gfx942.
inline double fp8_value(std::uint8_t code, int digits, bool fnuz) {
  const bool finite_only = digits == 3;  // OCP's e4m3 has no infinity
  const int bias = (digits == 3 ? 7 : 15) + (fnuz ? 1 : 0), magnitude = code & 0x7F;
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  if (fnuz && code == 0x80) return kNan;
  if (!fnuz && finite_only && magnitude == 0x7F) return kNan;
  if (!fnuz && !finite_only && magnitude > 0x7C) return kNan;
  const int exponent = magnitude >> digits, fraction = magnitude & ((1 << digits) - 1);
  double value = exponent == 0 ? std::ldexp(fraction, 1 - bias - digits)
                               : std::ldexp((1 << digits) + fraction, exponent - bias - digits);
  if (!fnuz && !finite_only && magnitude == 0x7C) value = std::numeric_limits<double>::infinity();
  return (code & 0x80) != 0 ? -value : value;
}

// A column-major matrix of fp32, bf16, fp16 or fp8, as libraries use them.
struct FakeMatrix {
  DType type;
  std::int64_t rows, cols, leading;
  void* data;
  bool fnuz = false;  // fp8 in the format of gfx942

  std::int64_t at(std::int64_t row, std::int64_t col) const { return col * leading + row; }
  double get(std::int64_t row, std::int64_t col) const {
    if (type == DType::kF32) return static_cast<const float*>(data)[at(row, col)];
    if (type == DType::kF16) return static_cast<float>(static_cast<const Float16*>(data)[at(row, col)]);
    if (type == DType::kF8E4M3 || type == DType::kF8E5M2)
      return fp8_value(static_cast<const std::uint8_t*>(data)[at(row, col)], type == DType::kF8E4M3 ? 3 : 2,
                       fnuz);
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

// Computes d = alpha * op(a) * op(b) + beta * c. Returns false if sizes do not match.
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
      // As in BLAS, c is not read if beta is 0.
      d.set(i, j, alpha * sum + (beta == 0 ? 0 : beta * c.get(i, j)));
    }
  }
  return true;
}

}  // namespace primus::turbo::test
