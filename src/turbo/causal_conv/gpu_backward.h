// The backward pass of a short causal convolution on GPUs.
#pragma once

#include "turbo/causal_conv/gpu_runs.h"

namespace primus::turbo::PRIMUS_GPU::causal_conv {

// A token's input affects the token's output and the following kTaps - 1 outputs. Therefore the gradient of
// the input is complete only kTaps - 1 tokens later. The code then loads the two factors of the input again,
// because registers are scarce and L1 still holds the factors.
template <class T, bool kSilu, int kCount, int kTaps>
struct BackwardBody {
  static constexpr int kLag = kTaps - 1;
  Inputs<T, kSilu> in;
  const float* d_after;
  T* d_bcx;

  // d[j], reach[j] and entry j of the window are those of the token j positions back.
  struct State {
    float w[kTaps][kCount], d[kTaps][kCount];
    Window<kCount, kTaps> window;
    int reach[kTaps];
  };

  PRIMUS_DEVICE void operator()(std::int64_t segment, std::int64_t begin, std::int64_t end,
                                std::int64_t channel) const {
    State s{};
    in.load_weights(channel, s.w);
    s.window.start(in, segment, begin, channel);
    PRIMUS_UNROLL_BY(1)
    for (std::int64_t token = begin; token < end + kLag; ++token) {
      shift(s);
      s.reach[0] = -1;  // tokens after the segment see no input
      if (token < in.tokens) take(s, segment, token, end, channel);
      if (token - kLag >= begin) put(s, segment, token - kLag, channel);
    }
  }

 private:
  PRIMUS_DEVICE T* d_row(std::int64_t segment, std::int64_t token) const {
    return d_bcx + (segment * in.tokens + token) * in.kParts * in.channels;
  }
  PRIMUS_DEVICE static void shift(State& s) {
    PRIMUS_UNROLL
    for (int j = kLag; j > 0; --j) {
      s.reach[j] = s.reach[j - 1];
      PRIMUS_UNROLL
      for (int k = 0; k < kCount; ++k) s.d[j][k] = s.d[j - 1][k];
    }
  }
  // Advances to the next token and computes the gradient of the token's sums. For the thread's own tokens,
  // also writes the gradient of the second gate.
  PRIMUS_DEVICE void take(State& s, std::int64_t segment, std::int64_t token, std::int64_t end,
                          std::int64_t channel) const {
    s.reach[0] = static_cast<int>(in.reach(segment, token));
    float sum[kCount] = {};
    if (kSilu || token < end) {
      float u[kCount];
      in.load_input(segment, token, channel, u);
      start_from(in.bias ? in.bias + channel : nullptr, sum);
      s.window.take(u);
      s.window.convolve(s.w, s.reach[0], sum);
    }
    load<kCount>(in.d_y + (segment * in.tokens + token) * in.channels + channel, s.d[0]);
    if constexpr (kSilu) {
      slope(sum);
      multiply(sum, s.d[0]);
    } else {
      float c[kCount];
      load<kCount>(in.row(segment, token) + in.channels + channel, c);
      if (token < end) {
        multiply(s.d[0], sum);
        store<kCount>(d_row(segment, token) + in.channels + channel, sum);
      }
      multiply(c, s.d[0]);
    }
  }
  // Writes the gradient of the input kLag tokens back, or of the two factors of this input.
  PRIMUS_DEVICE void put(const State& s, std::int64_t segment, std::int64_t token,
                         std::int64_t channel) const {
    const std::int64_t edge = token - (in.tokens - (in.width - 1));
    float sum[kCount];
    start_from(
        d_after && edge >= 0 ? d_after + (segment * (in.width - 1) + edge) * in.channels + channel : nullptr,
        sum);
    PRIMUS_UNROLL
    for (int d = 0; d < kTaps; ++d) {
      if (s.reach[kLag - d] >= d) add_product(s.w[d], s.d[kLag - d], sum);
    }
    T* const to = d_row(segment, token) + channel;
    if constexpr (kSilu) {
      store<kCount>(to, sum);
    } else {
      const T* const factors = in.row(segment, token) + channel;
      float b[kCount], x[kCount];
      load<kCount>(factors, b);
      load<kCount>(factors + 2 * in.channels, x);
      multiply(sum, b);
      multiply(sum, x);
      store<kCount>(to, x);
      store<kCount>(to + 2 * in.channels, b);
    }
  }
};

// The contribution of a row to the bias gradient.
template <class T, bool kSilu, int kVectors>
struct BiasTerm {
  static constexpr int kCount = kVectors;
  Inputs<T, kSilu> in;

  PRIMUS_DEVICE void operator()(std::int64_t row, std::int64_t channel, float (&d)[kCount]) const {
    in.load_gradient(row / in.tokens, row % in.tokens, channel, d);
  }
};

// Processes the edge of a segment (width - 1 rows).
template <class T, bool kSilu>
struct BackwardEdgeBody {
  Inputs<T, kSilu> in;
  float* d_edge;

  PRIMUS_DEVICE void operator()(std::int64_t row, std::int64_t channel) const {
    float sum[1] = {};
    // `distance` is the number of tokens since the segment's first token.
    const std::int64_t rows = in.width - 1, distance = rows - row % rows;
    in.add_gradient(row / rows, -distance, distance, channel, sum);
    d_edge[row * in.channels + channel] = sum[0];
  }
};

}  // namespace primus::turbo::PRIMUS_GPU::causal_conv
