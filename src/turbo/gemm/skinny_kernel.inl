// Computes dot products of rows of W with rows of x. This file is included once per instruction set, after a
// `Vector` of fp32 lanes with zero(), load(float or BFloat16 pointer), add_product(a, b, sum) and
// sum(vector).

// out[m * kN + n] = x[m, :] · w[n, :] over k elements; rows of x are zero-padded to full vectors.
template <class T, int kM, int kN>
void dot_products(const float* x, std::int64_t x_ld, const T* w, std::int64_t w_ld, std::int64_t k,
                  float* out) {
  Vector::Type sums[kM][kN];
  for (int m = 0; m < kM; ++m) {
    for (int n = 0; n < kN; ++n) sums[m][n] = Vector::zero();
  }
  const std::int64_t whole = k / Vector::kLanes * Vector::kLanes;
  for (std::int64_t i = 0; i < whole; i += Vector::kLanes) {
    Vector::Type weights[kN];
    for (int n = 0; n < kN; ++n) weights[n] = Vector::load(w + n * w_ld + i);
    for (int m = 0; m < kM; ++m) {
      const auto values = Vector::load(x + m * x_ld + i);
      for (int n = 0; n < kN; ++n) sums[m][n] = Vector::add_product(values, weights[n], sums[m][n]);
    }
  }
  if (whole < k) {
    for (int n = 0; n < kN; ++n) {
      T padded[Vector::kLanes] = {};
      for (std::int64_t i = whole; i < k; ++i) padded[i - whole] = w[n * w_ld + i];
      const auto weights = Vector::load(padded);
      for (int m = 0; m < kM; ++m) {
        sums[m][n] = Vector::add_product(Vector::load(x + m * x_ld + whole), weights, sums[m][n]);
      }
    }
  }
  for (int m = 0; m < kM; ++m) {
    for (int n = 0; n < kN; ++n) out[m * kN + n] = Vector::sum(sums[m][n]);
  }
}

// Computes the products with rows [begin, end) of W. The more rows x has, the fewer rows of W are processed at
// a time, because the number of registers is limited.
template <class T, int kM>
void columns(const SkinnyCall& call, std::int64_t begin, std::int64_t end) {
  constexpr int kN = kM <= 2 ? 4 : kM <= 4 ? 2 : 1;
  const T* w = static_cast<const T*>(call.w);
  float out[kM * kN];
  std::int64_t n = begin;
  for (; n + kN <= end; n += kN) {
    dot_products<T, kM, kN>(call.x, call.x_ld, w + n * call.w_ld, call.w_ld, call.k, out);
    call.store(call, n, kN, out);
  }
  for (; n < end; ++n) {
    dot_products<T, kM, 1>(call.x, call.x_ld, w + n * call.w_ld, call.w_ld, call.k, out);
    call.store(call, n, 1, out);
  }
}

template <class T>
void columns_of(const SkinnyCall& call, std::int64_t begin, std::int64_t end) {
  switch (call.m) {
    case 1:
      return columns<T, 1>(call, begin, end);
    case 2:
      return columns<T, 2>(call, begin, end);
    case 3:
      return columns<T, 3>(call, begin, end);
    case 4:
      return columns<T, 4>(call, begin, end);
    case 5:
      return columns<T, 5>(call, begin, end);
    case 6:
      return columns<T, 6>(call, begin, end);
    case 7:
      return columns<T, 7>(call, begin, end);
    default:
      return columns<T, 8>(call, begin, end);
  }
}
