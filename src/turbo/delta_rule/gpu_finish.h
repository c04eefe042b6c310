// Shared code of the delta rule's kernels that compute a chunk's gradients (gpu_retreat.h). The kernels read
// the gradients of states and of U. These kernels share the products with values, and the code that stores
// gradients of keys and beta.
#pragma once

#include "turbo/delta_rule/gpu_finish_parts.h"

namespace primus::turbo::PRIMUS_GPU {

// A block processes one item. A warp computes 16 channels of the query and key gradients. A warp also
// computes 16 rows of the gradient of P or of the gradient of the key-key products.
template <class T, int kKeys, bool kByChannel>
struct DeltaFinish : DeltaFinishParts<T, kKeys, kByChannel> {
  using Base = DeltaFinishParts<T, kKeys, kByChannel>;
  using Base::in, Base::to, Base::d;
  using Base::kThreads, Base::kColumns, Base::kKeyTiles, Base::kWarps;
  using Common = typename Base::Common;
  using Part = typename Base::Part;

  // Gradients of P and of the key-key products, and the gradient of the key-key products times beta.
  struct Pairs {
    T read[kRows][kRows + kPad], write[kRows][kRows + kPad], by_beta[kRows][kRows + kPad];
  };
  // A warp's sums: gradients of queries, gradients of keys as rows of the token-by-token matrices (without
  // beta), and gradients of keys as columns. of_states: sums of products of states with state gradients, for
  // channels Operand::right_row(0) and right_row(kPerLane - 1).
  struct Sums {
    Accumulator q[kBlocks], looking[kBlocks], seen[kBlocks], pairs[kBlocks];
    float of_states[2];
  };

  PRIMUS_DEVICE static int own_block() { return warp() % kBlocks; }
  PRIMUS_DEVICE static int channel() { return warp() * kTile; }
  PRIMUS_DEVICE static bool of_read() { return warp() < kBlocks; }
  PRIMUS_DEVICE static bool has_channels() { return warp() < kKeyTiles; }

  // Computes all products with values, and stores the gradient of values. Ends with a barrier.
  PRIMUS_DEVICE void multiply_values(Common& m, Part& part, std::int64_t item, Sums& sums) const {
    PRIMUS_UNROLL
    for (int b = 0; b < kBlocks; ++b) {
      sums.q[b].clear();
      sums.looking[b].clear();
      sums.seen[b].clear();
      sums.pairs[b].clear();
    }
    sums.of_states[0] = sums.of_states[1] = 0;
    float z_values = 0;
    // With gates per channel, the kernel has many instructions, and fetching the instructions is the
    // bottleneck.
    [[maybe_unused]] constexpr int kUnrolled = kByChannel ? 1 : kColumns / kTile;
    for (std::int64_t first = 0; first < to.strips; first += kColumns / kStrip) {
      barrier();
      const auto values = Base::load_values(item, first);
      Base::load_part(m, part, item, first);
      barrier();
      z_values += Base::values_gradient(m, part, item, first, values);
      PRIMUS_UNROLL_BY(kUnrolled)
      for (int v = 0; v < kColumns; v += kTile) multiply_tile(part, v, sums);
    }
    m.z_values[thread() / kRows][thread() % kRows] = z_values;
    barrier();
  }

  // Stores the gradients of the token-by-token matrices, multiplied by decay(row, earlier token).
  template <class Decay>
  PRIMUS_DEVICE void store_pairs(const Common& m, Pairs& to_pairs, const Sums& sums, Decay decay) const {
    PRIMUS_UNROLL
    for (int j = 0; j < kBlocks; ++j) {
      PRIMUS_UNROLL
      for (int n = 0; n < kPerLane; ++n) {
        const int row = own_block() * kTile + Accumulator::row(n), other = j * kTile + Accumulator::col(n);
        const bool sees = other <= row && other >= m.document[row];
        const float product = sees ? decay(row, other) * sums.pairs[j].at[n] : 0.0F;
        if (of_read()) {
          to_pairs.read[row][other] = from_float<T>(in.scale * product);
        } else {
          const float value = other < row ? -product : 0.0F;
          to_pairs.write[row][other] = from_float<T>(value);
          to_pairs.by_beta[row][other] = from_float<T>(m.beta[row] * value);
        }
      }
    }
  }

