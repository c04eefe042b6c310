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
        wait_for_previous();
        let_next_begin();
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
    if (kShared && first < width) prefetch_weights(first);
    wait_for_previous();
    // The next kernel loads weights of the chosen experts early, so it begins once the experts are known.
    let_next_begin();
    if (first >= width) return;
    const std::int64_t expert = kShared ? 0 : experts[row], token = kShared ? row : row / top_k;
    const float weight = !kShared && weights ? weights[row] : 1.0F;
    const BFloat16* rows[kRows];
    find(rows, kShared ? common.w : w + expert * 2 * ffn * in, first, width);
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

  // Finds the rows of gates and values of this warp's columns.
  PRIMUS_DEVICE void find(const BFloat16* (&rows)[kRows], const BFloat16* matrix, std::int64_t first,
                          std::int64_t width) const {
    PRIMUS_UNROLL
    for (int j = 0; j < kPairs; ++j) {
      rows[2 * j] = matrix + smaller(first + j, width - 1) * in;
      rows[2 * j + 1] = rows[2 * j] + width * in;
    }
  }

  // Fetches this warp's weights of the shared expert into L2.
  PRIMUS_DEVICE void prefetch_weights(std::int64_t first) const {
    if (lane() >= kRows) return;
    const std::int64_t row = smaller(first + lane() / 2, common.ffn - 1) + lane() % 2 * common.ffn;
    prefetch_run(common.w + row * in, static_cast<int>(in * sizeof(BFloat16)));
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
  int top_k, count;  // count: number of experts

  struct Memory {
    float of_slot[kMaxSlots + SharedSummed::kMaxParts][kColumns];
  };

  PRIMUS_DEVICE void operator()() const {
    Memory& m = shared<Memory>();
    const auto item = static_cast<std::uint32_t>(block());
    const std::uint32_t token = item % tokens;
    const std::int64_t first = static_cast<std::int64_t>(item / tokens) * kColumns;
    let_next_begin();
    const int slots = top_k + (kWithShared ? common.parts : 0);
    // Loads the first weights while the previous kernel still computes x. After GatedSlots, the experts are
    // already known. After another kernel, they may not be; weights of a wrong expert are not used.
    Group group;
    const BFloat16* rows[kColumns];
    std::int64_t guess = -1;
    if (warp() < slots) {
      const Slot early = slot_of(token, warp(), guess = guess_expert(token, warp()));
      find(rows, early, first);
      group.load(rows, Group::first(), early.in);
    }
    wait_for_previous();
    for (int k = warp(); k < slots; k += kWarps) {
      const bool of_shared = kWithShared && k >= top_k;
      const std::int64_t expert = of_shared ? 0 : experts[static_cast<std::int64_t>(token) * top_k + k];
      const Slot slot = slot_of(token, k, expert);
      find(rows, slot, first);
      float sums[kColumns] = {};
      add_dots(group, k == warp() && expert == guess, slot.x, rows, slot.in, sums);
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

 private:
  using Group = DotGroup<kSteps, BFloat16, kColumns>;
  // A slot of a token, or a part of the shared expert.
  struct Slot {
    const BFloat16 *x, *w;
    std::int64_t in, width;  // number of columns, and of columns from a row of w to the next
  };
  PRIMUS_DEVICE Slot slot_of(std::uint32_t token, int k, std::int64_t expert) const {
    if (kWithShared && k >= top_k) {
      const std::int64_t begin = (k - top_k) * in;
      return {common.x + token * common.ffn + begin, common.w + begin, smaller(common.ffn - begin, in),
              common.ffn};
    }
    return {x + (static_cast<std::int64_t>(token) * top_k + k) * in, w + expert * cols * in, in, in};
  }
  PRIMUS_DEVICE void find(const BFloat16* (&rows)[kColumns], const Slot& slot, std::int64_t first) const {
    PRIMUS_UNROLL
    for (int j = 0; j < kColumns; ++j) rows[j] = slot.w + smaller(first + j, cols - 1) * slot.width;
  }
  // Returns the expert of a slot, or any expert if the slot's expert is not known yet.
  PRIMUS_DEVICE std::int64_t guess_expert(std::uint32_t token, int k) const {
    if (kWithShared && k >= top_k) return 0;
    const std::int64_t slot = static_cast<std::int64_t>(token) * top_k + k;
    const std::int64_t expert = static_cast<const volatile std::int32_t*>(experts)[slot];
    return expert < 0 || expert >= count ? 0 : expert;
  }
};

}  // namespace primus::turbo::PRIMUS_GPU
