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

// Computes the products of `count` rows of W, beginning with row n. The lanes of a vector are rows of W, and
// each sum adds its terms in the order of k, as in the blocked product. kGroups vectors of rows of W keep the
// multipliers busy.
template <class T, int kM, int kGroups>
void products_in_order(const SkinnyCall& call, std::int64_t n, int count) {
  constexpr int kLanes = Vector::kLanes, kN = kGroups * kLanes;
  const T* rows[kN];  // pointers beyond the last row repeat the last row
  for (int i = 0; i < kN; ++i)
    rows[i] = static_cast<const T*>(call.w) + (n + std::min(i, count - 1)) * call.w_ld;
  float out[kM * kN] = {};
  if (call.accumulate) call.load(call, n, count, out);
  Vector::Type sums[kM][kGroups];
  for (int m = 0; m < kM; ++m) {
    for (int g = 0; g < kGroups; ++g) {
      float start[kLanes];
      for (int i = 0; i < kLanes; ++i)
        start[i] = g * kLanes + i < count ? out[m * count + g * kLanes + i] : 0.0F;
      sums[m][g] = Vector::load(start);
    }
  }
  for (std::int64_t k = 0; k < call.k; k += kLanes) {
    const std::int64_t width = std::min<std::int64_t>(kLanes, call.k - k);
    Vector::Type weights[kGroups][kLanes];
    for (int g = 0; g < kGroups; ++g) {
      for (int i = 0; i < kLanes; ++i) {
        const T* w = rows[g * kLanes + i] + k;
        T padded[kLanes] = {};
        if (width < kLanes) {
          std::copy(w, w + width, padded);
          w = padded;
        }
        weights[g][i] = Vector::load(w);
      }
      Vector::transpose(weights[g]);
    }
    for (int i = 0; i < kLanes; ++i) {
      for (int m = 0; m < kM; ++m) {
        const auto value = Vector::broadcast(call.x[m * call.x_ld + k + i]);
        for (int g = 0; g < kGroups; ++g) sums[m][g] = Vector::add_product(value, weights[g][i], sums[m][g]);
      }
    }
  }
  for (int m = 0; m < kM; ++m) {
    for (int g = 0; g < kGroups; ++g) {
      float end[kLanes];
      Vector::store(end, sums[m][g]);
      for (int i = 0; i < std::min(kLanes, count - g * kLanes); ++i)
        out[m * count + g * kLanes + i] = end[i];
    }
  }
  SkinnyCall assigned = call;
  assigned.accumulate = false;  // because the sums begin with the values of y
  call.store(assigned, n, count, out);
}

template <class T, int kM>
void columns_in_order(const SkinnyCall& call, std::int64_t begin, std::int64_t end) {
  constexpr int kGroups = kM <= 2 ? 2 : 1, kN = kGroups * Vector::kLanes;
  for (std::int64_t n = begin; n < end; n += kN)
    products_in_order<T, kM, kGroups>(call, n, static_cast<int>(std::min<std::int64_t>(kN, end - n)));
}

template <class T, bool kInOrder, int kM>
void columns_of_rows(const SkinnyCall& call, std::int64_t begin, std::int64_t end) {
  if constexpr (kInOrder) {
    columns_in_order<T, kM>(call, begin, end);
  } else {
    columns<T, kM>(call, begin, end);
  }
}

// kInOrder: whether sums have the order of the blocked product.
template <class T, bool kInOrder>
void columns_of(const SkinnyCall& call, std::int64_t begin, std::int64_t end) {
  switch (call.m) {
    case 1:
      return columns_of_rows<T, kInOrder, 1>(call, begin, end);
    case 2:
      return columns_of_rows<T, kInOrder, 2>(call, begin, end);
    case 3:
      return columns_of_rows<T, kInOrder, 3>(call, begin, end);
    case 4:
      return columns_of_rows<T, kInOrder, 4>(call, begin, end);
    case 5:
      return columns_of_rows<T, kInOrder, 5>(call, begin, end);
    case 6:
      return columns_of_rows<T, kInOrder, 6>(call, begin, end);
    case 7:
      return columns_of_rows<T, kInOrder, 7>(call, begin, end);
    default:
      return columns_of_rows<T, kInOrder, 8>(call, begin, end);
  }
}
