// The mixing factors of a token's residual streams and their gradients, shared by the kernels of all devices.
#pragma once

#include <cstdint>

#include "turbo/formula.h"
#include "turbo/hyper_connection/balance.h"
#include "turbo/hyper_connection/hyper_connection.h"

namespace primus::turbo::PRIMUS_KERNELS {

// The arguments of a token's factors: scale * (product * rstd) + base, with one scale for each kind of
// factor.
struct HyperArguments {
  const float *products, *base, *scale;  // products: the token's products
  float rstd;                            // 1 / root mean square of the token's streams

  PRIMUS_FORMULA float operator()(std::int64_t i, std::int64_t part) const {
    return scale[part] * (products[i] * rstd) + base[i];
  }
  // Computes the gradients of scales and products from the gradients of the arguments. The gradients of
  // `base` equal the gradients of the arguments. Returns f such that the gradient of x through rstd is f * x,
  // where x are the token's streams, which have `width` elements.
  PRIMUS_FORMULA float gradients(const HyperShape& s, const float* d, std::int64_t width, float* d_scale,
                                 float* d_products) const {
    for (std::int64_t part = 0; part < s.scales(); ++part) d_scale[part] = 0;
    float along = 0;  // sum of d_product * product
    for (std::int64_t i = 0; i < s.products(); ++i) {
      const std::int64_t part = i / s.streams < 2 ? i / s.streams : 2;
      d_scale[part] += d[i] * (products[i] * rstd);
      const float of_product = d[i] * scale[part] * rstd;
      d_products[i] = of_product;
      along += of_product * products[i];
    }
    // d rstd / dx = -rstd³ x / width.
    return -along * rstd * rstd / static_cast<float>(width);
  }
};

// The mixing factors of one token.
struct HyperFactors {
  static constexpr std::int64_t kMax = HyperShape::kMaxStreams;
  float pre[kMax], post[kMax], comb[kMax * kMax];
  float divisors[(2 * HyperShape::kMaxIterations - 1) * kMax];

  PRIMUS_FORMULA void set(const HyperShape& s, const HyperArguments& argument) {
    const std::int64_t n = s.streams;
    for (std::int64_t j = 0; j < n; ++j) pre[j] = sigmoid(argument(j, 0)) + s.eps;
    if (!s.mixes()) return;
    for (std::int64_t j = 0; j < n; ++j) post[j] = 2.0F * sigmoid(argument(n + j, 1));
    for (std::int64_t i = 0; i < n; ++i) {
      float* const row = comb + i * n;
      float maximum = argument((2 + i) * n, 2), sum = 0;
      for (std::int64_t j = 1; j < n; ++j) {
        const float x = argument((2 + i) * n + j, 2);
        maximum = maximum < x ? x : maximum;
      }
      for (std::int64_t j = 0; j < n; ++j) sum += row[j] = exp(argument((2 + i) * n + j, 2) - maximum);
      for (std::int64_t j = 0; j < n; ++j) row[j] = row[j] / sum + s.eps;
    }
    balance(comb, n, s.iterations, s.eps, divisors);
  }

  // Computes the gradients d of the arguments of all factors from the gradients of the factors; overwrites
  // d_comb and comb.
  PRIMUS_FORMULA void argument_gradients(const HyperShape& s, const float* d_pre, const float* d_post,
                                         float* d_comb, float* d) {
    const std::int64_t n = s.streams;
    for (std::int64_t j = 0; j < n; ++j) {
      const float sigma = pre[j] - s.eps;
      d[j] = d_pre[j] * sigma * (1.0F - sigma);
    }
    if (!s.mixes()) return;
    for (std::int64_t j = 0; j < n; ++j) d[n + j] = d_post[j] * post[j] * (1.0F - 0.5F * post[j]);
    balance_gradient(comb, d_comb, n, s.iterations, divisors);
    for (std::int64_t i = 0; i < n; ++i) {
      float mean = 0;
      for (std::int64_t j = 0; j < n; ++j) mean += d_comb[i * n + j] * (comb[i * n + j] - s.eps);
      for (std::int64_t j = 0; j < n; ++j)
        d[(2 + i) * n + j] = (comb[i * n + j] - s.eps) * (d_comb[i * n + j] - mean);
    }
  }
};

}  // namespace primus::turbo::PRIMUS_KERNELS
