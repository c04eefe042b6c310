// The weight gradient of a short causal convolution on GPUs.
#pragma once

#include "turbo/causal_conv/gpu_runs.h"

namespace primus::turbo::PRIMUS_GPU::causal_conv {

// Divides the rows into slices, whose sums are added by another kernel. A slice has kRuns runs of consecutive
// rows. The division depends only on the shape, and so does the order of the sums.
struct WeightSlices {
  static constexpr int kRuns = 8;
  explicit WeightSlices(const CausalConvShape& shape)
      : run(std::clamp<std::int64_t>(shape.rows() * shape.channels >> 21U, kShortest, kLongest)),
        count(blocks_for(shape.rows(), kRuns * run)) {}
  std::int64_t run, count;

 private:
  // A run also loads the inputs of the width - 1 tokens before it. Longer runs would leave processors idle.
  static constexpr std::int64_t kShortest = 8, kLongest = 64;
};

// lines[slice][channel][tap] = the sum over the rows of the slice. A block processes a slice of some
// channels. A thread computes consecutive channels of one run; the sums of the runs are added in order.
template <class T, bool kSilu, int kCount, int kTaps>
struct WeightParts {
  static constexpr int kRuns = WeightSlices::kRuns, kPacks = 32, kThreads = kRuns * kPacks;
  // The inputs of several tokens are loaded together, because a single token's loads are too few to hide the
  // latency of memory.
  static constexpr int kAtOnce = 4, kKept = kTaps - 1;
  Inputs<T, kSilu> in;
  float* lines;
  std::int64_t run, tiles;  // tiles: blocks per slice

  PRIMUS_DEVICE void operator()() const {
    struct Parts {
      float at[kRuns][kPacks * kCount * kTaps];
    };
    Parts& parts = shared<Parts>();
    const int own = thread() / kPacks, pack = thread() % kPacks;
    const std::int64_t slice = block() / tiles, first = block() % tiles * kPacks * kCount;
    const std::int64_t channel = first + pack * kCount, begin = (slice * kRuns + own) * run;
    float sum[kTaps][kCount] = {};
    if (channel < in.channels && begin < in.rows)
      add_rows(begin, smaller(begin + run, in.rows), channel, sum);
    PRIMUS_UNROLL
    for (int d = 0; d < kTaps; ++d) {
      if (d >= in.width) break;
      PRIMUS_UNROLL
      for (int k = 0; k < kCount; ++k)
        parts.at[own][(pack * kCount + k) * in.width + in.width - 1 - d] = sum[d][k];
    }
    barrier();
    const std::int64_t columns = smaller(kPacks * kCount, in.channels - first) * in.width;
    float* const line = lines + (slice * in.channels + first) * in.width;
    for (std::int64_t at = thread(); at < columns; at += kThreads) {
      float total = 0;
      PRIMUS_UNROLL
      for (int r = 0; r < kRuns; ++r) total += parts.at[r][at];
      line[at] = total;
    }
  }

 private:
  PRIMUS_DEVICE void add_rows(std::int64_t begin, std::int64_t end, std::int64_t channel,
                              float (&sum)[kTaps][kCount]) const {
    std::int64_t segment = begin / in.tokens, token = begin % in.tokens;
    [[maybe_unused]] float w[kTaps][kCount], bias[kCount];
    if constexpr (kSilu) {
      in.load_weights(channel, w);
      start_from(in.bias ? in.bias + channel : nullptr, bias);
    }
    for (std::int64_t left = end - begin; left > 0; ++segment, token = 0) {
      const std::int64_t stop = smaller(token + left, in.tokens);
      left -= stop - token;
      float u[kKept + kAtOnce][kCount];  // u[kKept + i]: the input of token + i
      PRIMUS_UNROLL
      for (int d = 1; d <= kKept; ++d) in.load_earlier(segment, token, d, channel, u[kKept - d]);
      PRIMUS_UNROLL_BY(1)
      for (; token < stop; token += kAtOnce) {
        float e[kAtOnce][kCount];
        int reach[kAtOnce];
        PRIMUS_UNROLL
        for (int i = 0; i < kAtOnce; ++i)
          load_token(segment, token + i, stop, channel, u[kKept + i], e[i], reach[i]);
        PRIMUS_UNROLL
        for (int i = 0; i < kAtOnce; ++i) {
          if constexpr (kSilu) {
            float sums[kCount];
            PRIMUS_UNROLL
            for (int k = 0; k < kCount; ++k) sums[k] = bias[k];
            PRIMUS_UNROLL
            for (int d = kKept; d >= 0; --d) {
              if (d <= reach[i]) add_product(w[d], u[kKept + i - d], sums);
            }
            slope(sums);
            multiply(sums, e[i]);
          }
          PRIMUS_UNROLL
          for (int d = 0; d < kTaps; ++d) {
            if (d <= reach[i]) add_product(e[i], u[kKept + i - d], sum[d]);
          }
        }
        PRIMUS_UNROLL
        for (int d = 0; d < kKept; ++d) {
          PRIMUS_UNROLL
          for (int k = 0; k < kCount; ++k) u[d][k] = u[d + kAtOnce][k];
        }
      }
    }
  }
  // Loads the input of a token, and the gradient of its sums: for kSilu, still without the slope. A token
  // from `stop` on sees no input, so it adds nothing.
  PRIMUS_DEVICE void load_token(std::int64_t segment, std::int64_t token, std::int64_t stop,
                                std::int64_t channel, float (&u)[kCount], float (&e)[kCount],
                                int& reach) const {
    reach = -1;
    start_from(nullptr, u);
    start_from(nullptr, e);
    if (token >= stop) return;
    reach = static_cast<int>(in.reach(segment, token));
    in.load_input(segment, token, channel, u);
    if constexpr (kSilu) {
      load<kCount>(in.d_y + (segment * in.tokens + token) * in.channels + channel, e);
    } else {
      in.load_gradient(segment, token, channel, e);
    }
  }
};

}  // namespace primus::turbo::PRIMUS_GPU::causal_conv
