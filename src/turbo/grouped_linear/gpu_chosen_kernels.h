// Kernels of the products of a few tokens with the matrices of the experts that each token chose, and of the
// operations around these products (ChosenExperts), as in decoding. Reading the weights takes nearly all the
// time of a product. gpu_chosen.h launches the kernels.
#pragma once

#include "turbo/gate/formula.h"
#include "turbo/gpu/few_dots.h"
#include "turbo/grouped_linear/grouped_linear.h"
#include "turbo/swiglu/formula.h"

namespace primus::turbo::PRIMUS_GPU {

// Rounds to bf16. The separate operators, which store each result in bf16, give the same bits.
PRIMUS_DEVICE float rounded(float x) { return to_float(from_float<BFloat16>(x)); }

// The gated activations. The third argument of `forward` is the weight of the slot.
struct PlainGate {
  PRIMUS_DEVICE float forward(float g, float u, float) const { return SiluGlu{}.forward(g, u); }
};
template <bool kWeighInput>
struct WeightedGate {
  PRIMUS_DEVICE float forward(float g, float u, float weight) const {
    return WeightedSiluGlu<kWeighInput>{weight}.forward(g, u);
  }
};
struct ClampedGate {
  ClampedSiluGlu of;
  PRIMUS_DEVICE float forward(float g, float u, float) const { return of.forward(g, u); }
};

// The gate and up product of the shared expert, and the products of tokens with its gate. `w` and `gate` may
// be null.
struct SharedGated {
  const BFloat16* w;
  const float* gate;
  BFloat16* out;
  float* gates;
  std::int64_t ffn;
  std::uint32_t blocks;  // number of blocks that compute gate and up, in multiples of the tokens

  template <int kThreads>
  PRIMUS_DEVICE void gate_token(const BFloat16* x, std::int64_t token, std::int64_t in) const {
    constexpr int kLine = kVector<float>;
    float sum = 0;
    for (std::int64_t i = thread() * kLine; i < in; i += kThreads * kLine) {
      float v[kLine], g[kLine];
      load<kLine>(x + token * in + i, v);
      load<kLine>(gate + i, g);
      PRIMUS_UNROLL
      for (int k = 0; k < kLine; ++k) sum = multiply_add(v[k], g[k], sum);
    }
    sum = block_reduce<kThreads>(sum);
    if (thread() == 0) gates[token] = sigmoid(sum);
  }
};

// A warp computes kPairs columns of one slot: for each column, a row of gates and a row of values. Concurrent
// blocks compute the same columns of all slots: slots with the same expert read its matrix from the cache.
// With kWithShared, the first blocks compute the shared expert. They fetch their weights into L2 while the
// previous kernels still choose the experts of the other blocks.
template <class Gating, int kPairs, bool kWithShared>
struct GatedSlots {
  static constexpr int kThreads = 128, kOfBlock = kThreads / kWarp * kPairs, kRows = 2 * kPairs;
  using StartsEarly = void;
  const BFloat16 *x, *w, *bias;  // bias may be null
  const std::int32_t* experts;
  const float* weights;  // may be null
  BFloat16* out;
  Gating gating;
  SharedGated common;
  std::int64_t ffn, in;
  std::uint32_t slots, top_k;

  PRIMUS_DEVICE void operator()() const {
    auto item = static_cast<std::uint32_t>(block());
    if constexpr (kWithShared) {
      const std::uint32_t tokens = slots / top_k;
      if (item < common.blocks) return compute<true>(item % tokens, item / tokens);
      item -= common.blocks;
      if (common.gate && item < tokens) {
        let_next_begin();
        wait_for_previous();
        return common.template gate_token<kThreads>(x, item, in);
      }
      if (common.gate) item -= tokens;
    }
    compute<false>(item % slots, item / slots);
  }

 private:
  // `row`: the slot, or the token if these are columns of the shared expert.
  template <bool kShared>
  PRIMUS_DEVICE void compute(std::uint32_t row, std::int64_t columns) const {
    const std::int64_t width = kShared ? common.ffn : ffn, first = columns * kOfBlock + warp() * kPairs;
    let_next_begin();
    if (kShared && first < width) prefetch_weights(first);
    wait_for_previous();
    if (first >= width) return;
    const std::int64_t expert = kShared ? 0 : experts[row], token = kShared ? row : row / top_k;
    const float weight = !kShared && weights ? weights[row] : 1.0F;
    const BFloat16* const matrix = kShared ? common.w : w + expert * 2 * ffn * in;
    const BFloat16* rows[kRows];
    PRIMUS_UNROLL
    for (int j = 0; j < kPairs; ++j) {
      rows[2 * j] = matrix + smaller(first + j, width - 1) * in;
      rows[2 * j + 1] = rows[2 * j] + width * in;
    }
    float sums[kRows] = {};
    add_dots<8 / kRows>(x + token * in, rows, in, sums);
    PRIMUS_UNROLL
    for (int j = 0; j < kPairs; ++j) {
      const std::int64_t column = first + j;
      float gate = rounded(warp_reduce(sums[2 * j])), up = rounded(warp_reduce(sums[2 * j + 1]));
      if (lane() != 0 || column >= width) continue;
      if (kShared) {
        common.out[row * width + column] = from_float<BFloat16>(PlainGate{}.forward(gate, up, 1.0F));
        continue;
      }
      if (bias) {
        gate = rounded(gate + to_float(bias[expert * 2 * ffn + column]));
        up = rounded(up + to_float(bias[expert * 2 * ffn + ffn + column]));
      }
      out[row * ffn + column] = from_float<BFloat16>(gating.forward(gate, up, weight));
    }
  }

