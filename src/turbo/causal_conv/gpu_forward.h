// The forward pass of a short causal convolution on GPUs.
#pragma once

#include "turbo/causal_conv/gpu_runs.h"

namespace primus::turbo::PRIMUS_GPU::causal_conv {

template <class T, bool kSilu, int kCount, int kTaps>
struct ForwardBody {
  Inputs<T, kSilu> in;
  T* y;

  PRIMUS_DEVICE void operator()(std::int64_t segment, std::int64_t begin, std::int64_t end,
                                std::int64_t channel) const {
    float w[kTaps][kCount];
    in.load_weights(channel, w);
    Window<kCount, kTaps> window;
    window.start(in, segment, begin, channel);
    for (std::int64_t token = begin; token < end; ++token) {
      float u[kCount], sum[kCount];
      in.load_input(segment, token, channel, u);
      window.take(u);
      start_from(in.bias ? in.bias + channel : nullptr, sum);
      window.convolve(w, in.reach(segment, token), sum);
      if constexpr (kSilu) {
        activate(sum);
      } else {
        float c[kCount];
        load<kCount>(in.row(segment, token) + in.channels + channel, c);
        multiply(c, sum);
      }
      store<kCount>(y + (segment * in.tokens + token) * in.channels + channel, sum);
    }
  }
};

// Processes the edge of a segment (width - 1 rows).
template <class T, bool kSilu>
struct EdgeBody {
  Inputs<T, kSilu> in;
  float* edge;

  PRIMUS_DEVICE void operator()(std::int64_t row, std::int64_t channel) const {
    float u[1];
    const std::int64_t rows = in.width - 1;
    in.load_input(row / rows, in.tokens - rows + row % rows, channel, u);
    edge[row * in.channels + channel] = u[0];
  }
};

}  // namespace primus::turbo::PRIMUS_GPU::causal_conv
