// The reference for attention kernels: softmax(scale * Q K^T) V with masks, soft caps and sinks, computed in
// double with the complete score matrix.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "turbo/attention/attention.h"

namespace primus::turbo::test {

// Takes contiguous operands: q and out [batch*seq_q, heads*dim], k and v [batch*seq_k, kv_heads*dim].
class AttentionReference {
 public:
  using Values = std::vector<double>;

  AttentionReference(const AttentionShape& shape, Values queries, Values keys, Values values)
      : s(shape), q(std::move(queries)), k(std::move(keys)), v(std::move(values)) {}

  void forward() {
    out.assign(size(s.batch * s.seq_q * s.heads * s.value_dim), 0);
    lse.assign(size(s.heads * s.batch * s.seq_q), 0);
    probabilities_.assign(size(s.batch * s.heads * s.seq_q * s.seq_k), 0);
    for_each_row([&](std::int64_t b, std::int64_t h, std::int64_t i) {
      double* p = probability_row(b, h, i);
      double max = sinks.empty() ? -std::numeric_limits<double>::infinity() : sinks[size(h)], sum = 0;
      for (std::int64_t j = 0; j < s.seq_k; ++j) {
        p[j] = -std::numeric_limits<double>::infinity();
        if (visible(b, i, j)) p[j] = score(b, h, i, j);
        max = std::max(max, p[j]);
      }
      for (std::int64_t j = 0; j < s.seq_k; ++j) sum += std::exp(p[j] - max);
      if (!sinks.empty()) sum += std::exp(sinks[size(h)] - max);
      lse[size((h * s.batch + b) * s.seq_q + i)] = max + std::log(sum);
      for (std::int64_t j = 0; j < s.seq_k; ++j) {
        p[j] = std::exp(p[j] - max) / sum;
        for (std::int64_t c = 0; c < s.value_dim; ++c)
          out_row(out, b, h, i)[c] += p[j] * v_row(v, b, h, j)[c];
      }
    });
  }

  // Computes the gradients of dot(out, d_out). Call it after forward().
  void backward(const Values& d_out) {
    d_q.assign(q.size(), 0), d_k.assign(k.size(), 0), d_v.assign(v.size(), 0);
    d_sinks.assign(sinks.size(), 0);
    for_each_row([&](std::int64_t b, std::int64_t h, std::int64_t i) {
      const double* p = probability_row(b, h, i);
      const double* d_o = out_row(d_out, b, h, i);
      const double delta = dot(d_o, out_row(out, b, h, i), s.value_dim);
      if (!sinks.empty())
        d_sinks[size(h)] -= std::exp(sinks[size(h)] - lse[size((h * s.batch + b) * s.seq_q + i)]) * delta;
      for (std::int64_t j = 0; j < s.seq_k; ++j) {
        double d_score =
            static_cast<double>(s.scale) * p[j] * (dot(d_o, v_row(v, b, h, j), s.value_dim) - delta);
        if (s.score_cap > 0) {
          const double t = score(b, h, i, j) / static_cast<double>(s.score_cap);
          d_score *= 1 - t * t;
        }
        for (std::int64_t c = 0; c < s.head_dim; ++c) {
          q_row(d_q, b, h, i)[c] += d_score * k_row(k, b, h, j)[c];
          k_row(d_k, b, h, j)[c] += d_score * q_row(q, b, h, i)[c];
        }
        for (std::int64_t c = 0; c < s.value_dim; ++c) v_row(d_v, b, h, j)[c] += p[j] * d_o[c];
      }
    });
  }

  bool visible(std::int64_t b, std::int64_t i, std::int64_t j) const {
    const std::int64_t position = s.q_first + i, key = s.k_first + j;
    return (!s.causal || key <= position) && (s.window == 0 || key > position - s.window) &&
           (s.chunk == 0 || key / s.chunk == position / s.chunk) &&
           (first_key.empty() || key >= static_cast<std::int64_t>(first_key[size(b * s.seq_q + i)]));
  }

  AttentionShape s;
  Values q, k, v;
  Values first_key, sinks;  // [batch*seq_q], [heads]; empty if unused
  Values out, lse;          // lse [heads, batch*seq_q]
  Values d_q, d_k, d_v, d_sinks;

 private:
  static std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }
  std::int64_t kv_head(std::int64_t h) const { return h / (s.heads / s.kv_heads); }

  template <class X>  // X is Values or const Values
  struct Pointer {
    using type = std::conditional_t<std::is_const_v<X>, const double*, double*>;
  };

  template <class X>
  typename Pointer<X>::type q_row(X& x, std::int64_t b, std::int64_t h, std::int64_t i) const {
    return &x[size(((b * s.seq_q + i) * s.heads + h) * s.head_dim)];
  }
  template <class X>
  typename Pointer<X>::type out_row(X& x, std::int64_t b, std::int64_t h, std::int64_t i) const {
    return &x[size(((b * s.seq_q + i) * s.heads + h) * s.value_dim)];
  }
  template <class X>
  typename Pointer<X>::type k_row(X& x, std::int64_t b, std::int64_t h, std::int64_t j) const {
    return &x[size(((b * s.seq_k + j) * s.kv_heads + kv_head(h)) * s.head_dim)];
  }
  template <class X>
  typename Pointer<X>::type v_row(X& x, std::int64_t b, std::int64_t h, std::int64_t j) const {
    return &x[size(((b * s.seq_k + j) * s.kv_heads + kv_head(h)) * s.value_dim)];
  }
  double* probability_row(std::int64_t b, std::int64_t h, std::int64_t i) {
    return &probabilities_[size(((b * s.heads + h) * s.seq_q + i) * s.seq_k)];
  }

  double score(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
    const double scaled =
        static_cast<double>(s.scale) * dot(q_row(q, b, h, i), k_row(k, b, h, j), s.head_dim);
    const auto cap = static_cast<double>(s.score_cap);
    return cap > 0 ? cap * std::tanh(scaled / cap) : scaled;
  }

  static double dot(const double* x, const double* y, std::int64_t n) {
    double sum = 0;
    for (std::int64_t c = 0; c < n; ++c) sum += x[c] * y[c];
    return sum;
  }
  template <class Body>
  void for_each_row(Body body) {
    for (std::int64_t b = 0; b < s.batch; ++b) {
      for (std::int64_t h = 0; h < s.heads; ++h) {
        for (std::int64_t i = 0; i < s.seq_q; ++i) body(b, h, i);
      }
    }
  }

  Values probabilities_;  // [batch, heads, seq_q, seq_k]
};

}  // namespace primus::turbo::test
