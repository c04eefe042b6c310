// How threads share the work of a short causal convolution on GPUs. A thread has neighbouring channels, whose
// weights it keeps, of a run of tokens, and takes what goes into the convolution along as a window that
// slides over them: a token is loaded once, but for those in front of a run.
#pragma once

#include <type_traits>

#include "turbo/causal_conv/gpu_inputs.h"

namespace primus::turbo::PRIMUS_GPU::causal_conv {

// What goes into the convolution, of a token and of those before it: u[d] is that of the token d before.
template <int kCount, int kTaps>
struct Window {
  float u[kTaps][kCount];

  // The next token is this one. What no token can see is not read.
  template <class Inputs>
  PRIMUS_DEVICE void start(const Inputs& in, std::int64_t segment, std::int64_t token, std::int64_t channel) {
    PRIMUS_UNROLL
    for (int d = 1; d < kTaps; ++d) {
      if (d < in.width && (token >= d || in.before)) {
        in.load_input(segment, token - d, channel, u[d - 1]);
      } else {
        start_from(nullptr, u[d - 1]);
      }
    }
  }
  // Moves on to `token`, whose own input `next` is.
  PRIMUS_DEVICE void take(const float (&next)[kCount]) {
    PRIMUS_UNROLL
    for (int d = kTaps - 1; d > 0; --d) {
      PRIMUS_UNROLL
      for (int k = 0; k < kCount; ++k) u[d][k] = u[d - 1][k];
    }
    PRIMUS_UNROLL
    for (int k = 0; k < kCount; ++k) u[0][k] = next[k];
  }
  // sum += the convolution of what a token with this reach sees.
  PRIMUS_DEVICE void convolve(const float (&w)[kTaps][kCount], std::int64_t reach,
                              float (&sum)[kCount]) const {
    PRIMUS_UNROLL
    for (int d = kTaps - 1; d >= 0; --d) {
      if (d <= reach) add_product(w[d], u[d], sum);
    }
  }
};

// body(segment, first token, end, channel) for all runs of tokens of all channels: a block has neighbouring
// runs of as many channels as a warp holds.
template <class Body, int kCount>
struct EachOfRuns {
  static constexpr int kThreads = 128, kPacks = 32;
  using StartsEarly = void;
  Body body;
  std::int64_t segments, tokens, run, packs, tiles;  // packs of a row, and blocks side by side

  PRIMUS_DEVICE void operator()() const {
    let_next_begin();
    wait_for_previous();
    const std::int64_t runs = (tokens + run - 1) / run;  // of a segment
    const std::int64_t number = block() / tiles * (kThreads / kPacks) + thread() / kPacks;
    const std::int64_t pack = block() % tiles * kPacks + thread() % kPacks;
    const std::int64_t segment = number / runs, begin = number % runs * run;
    if (segment < segments && pack < packs) body(segment, begin, smaller(begin + run, tokens), pack * kCount);
  }
};
// Runs of kTaps to 4 * kTaps tokens: as long as that leaves every GPU enough threads.
template <int kCount, int kTaps, class Body>
void for_each_of_runs(Context& context, const CausalConvShape& shape, const Body& body) {
  using Kernel = EachOfRuns<Body, kCount>;
  constexpr std::int64_t kEnoughThreads = std::int64_t{1} << 17;
  const std::int64_t packs = shape.channels / kCount, tiles = blocks_for(packs, Kernel::kPacks);
  const std::int64_t run =
      std::clamp<std::int64_t>(shape.rows() * packs / kEnoughThreads, kTaps, std::int64_t{4} * kTaps);
  const std::int64_t runs = shape.segments * blocks_for(shape.tokens, run);
  launch(context, blocks_for(runs, Kernel::kThreads / Kernel::kPacks) * tiles,
         Kernel{body, shape.segments, shape.tokens, run, packs, tiles});
}

// body(channels of a thread, taps), both constants: the usual widths by vectors where that is possible, and
// whatever else channel by channel with as many taps as there can be.
template <class T, class Body>
void with_taps(std::int64_t width, bool vectors, Body&& body) {
  constexpr std::integral_constant<int, kVector<T>> kMany;
  if (vectors && width == 2) return body(kMany, std::integral_constant<int, 2>{});
  if (vectors && width == 3) return body(kMany, std::integral_constant<int, 3>{});
  if (vectors && width == 4) return body(kMany, std::integral_constant<int, 4>{});
  body(std::integral_constant<int, 1>{}, std::integral_constant<int, CausalConvShape::kMaxWidth>{});
}

// body(row, channel) by blocks of kRows rows and as many runs of channels.
template <class Body, int kCount>
struct EachOfTiles {
  static constexpr int kThreads = 256, kRows = 16;
  using StartsEarly = void;
  Body body;
  std::int64_t rows, packs, tiles;  // runs of channels of a row, and blocks side by side

  PRIMUS_DEVICE void operator()() const {
    let_next_begin();
    wait_for_previous();
    const std::int64_t row = block() / tiles * kRows + thread() / kRows;
    const std::int64_t pack = block() % tiles * kRows + thread() % kRows;
    if (row < rows && pack < packs) body(row, pack * kCount);
  }
};
template <int kCount, class Body>
void for_each_of_tiles(Context& context, std::int64_t rows, std::int64_t channels, const Body& body) {
  using Kernel = EachOfTiles<Body, kCount>;
  const std::int64_t packs = channels / kCount, tiles = blocks_for(packs, Kernel::kRows);
  launch(context, blocks_for(rows, Kernel::kRows) * tiles, Kernel{body, rows, packs, tiles});
}

// Whether as many channels as 16 bytes hold of T can be read at once, of rows in T and of those in fp32.
template <class T, class... Pointers>
bool vectors(std::int64_t channels, const Pointers*... pointers) {
  const auto aligned = []<class U>(const U* pointer) {
    return reinterpret_cast<std::uintptr_t>(pointer) % (kVector<T> * sizeof(U)) == 0;
  };
  return channels % kVector<T> == 0 && (... && aligned(pointers));
}

// body(tag of the type, whether the form is kSilu) with both as types.
template <class Body>
void with_type_and_form(DType dtype, CausalConvShape::Form form, Body body) {
  with_float_type(dtype, [&](auto tag) {
    if (form == CausalConvShape::Form::kSilu) return body(tag, std::true_type());
    body(tag, std::false_type());
  });
}

}  // namespace primus::turbo::PRIMUS_GPU::causal_conv
