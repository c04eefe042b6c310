// Defines how threads share the work of a short causal convolution on GPUs. A thread processes consecutive
// tokens (a run) for a few consecutive channels, and keeps the weights of these channels in registers. The
// thread keeps the inputs in a window that slides over the tokens. Each token is loaded only once, except for
// the tokens before a run.
#pragma once

#include <type_traits>

#include "turbo/causal_conv/gpu_inputs.h"

namespace primus::turbo::PRIMUS_GPU::causal_conv {

// The inputs of a token and of preceding tokens: u[d] is the input d tokens back.
template <int kCount, int kTaps>
struct Window {
  float u[kTaps][kCount];

  // Initializes the window so that take() may add this token next. Inputs that no token can see are not read.
  template <class Inputs>
  PRIMUS_DEVICE void start(const Inputs& in, std::int64_t segment, std::int64_t token, std::int64_t channel) {
    PRIMUS_UNROLL
    for (int d = 1; d < kTaps; ++d) in.load_earlier(segment, token, d, channel, u[d - 1]);
  }
  // Advances to the next token, whose input is `next`.
  PRIMUS_DEVICE void take(const float (&next)[kCount]) {
    PRIMUS_UNROLL
    for (int d = kTaps - 1; d > 0; --d) {
      PRIMUS_UNROLL
      for (int k = 0; k < kCount; ++k) u[d][k] = u[d - 1][k];
    }
    PRIMUS_UNROLL
    for (int k = 0; k < kCount; ++k) u[0][k] = next[k];
  }
  // sum += the convolution over the inputs that a token sees; `reach` is the number of preceding inputs.
  PRIMUS_DEVICE void convolve(const float (&w)[kTaps][kCount], std::int64_t reach,
                              float (&sum)[kCount]) const {
    PRIMUS_UNROLL
    for (int d = kTaps - 1; d >= 0; --d) {
      if (d <= reach) add_product(w[d], u[d], sum);
    }
  }
};

// Calls body(segment, first token, end, channel) for every token run and every channel. A block processes
// consecutive runs and kPacks packs of channels.
template <class Body, int kCount>
struct EachOfRuns {
  static constexpr int kThreads = 128, kPacks = 32;
  using StartsEarly = void;
  Body body;
  std::int64_t segments, tokens, run, packs, tiles;  // packs: per row; tiles: blocks per row

  PRIMUS_DEVICE void operator()() const {
    let_next_begin();
    wait_for_previous();
    const std::int64_t runs = (tokens + run - 1) / run;  // runs per segment
    const std::int64_t number = block() / tiles * (kThreads / kPacks) + thread() / kPacks;
    const std::int64_t pack = block() % tiles * kPacks + thread() % kPacks;
    const std::int64_t segment = number / runs, begin = number % runs * run;
    if (segment < segments && pack < packs) body(segment, begin, smaller(begin + run, tokens), pack * kCount);
  }
};
// Runs have kTaps to 4 * kTaps tokens, as many as possible while there are enough threads for the GPU.
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

// Calls body(channels per thread, taps) with compile-time constants. For common widths, a thread processes
// kChannels channels if alignment allows it. For all other widths, a thread processes one channel, with the
// max. number of taps.
template <class T, int kChannels = kVector<T>, class Body>
void with_taps(std::int64_t width, bool vectors, Body&& body) {
  constexpr std::integral_constant<int, kChannels> kMany;
  if (vectors && width == 2) return body(kMany, std::integral_constant<int, 2>{});
  if (vectors && width == 3) return body(kMany, std::integral_constant<int, 3>{});
  if (vectors && width == 4) return body(kMany, std::integral_constant<int, 4>{});
  body(std::integral_constant<int, 1>{}, std::integral_constant<int, CausalConvShape::kMaxWidth>{});
}

// Calls body(row, channel) for every row and pack of channels. A block processes kRows rows and kRows packs.
template <class Body, int kCount>
struct EachOfTiles {
  static constexpr int kThreads = 256, kRows = 16;
  using StartsEarly = void;
  Body body;
  std::int64_t rows, packs, tiles;  // packs: per row; tiles: blocks per row

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

// Returns whether kVector<T> channels can be read at once, both from rows of T and from fp32 rows.
template <class T, class... Pointers>
bool vectors(std::int64_t channels, const Pointers*... pointers) {
  const auto aligned = []<class U>(const U* pointer) {
    return reinterpret_cast<std::uintptr_t>(pointer) % (kVector<T> * sizeof(U)) == 0;
  };
  return channels % kVector<T> == 0 && (... && aligned(pointers));
}

// Calls body(tag of the type, whether the form is kSilu), both as compile-time constants.
template <class Body>
void with_type_and_form(DType dtype, CausalConvShape::Form form, Body body) {
  with_float_type(dtype, [&](auto tag) {
    if (form == CausalConvShape::Form::kSilu) return body(tag, std::true_type());
    body(tag, std::false_type());
  });
}

}  // namespace primus::turbo::PRIMUS_GPU::causal_conv
