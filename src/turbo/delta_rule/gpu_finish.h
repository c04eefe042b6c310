// Shared code of the delta rule's kernels that compute a chunk's gradients (gpu_retreat.h). The kernels read
// the gradients of states and of U. These kernels share the products with values, and the code that stores
// gradients of keys and beta.
#pragma once

#include "turbo/delta_rule/gpu_finish_parts.h"

namespace primus::turbo::PRIMUS_GPU {

// A warp computes 16 channels. The gradient of a key has two parts: the key is a row and a column of the
// token-by-token matrices. The first half of the warps (of_rows()) computes the query gradients, and the
// rows' part of key gradients. The second half computes the columns' part, and each warp also computes 16
// rows of the gradient of P or of the gradient of the key-key products.
template <class T, int kKeys, bool kByChannel>
struct DeltaFinish : DeltaFinishParts<T, kKeys, kByChannel> {
  using Base = DeltaFinishParts<T, kKeys, kByChannel>;
  using Base::in, Base::to, Base::d;
  using Base::kThreads, Base::kColumns, Base::kStrips, Base::kKeyTiles, Base::kHalf;
  using Common = typename Base::Common;
  using Part = typename Base::Part;
  using Pair = typename Base::Pair;

  // Gradients of P and of the key-key products, and the gradient of the key-key products times beta.
  struct Pairs {
    T read[kRows][kRows + kPad], write[kRows][kRows + kPad], by_beta[kRows][kRows + kPad];
  };
  // This memory replaces Part when all products with values are computed.
  struct Rest {
    Pairs pairs;
    float look[kRows][kKeys + 4];  // the rows' part of key gradients
    float betas[kHalf][kRows];     // partial sums over each warp's channels
    float z_values[kColumns / kTile][kRows];
  };
  // A warp's sums. With of_rows(): query gradients, and the rows' part of key gradients without beta.
  // Otherwise: the columns' part of key gradients, and gradients of the token-by-token matrices. of_states
  // has the sums of states times state gradients for two channels, Operand::right_row(0) and
  // right_row(kPerLane - 1).
  struct Sums {
    Accumulator first[kBlocks], second[kBlocks];
    float of_states[2], z_values[Accumulator::kRows];
  };

  PRIMUS_DEVICE static bool of_rows() { return warp() < kHalf; }
  PRIMUS_DEVICE static int own_block() { return warp() % kBlocks; }
  PRIMUS_DEVICE static int channel() { return warp() % kHalf * kTile; }
  PRIMUS_DEVICE static bool of_read() { return warp() % kHalf < kBlocks; }
  PRIMUS_DEVICE static bool has_channels() { return warp() % kHalf < kKeyTiles; }

  // Computes all products with values, and stores the gradient of values. Ends with a barrier.
  PRIMUS_DEVICE void multiply_values(Common& m, Part& part, const DeltaPlace& place, Sums& sums) const {
    PRIMUS_UNROLL
    for (int b = 0; b < kBlocks; ++b) {
      sums.first[b].clear();
      sums.second[b].clear();
    }
    sums.of_states[0] = sums.of_states[1] = 0;
    PRIMUS_UNROLL
    for (int slot = 0; slot < Accumulator::kRows; ++slot) sums.z_values[slot] = 0;
    PRIMUS_UNROLL_BY(1)
    for (std::int64_t first = 0; first < to.strips; first += kStrips) {
      const auto values = Base::load_values(place, first);
      wait_for_copies<0>();
      barrier();
      Base::lay_part(m, part);
      barrier();
      if (first + kStrips < to.strips) Base::fetch_part(part, place, first + kStrips);
      Base::values_gradient(m, part, place, first, values, sums.z_values);
      const auto& out = part.out[first / kStrips % 2];
      PRIMUS_UNROLL_BY(2)
      for (int v = 0; v < kColumns; v += kTile) {
        if (of_rows()) {
          multiply_rows(part, out, v, sums);
        } else {
          multiply_columns(part, out, v, sums);
        }
      }
    }
    barrier();
  }

  // Stores the gradients of the token-by-token matrices, multiplied by decay(row, earlier token).
  template <class Decay>
  PRIMUS_DEVICE void store_pairs(const Common& m, Rest& rest, const Sums& sums, Decay decay) const {
    PRIMUS_UNROLL
    for (int slot = 0; slot < Accumulator::kRows; ++slot) {
      const float sum = reduce_row(sums.z_values[slot], Plus{});
      if (warp() < Base::kValueWarps)
        rest.z_values[warp() / kBlocks][own_block() * kTile + Accumulator::row_of_slot(slot)] = sum;
    }
    if (of_rows()) return;
    Pairs& pairs = rest.pairs;
    PRIMUS_UNROLL
    for (int j = 0; j < kBlocks; ++j) {
      PRIMUS_UNROLL
      for (int n = 0; n < kPerLane; n += 2) {
        const int row = own_block() * kTile + Accumulator::row(n), other = j * kTile + Accumulator::col(n);
        float product[2];
        PRIMUS_UNROLL
        for (int next = 0; next < 2; ++next) {
          const bool sees = other + next <= row && other + next >= m.document[row];
          product[next] = sees ? decay(row, other + next) * sums.second[j].at[n + next] : 0.0F;
        }
        if (of_read()) {
          put(&pairs.read[row][other], in.scale * product[0], in.scale * product[1]);
        } else {
          const float low = other < row ? -product[0] : 0.0F, high = other + 1 < row ? -product[1] : 0.0F;
          put(&pairs.write[row][other], low, high);
          put(&pairs.by_beta[row][other], m.beta[row] * low, m.beta[row] * high);
        }
      }
    }
  }