  // Fetches this warp's weights of the shared expert into L2.
  PRIMUS_DEVICE void prefetch_weights(std::int64_t first) const {
    constexpr std::int64_t kCacheLine = 128 / static_cast<std::int64_t>(sizeof(BFloat16));
    PRIMUS_UNROLL
    for (int j = 0; j < kPairs; ++j) {
      const BFloat16* const gate = common.w + smaller(first + j, common.ffn - 1) * in;
      for (std::int64_t i = lane() * kCacheLine; i < in; i += kWarp * kCacheLine) {
        prefetch(gate + i);
        prefetch(gate + common.ffn * in + i);
      }
    }
  }
};

// The last product of the shared expert. Warps divide the columns of its matrix into parts of `in` columns,
// the length of the rows of the other experts.
struct SharedSummed {
  static constexpr int kMaxParts = 8;
  const BFloat16 *x, *w;  // w may be null
  const float* gates;     // may be null
  std::int64_t ffn;
  int parts;
};

// A block computes kColumns columns of one token's result, which is the sum over the token's slots. A warp
// processes one slot at a time, and reads rows of one expert that are adjacent in memory. kSteps steps of
// kColumns rows are read concurrently.
template <int kWarps, int kSteps, bool kWithShared>
struct SummedSlots {
  static constexpr int kThreads = kWarps * kWarp, kColumns = 4, kMaxSlots = 64;
  using StartsEarly = void;
  const BFloat16 *x, *w, *bias, *previous;  // bias and previous may be null
  const std::int32_t* experts;
  const float* weights;  // may be null
  BFloat16* out;
  SharedSummed common;
  std::int64_t cols, in;
  std::uint32_t tokens;
  int top_k;

  struct Memory {
    float of_slot[kMaxSlots + SharedSummed::kMaxParts][kColumns];
  };

  PRIMUS_DEVICE void operator()() const {
    Memory& m = shared<Memory>();
    const auto item = static_cast<std::uint32_t>(block());
    const std::uint32_t token = item % tokens;
    const std::int64_t first = static_cast<std::int64_t>(item / tokens) * kColumns;
    let_next_begin();
    wait_for_previous();
    for (int k = warp(); k < top_k + (kWithShared ? common.parts : 0); k += kWarps) {
      const bool of_shared = kWithShared && k >= top_k;
      const std::int64_t slot = static_cast<std::int64_t>(token) * top_k + k;
      const std::int64_t expert = of_shared ? 0 : experts[slot], begin = of_shared ? (k - top_k) * in : 0;
      const std::int64_t width = of_shared ? common.ffn : in;
      const BFloat16* const matrix = of_shared ? common.w + begin : w + expert * cols * in;
      const BFloat16* rows[kColumns];
      PRIMUS_UNROLL
      for (int j = 0; j < kColumns; ++j) rows[j] = matrix + smaller(first + j, cols - 1) * width;
      float sums[kColumns] = {};
      add_dots<kSteps>(of_shared ? common.x + token * width + begin : x + slot * in, rows,
                       of_shared ? smaller(width - begin, in) : in, sums);
      PRIMUS_UNROLL
      for (int j = 0; j < kColumns; ++j) {
        float sum = warp_reduce(sums[j]);
        if (lane() != 0) continue;
        if (!of_shared) sum = rounded(sum);
        if (!of_shared && bias)
          sum = rounded(sum + to_float(bias[expert * cols + smaller(first + j, cols - 1)]));
        m.of_slot[k][j] = sum;
      }
    }
    barrier();
    const std::int64_t column = first + thread();
    if (thread() >= kColumns || column >= cols) return;
    float total = previous ? to_float(previous[token * cols + column]) : 0.0F;
    if constexpr (kWithShared) {
      for (int p = 0; p < common.parts; ++p) total += m.of_slot[top_k + p][thread()];
      total = rounded(total);
      if (common.gates) total = rounded(total * common.gates[token]);
    }
    for (int k = 0; k < top_k; ++k) {
      const float weight = weights ? weights[static_cast<std::int64_t>(token) * top_k + k] : 1.0F;
      total = multiply_add(weight, m.of_slot[k][thread()], total);
    }
    out[token * cols + column] = from_float<BFloat16>(total);
  }
};

}  // namespace primus::turbo::PRIMUS_GPU
