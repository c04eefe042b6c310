// Balances a small positive matrix (Sinkhorn and Knopp 1967), and computes the gradient. The functions are
// scalar code with the same results on every device.
#pragma once

#include <cstdint>

namespace primus::turbo {

// Divides each column of c [n, n] by (sum of the column + eps). Each further iteration divides rows, and then
// columns, in this way. `divisors` [(2 * iterations - 1) * n] receives the n divisors of each step.
constexpr void balance(float* c, std::int64_t n, std::int64_t iterations, float eps, float* divisors) {
  for (std::int64_t step = 0; step < 2 * iterations - 1; ++step) {
    // Even steps divide columns, odd steps rows. Element i of line (column or row) l is c[l * across + i *
    // along].
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

// Replaces c, the balanced matrix, by the input of balance(), and d, the gradient with respect to the
// balanced matrix, by the gradient with respect to that input.
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