  // Stores query and key gradients, and the sums for beta. Calls visit(block, n, low, high), where low and
  // high are the contributions of elements n and n + 1 to the gradient of the sum of gates. Has a barrier.
  template <class Visit>
  PRIMUS_DEVICE void store_keys(const Common& m, Rest& rest, const DeltaPlace& place, const Sums& sums,
                                Visit visit) const {
    if (of_rows() && has_channels()) store_rows(m, rest, place, sums, visit);
    barrier();
    if (!of_rows() && has_channels()) store_columns(m, rest, place, sums, visit);
  }
  // The gradient of beta is z · error, where error = values - the values that the keys read from the state
  // and from earlier tokens. Requires a barrier after store_keys().
  PRIMUS_DEVICE void store_beta(const Rest& rest, const DeltaPlace& place) const {
    const int i = thread();
    if (i >= place.tokens) return;
    float sum = 0;
    PRIMUS_UNROLL
    for (int part = 0; part < kColumns / kTile; ++part) sum += rest.z_values[part][i];
    PRIMUS_UNROLL
    for (int w = 0; w < kKeyTiles; ++w) sum += rest.betas[w][i];
    d.beta[(place.row + i) * in.all_heads + place.head] = sum;
  }

  PRIMUS_DEVICE static void put(T* to, float low, float high) {
    *reinterpret_cast<Pair*>(to) = {from_float<T>(low), from_float<T>(high)};
  }

 private:
  using Out = T[kRows][kColumns + kPad];

  // Multiply the 16 value columns of `part` that begin at column v.
  PRIMUS_DEVICE static void multiply_rows(const Part& part, const Out& out, int v, Sums& sums) {
    if (!has_channels()) return;
    const auto state = load_right<true>(&part.state[v][channel()], kKeys + kPad);
    PRIMUS_UNROLL
    for (int b = 0; b < kBlocks; ++b) {
      multiply(sums.first[b], load_left<false>(&out[b * kTile][v], kColumns + kPad), state);
      multiply(sums.second[b], load_left<true>(&part.z[v][b * kTile], kRows + kPad), state);
    }
  }
  PRIMUS_DEVICE static void multiply_columns(const Part& part, const Out& out, int v, Sums& sums) {
    const int own = own_block();
    const auto left = of_read() ? load_left<false>(&out[own * kTile][v], kColumns + kPad)
                                : load_left<true>(&part.z[v][own * kTile], kRows + kPad);
    PRIMUS_UNROLL
    for (int j = 0; j < kBlocks; ++j) {
      if (j <= own) multiply(sums.second[j], left, load_right<true>(&part.u[v][j * kTile], kRows + kPad));
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
    for (int b = 0; b < kBlocks; ++b)
      multiply(sums.first[b], load_left<true>(&part.u[v][b * kTile], kRows + kPad), d_state);
  }

  template <class Visit>
  PRIMUS_DEVICE void store_rows(const Common& m, Rest& rest, const DeltaPlace& place, const Sums& sums,
                                Visit visit) const {
    PRIMUS_UNROLL
    for (int b = 0; b < kBlocks; ++b) {
      float betas[Accumulator::kRows] = {};
      PRIMUS_UNROLL
      for (int n = 0; n < kPerLane; n += 2) {
        const int row = b * kTile + Accumulator::row(n), c = channel() + Accumulator::col(n);
        const float(&of_query)[kPerLane] = sums.first[b].at;
        const float(&of_key)[kPerLane] = sums.second[b].at;
        float query[2], key[2];
        load<2>(&m.q[row][c], query);
        load<2>(&m.k[row][c], key);
        visit(b, n, query[0] * of_query[n], query[1] * of_query[n + 1]);
        float& beta = betas[Accumulator::slot(n)];
        beta = multiply_add(key[1], of_key[n + 1], multiply_add(key[0], of_key[n], beta));
        store<2>(&rest.look[row][c], {m.beta[row] * of_key[n], m.beta[row] * of_key[n + 1]});
        if (c < in.key_dim)
          store<2>(d.q + (place.item * kRows + row) * in.key_dim + c, {of_query[n], of_query[n + 1]});
      }
      PRIMUS_UNROLL
      for (int slot = 0; slot < Accumulator::kRows; ++slot) {
        const float beta = reduce_row(betas[slot], Plus{});
        rest.betas[warp()][b * kTile + Accumulator::row_of_slot(slot)] = beta;
      }
    }
  }
  template <class Visit>
  PRIMUS_DEVICE void store_columns(const Common& m, const Rest& rest, const DeltaPlace& place,
                                   const Sums& sums, Visit visit) const {
    PRIMUS_UNROLL
    for (int b = 0; b < kBlocks; ++b) {
      PRIMUS_UNROLL
      for (int n = 0; n < kPerLane; n += 2) {
        const int row = b * kTile + Accumulator::row(n), c = channel() + Accumulator::col(n);
        const float(&seen)[kPerLane] = sums.first[b].at;
        float look[2], key[2];
        load<2>(&rest.look[row][c], look);
        load<2>(&m.k[row][c], key);
        visit(b, n, key[0] * (look[0] - seen[n]), key[1] * (look[1] - seen[n + 1]));
        if (c < in.key_dim)
          store<2>(d.k + (place.item * kRows + row) * in.key_dim + c,
                   {look[0] + seen[n], look[1] + seen[n + 1]});
      }
    }
  }
};

}  // namespace primus::turbo::PRIMUS_GPU
