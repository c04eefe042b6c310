// Balances a small positive matrix (Sinkhorn and Knopp 1967), and computes the gradient. Plain scalar
// functions, identical on every device.
#pragma once

#include <cstdint>

namespace primus::turbo {

// Divides the columns of c [n, n] by their sums + eps; each further iteration divides rows, then columns, in
// this way. `divisors`: [(2 * iterations - 1) * n] out, step by step.
constexpr void balance(float* c, std::int64_t n, std::int64_t iterations, float eps, float* divisors) {
  for (std::int64_t step = 0; step < 2 * iterations - 1; ++step) {
    // Columns first, in even steps: line l has the elements l * across + i * along.
    const std::int64_t across = step % 2 == 0 ? 1 : n, along = step % 2 == 0 ? n : 1;
    for (std::int64_t l = 0; l < n; ++l) {
      float sum = 0;
      for (std::int64_t i = 0; i < n; ++i) sum += c[l * across + i * along];
      sum += eps;
      divisors[step * n + l] = sum;
      for (std::int64_t i = 0; i < n; ++i) c[l * across + i * along] /= sum;
    }
  }
}

// Turns the balanced c and its gradient d into the input of balance() and its gradient, in place.
constexpr void balance_gradient(float* c, float* d, std::int64_t n, std::int64_t iterations,
                                const float* divisors) {
  for (std::int64_t step = 2 * iterations - 2; step >= 0; --step) {
    const std::int64_t across = step % 2 == 0 ? 1 : n, along = step % 2 == 0 ? n : 1;
    for (std::int64_t l = 0; l < n; ++l) {
      float mean = 0;
      for (std::int64_t i = 0; i < n; ++i) mean += d[l * across + i * along] * c[l * across + i * along];
      const float divisor = divisors[step * n + l];
      for (std::int64_t i = 0; i < n; ++i) {
        const std::int64_t at = l * across + i * along;
        d[at] = (d[at] - mean) / divisor;
        c[at] *= divisor;
      }
    }
  }
}

}  // namespace primus::turbo