  // Stores the gradients of queries and keys, and the sums for beta. Calls visit(block, element, contribution
  // of the element to the gradient of the sum of gates).
  template <class Visit>
  PRIMUS_DEVICE void store_keys(Common& m, std::int64_t item, const Sums& sums, Visit visit) const {
    PRIMUS_UNROLL
    for (int b = 0; b < kBlocks; ++b) {
      float betas[Accumulator::kRows] = {};
      PRIMUS_UNROLL
      for (int n = 0; n < kPerLane; ++n) {
        const int row = b * kTile + Accumulator::row(n), c = channel() + Accumulator::col(n);
        const float key = to_float(m.k[row][c]), look = m.beta[row] * sums.looking[b].at[n];
        const float of_query = to_float(m.q[row][c]) * sums.q[b].at[n];
        visit(b, n, multiply_add(key, look - sums.seen[b].at[n], of_query));
        float& beta = betas[Accumulator::slot(n)];
        beta = multiply_add(key, sums.looking[b].at[n], beta);
        if (n % 2 == 0 || c >= in.key_dim) continue;
        const std::int64_t at = (item * kRows + row) * in.key_dim + c - 1;
        using Pair = Pack<float, 2>;
        const float before = multiply_add(m.beta[row], sums.looking[b].at[n - 1], sums.seen[b].at[n - 1]);
        *reinterpret_cast<Pair*>(d.q + at) = {sums.q[b].at[n - 1], sums.q[b].at[n]};
        *reinterpret_cast<Pair*>(d.k + at) = {before, look + sums.seen[b].at[n]};
      }
      PRIMUS_UNROLL
      for (int slot = 0; slot < Accumulator::kRows; ++slot) {
        const float beta = reduce_row(betas[slot], Plus{});
        m.betas[warp()][b * kTile + Accumulator::row_of_slot(slot)] = beta;
      }
    }
  }
  // The gradient of beta is z · error, where error = values - the values that the keys read from the state
  // and from earlier tokens. Requires a barrier after store_keys().
  PRIMUS_DEVICE void store_beta(const Common& m, std::int64_t item) const {
    const int i = thread();
    if (i >= in.tokens(item)) return;
    float sum = 0;
    PRIMUS_UNROLL
    for (int part = 0; part < kThreads / kRows; ++part) sum += m.z_values[part][i];
    PRIMUS_UNROLL
    for (int w = 0; w < kKeyTiles; ++w) sum += m.betas[w][i];
    d.beta[(in.row(item) + i) * in.all_heads + in.head(item)] = sum;
  }

 private:
  // Multiplies the 16 value columns of `part` that begin at column v.
  PRIMUS_DEVICE static void multiply_tile(const Part& part, int v, Sums& sums) {
    const int own = own_block();
    const auto left = of_read() ? load_left<false>(&part.out[own * kTile][v], kColumns + kPad)
                                : load_left<true>(&part.z[v][own * kTile], kRows + kPad);
    PRIMUS_UNROLL
    for (int j = 0; j < kBlocks; ++j) {
      if (j <= own) multiply(sums.pairs[j], left, load_right<true>(&part.u[v][j * kTile], kRows + kPad));
    }
    if (!has_channels()) return;
    const auto state = load_right<true>(&part.state[v][channel()], kKeys + kPad);
    const auto d_state = load_right<true>(&part.d_state[v][channel()], kKeys + kPad);
    PRIMUS_UNROLL
    for (int n = 0; n < kPerLane; ++n) {
      float& sum = sums.of_states[n / (kPerLane / 2)];
      sum = multiply_add(to_float(state.at[n]), to_float(d_state.at[n]), sum);
    }
    PRIMUS_UNROLL
    for (int b = 0; b < kBlocks; ++b) {
      multiply(sums.q[b], load_left<false>(&part.out[b * kTile][v], kColumns + kPad), state);
      multiply(sums.looking[b], load_left<true>(&part.z[v][b * kTile], kRows + kPad), state);
      multiply(sums.seen[b], load_left<true>(&part.u[v][b * kTile], kRows + kPad), d_state);
    }
  }
};

}  // namespace primus::turbo::PRIMUS_GPU
