// The delta rule's backward pass on matrix units, with one gate per head. It follows DeltaPrepare and
// DeltaAdvance (gpu_chunks.h) and has three kernels:
//
// - DeltaRetreat, from the last chunk to the first: the gradients of U and of states.
// - DeltaFinish, all chunks at once: z = (I + L)^-T dU, which is dV up to the factor beta; from z, U and the
//   states, the gradients of queries and keys of value heads, and of gates and beta.
// - DeltaChunkKeys, all chunks at once: sums these over the value heads of a key head, and differentiates the
//   normalisation.
#pragma once

#include "turbo/delta_rule/gpu_chunks.h"

namespace primus::turbo::PRIMUS_GPU {

template <class T>
struct DeltaChunkGradients {
  const T* out;     // the caller's
  Bytes16* u;       // like DeltaChunks::u
  Bytes16* states;  // like DeltaChunks::states; gradient of the state after the chunk
  float *q, *k;     // [kRows, key_dim] per item
  T* qkv;           // the caller's
  float *g, *beta;
};

// A block handles a head of a sequence and two strips of value columns; two warps share a strip, each with
// half of the keys (see DeltaAdvance).
template <class T, int kKeys>
struct DeltaRetreat : DeltaChunkKernel<T, kKeys, false> {
  using Base = DeltaChunkKernel<T, kKeys, false>;
  using Base::in, Base::to;
  DeltaChunkGradients<T> d;
  static constexpr int kFactors = Base::kFactors, kOwn = Base::kKeyTiles / 2;
  static constexpr int kStrips = 2, kThreads = kStrips * 2 * kWarp, kColumns = kStrips * kStrip, kStages = 2;

  struct Stage {
    T q[kRows][kKeys + kPad], k[kRows][kKeys + kPad], w[kRows][kKeys + kPad];
    T p[kRows][kRows + kPad];
    T out[kRows][kColumns + kPad];
    float factors[kFactors], read[kRows];
  };
  struct Memory {
    Stage stages[kStages];
    DeltaExchange<kStrips * 2> exchange;
  };

  PRIMUS_DEVICE void operator()() const {
    Memory& m = *reinterpret_cast<Memory*>(dynamic_shared());
    const std::int64_t slices = (to.strips + kStrips - 1) / kStrips, of_head = block() / slices;
    const std::int64_t sequence = of_head / in.heads, head = of_head % in.heads;
    const std::int64_t first = block() % slices * kStrips, strip = first + warp() / 2;
    const bool there = strip < to.strips;
    begin_copies(m.stages[0], in.item(sequence, in.chunks - 1, head), first);
    end_group_of_copies();
    Accumulator state[kOwn];
    PRIMUS_UNROLL
    for (int c = 0; c < kOwn; ++c) state[c].clear();
    for (std::int64_t chunk = in.chunks - 1, stage = 0; chunk >= 0; --chunk, stage = 1 - stage) {
      const std::int64_t item = in.item(sequence, chunk, head);
      wait_for_copies<0>();
      barrier();
      if (chunk > 0) begin_copies(m.stages[1 - stage], in.item(sequence, chunk - 1, head), first);
      end_group_of_copies();
      const Stage& now = m.stages[stage];
      Accumulator u[kBlocks];
      if (there) read(now, item, strip, state, u);
      if (there) m.exchange.give(u);
      barrier();
      if (!there) continue;
      m.exchange.take(u);
      pass(now, item, strip, u, state);
    }
  }

 private:
  PRIMUS_DEVICE static int first_tile() { return warp() % 2 * kOwn; }
  PRIMUS_DEVICE static Operand<T> output_gradient(const Stage& now, int t) {
    return load_left<true>(&now.out[t * kTile][warp() / 2 * kStrip], kColumns + kPad);
  }
  // u = this warp's half of the gradient of U: contributions of the state after the chunk, and of the outputs
  // for half of the tokens. Also stores the state.
  PRIMUS_DEVICE void read(const Stage& now, std::int64_t item, std::int64_t strip,
                          const Accumulator (&state)[kOwn], Accumulator (&u)[kBlocks]) const {
    PRIMUS_UNROLL
    for (int t = 0; t < kBlocks; ++t) u[t].clear();
    Operand<T> right[2][kBlocks];
    const auto load_k = [&](int c) {
      PRIMUS_UNROLL
      for (int t = 0; t < kBlocks; ++t)
        right[c % 2][t] = load_right<false>(&now.k[t * kTile][(first_tile() + c) * kTile], kKeys + kPad);
    };
    load_k(0);
    Bytes16* const states =
        d.states + ((item * to.strips + strip) * Base::kKeyTiles + first_tile()) * kWarp + lane();
    PRIMUS_UNROLL
    for (int c = 0; c < kOwn; ++c) {
      if (c + 1 < kOwn) load_k(c + 1);
      const auto rounded = to_left<T>(state[c]);
      states[c * kWarp] = std::bit_cast<Bytes16>(rounded);
      PRIMUS_UNROLL
      for (int t = 0; t < kBlocks; ++t) multiply(u[t], rounded, right[c % 2][t]);
    }
    PRIMUS_UNROLL
    for (int t = 0; t < kBlocks; ++t) {
      // One warp computes the even blocks of tokens, the other the odd ones.
      Accumulator by_read;
      by_read.clear();
      if (t % 2 == warp() % 2) {
        PRIMUS_UNROLL
        for (int i = t; i < kBlocks; ++i)
          multiply(by_read, output_gradient(now, i),
                   load_right<true>(&now.p[i * kTile][t * kTile], kRows + kPad));
      }
      PRIMUS_UNROLL
      for (int n = 0; n < kPerLane; ++n)
        u[t].at[n] =
            multiply_add(now.factors[t * kTile + Accumulator::col(n)], u[t].at[n], in.scale * by_read.at[n]);
    }
  }
  PRIMUS_DEVICE void pass(const Stage& now, std::int64_t item, std::int64_t strip,
                          const Accumulator (&u)[kBlocks], Accumulator (&state)[kOwn]) const {
    const float through = now.factors[kRows];
    PRIMUS_UNROLL
    for (int c = 0; c < kOwn; ++c) {
      PRIMUS_UNROLL
      for (int n = 0; n < kPerLane; ++n) state[c].at[n] *= through;
    }
    Operand<T> queries[2][kOwn], w[2][kOwn];
    const auto load_rows = [&](int t) {
      PRIMUS_UNROLL
      for (int c = 0; c < kOwn; ++c) {
        const int column = (first_tile() + c) * kTile;
        queries[t % 2][c] = load_right<true>(&now.q[t * kTile][column], kKeys + kPad);
        w[t % 2][c] = load_right<true>(&now.w[t * kTile][column], kKeys + kPad);
      }
    };
    load_rows(0);
    Bytes16* const kept = d.u + (item * to.strips + strip) * kBlocks * kWarp + lane();
    PRIMUS_UNROLL
    for (int t = 0; t < kBlocks; ++t) {
      if (t + 1 < kBlocks) load_rows(t + 1);
      auto out = output_gradient(now, t);
      PRIMUS_UNROLL
      for (int n = 0; n < kPerLane; ++n)
        out.at[n] =
            from_float<T>(to_float(out.at[n]) * in.scale * now.read[t * kTile + Operand<T>::left_k(n)]);
      const auto rounded = to_left<T>(u[t]);
      if (t % 2 == warp() % 2) kept[t * kWarp] = std::bit_cast<Bytes16>(rounded);
      PRIMUS_UNROLL
      for (int c = 0; c < kOwn; ++c) {
        multiply(state[c], out, queries[t % 2][c]);
        multiply(state[c], rounded, w[t % 2][c]);
      }
    }
  }
  PRIMUS_DEVICE void begin_copies(Stage& stage, std::int64_t item, std::int64_t first) const {
    const int tokens = in.tokens(item);
    const T* const queries = this->queries(item);
    Base::template copy_rows<kThreads, kKeys>(queries, in.width, tokens, in.key_dim, stage.q);
    Base::template copy_rows<kThreads, kKeys>(queries + in.k_column, in.width, tokens, in.key_dim, stage.k);
    Base::template copy_rows<kThreads, kRows>(to.p + item * kRows * kRows, kRows, kRows, kRows, stage.p);
    const std::int64_t column = in.head(item) * in.value_dim + first * kStrip,
                       width = in.all_heads * in.value_dim;
    Base::template copy_rows<kThreads, kColumns>(d.out + in.row(item) * width + column, width, tokens,
                                                 in.value_dim - first * kStrip, stage.out);
    Base::template copy_rows<kThreads, kKeys>(to.w + item * kRows * kKeys, kKeys, kRows, kKeys, stage.w);
    if (thread() < kFactors / 4)
      copy_async(&stage.factors[thread() * 4], to.write + item * kFactors + thread() * 4, true);
    if (thread() < kRows / 4)
      copy_async(&stage.read[thread() * 4], to.read + item * kRows + thread() * 4, true);
  }
};

// One block per item. A warp has 16 channels of the query and key gradients, and a row block of the gradient
// of P or of the key-key products.
template <class T, int kKeys>
struct DeltaFinish : DeltaChunkKernel<T, kKeys, false> {
  using Base = DeltaChunkKernel<T, kKeys, false>;
  using Base::in, Base::to;
  DeltaChunkGradients<T> d;
  static constexpr int kKeyTiles = Base::kKeyTiles;
  static constexpr int kThreads = 256, kWarps = kThreads / kWarp, kColumns = 64;
  static_assert(kWarp != 32 || (kWarps == 2 * kBlocks && kWarps >= kKeyTiles));
  static_assert(kColumns / kStrip == kBlocks);

  struct Memory {
    T q[kRows][kKeys + kPad], k[kRows][kKeys + kPad];  // normalised
    T back[kRows][kRows + kPad];
    union {
      struct {
        T out[kRows][kColumns + kPad];
        T z[kColumns][kRows + kPad], u[kColumns][kRows + kPad];
        T state[kColumns][kKeys + kPad], d_state[kColumns][kKeys + kPad];
      } part;
      struct {
        T read[kRows][kRows + kPad], write[kRows][kRows + kPad], by_beta[kRows][kRows + kPad];
      } pairs;
    };
    double sums[kRows];
    float since[kRows], until[kRows], beta[kRows];
    int document[kRows];
    float gates[kWarps][kRows], betas[kWarps][kRows];  // partial sums over each warp's channels
    float z_values[kThreads / kRows][kRows];
  };

  PRIMUS_DEVICE void operator()() const {
    Memory& m = *reinterpret_cast<Memory*>(dynamic_shared());
    const std::int64_t item = block();
    const int tokens = in.tokens(item);
    const T* const queries = this->queries(item);
    Base::template copy_rows<kThreads, kKeys>(queries, in.width, tokens, in.key_dim, m.q);
    Base::template copy_rows<kThreads, kKeys>(queries + in.k_column, in.width, tokens, in.key_dim, m.k);
    Base::template copy_rows<kThreads, kRows>(to.back + item * kRows * kRows, kRows, kRows, kRows, m.back);
    end_group_of_copies();
    Base::sum_gates_of_head(in, item, tokens, m.sums);
    if (const int i = thread() - kThreads / 2; i >= 0 && i < kRows) {
      m.beta[i] = in.beta_of(item, i);
      m.document[i] = i < tokens ? in.document(item, i) : kRows;
    }
    wait_for_copies<0>();
    barrier();
    if (const int i = thread(); i < kRows) {
      const int last = tokens - 1;
      m.since[i] = i <= last && m.document[i] < 0 ? ::expf(static_cast<float>(m.sums[i])) : 0.0F;
      m.until[i] =
          i <= last && m.document[last] <= i ? ::expf(static_cast<float>(m.sums[last] - m.sums[i])) : 0.0F;
    }
    normalise(m);

    const int own = warp() % kBlocks, channel = warp() * kTile;
    const bool of_read = warp() < kBlocks, has_channels = warp() < kKeyTiles;
    Accumulator q[kBlocks], looking[kBlocks], seen[kBlocks], pairs[kBlocks];
    PRIMUS_UNROLL
    for (int b = 0; b < kBlocks; ++b) {
      q[b].clear();
      looking[b].clear();
      seen[b].clear();
      pairs[b].clear();
    }
    float of_states = 0, z_values = 0;
    auto& part = m.part;
    for (std::int64_t first = 0; first < to.strips; first += kColumns / kStrip) {
      barrier();
      const Values values = load_values(item, first);
      load_part(m, item, first, of_states);
      barrier();
      z_values += values_gradient(m, item, first, values);
      PRIMUS_UNROLL
      for (int v = 0; v < kColumns; v += kTile) {
        const auto left = of_read ? load_left<false>(&part.out[own * kTile][v], kColumns + kPad)
                                  : load_left<true>(&part.z[v][own * kTile], kRows + kPad);
        PRIMUS_UNROLL
        for (int j = 0; j < kBlocks; ++j) {
          if (j <= own) multiply(pairs[j], left, load_right<true>(&part.u[v][j * kTile], kRows + kPad));
        }
        if (!has_channels) continue;
        const auto state = load_right<true>(&part.state[v][channel], kKeys + kPad);
        const auto d_state = load_right<true>(&part.d_state[v][channel], kKeys + kPad);
        PRIMUS_UNROLL
        for (int b = 0; b < kBlocks; ++b) {
          multiply(q[b], load_left<false>(&part.out[b * kTile][v], kColumns + kPad), state);
          multiply(looking[b], load_left<true>(&part.z[v][b * kTile], kRows + kPad), state);
          multiply(seen[b], load_left<true>(&part.u[v][b * kTile], kRows + kPad), d_state);
        }
      }
    }
    m.z_values[thread() / kRows][thread() % kRows] = z_values;
    barrier();
    PRIMUS_UNROLL
    for (int j = 0; j < kBlocks; ++j) {
      PRIMUS_UNROLL
      for (int n = 0; n < kPerLane; ++n) {
        const int row = own * kTile + Accumulator::row(n), other = j * kTile + Accumulator::col(n);
        const bool sees = other <= row && other >= m.document[row];
        const float decay = sees ? ::expf(static_cast<float>(m.sums[row] - m.sums[other])) : 0.0F;
        if (of_read) {
          m.pairs.read[row][other] = from_float<T>(in.scale * decay * pairs[j].at[n]);
        } else {
          const float value = other < row ? -decay * pairs[j].at[n] : 0.0F;
          m.pairs.write[row][other] = from_float<T>(value);
          m.pairs.by_beta[row][other] = from_float<T>(m.beta[row] * value);
        }
      }
    }
    float last = 0;
    if (has_channels) {
      PRIMUS_UNROLL
      for (int b = 0; b < kBlocks; ++b) {
        PRIMUS_UNROLL
        for (int n = 0; n < kPerLane; ++n) {
          const int row = b * kTile + Accumulator::row(n);
          q[b].at[n] *= in.scale * m.since[row];
          looking[b].at[n] *= -m.since[row];
          seen[b].at[n] *= m.until[row];
          last = multiply_add(seen[b].at[n], to_float(m.k[row][channel + Accumulator::col(n)]), last);
        }
      }
    }
    barrier();
    if (has_channels) {
      PRIMUS_UNROLL
      for (int j = 0; j < kBlocks; ++j) {
        const auto keys = load_right<true>(&m.k[j * kTile][channel], kKeys + kPad);
        const auto queries_of = load_right<true>(&m.q[j * kTile][channel], kKeys + kPad);
        PRIMUS_UNROLL
        for (int b = 0; b < kBlocks; ++b) {
          if (b >= j) {
            multiply(q[b], load_left<false>(&m.pairs.read[b * kTile][j * kTile], kRows + kPad), keys);
            multiply(looking[b], load_left<false>(&m.pairs.write[b * kTile][j * kTile], kRows + kPad), keys);
          }
          if (b <= j) {
            multiply(seen[b], load_left<true>(&m.pairs.read[j * kTile][b * kTile], kRows + kPad), queries_of);
            multiply(seen[b], load_left<true>(&m.pairs.by_beta[j * kTile][b * kTile], kRows + kPad), keys);
          }
        }
      }
      store_keys(m, item, channel, q, looking, seen);
    }
    const int end = tokens - 1;
    const float of_last = block_reduce<kThreads>(multiply_add(m.since[end], of_states, last));
    if (thread() < kRows) store_beta(m, item, tokens);
    if (warp() == 0) store_gates(m, item, tokens, of_last);
  }

 private:
  PRIMUS_DEVICE void normalise(Memory& m) const {
    if (!in.normalise) return;
    // Two threads share a row.
    const int i = thread() / 2 % kRows;
    T* const row = thread() < kThreads / 2 ? m.k[i] : m.q[i];
    float square = 0;
    for (int c = thread() % 2 * 8; c < kKeys; c += 16) {
      float x[8];
      load<8>(row + c, x);
      PRIMUS_UNROLL
      for (int n = 0; n < 8; ++n) square = multiply_add(x[n], x[n], square);
    }
    square += from_lane_xor(square, 1);
    const float factor = unit_factor(square, in.epsilon);
    for (int c = thread() % 2 * 8; c < kKeys; c += 16) {
      float x[8];
      load<8>(row + c, x);
      PRIMUS_UNROLL
      for (int n = 0; n < 8; ++n) x[n] *= factor;
      store<8>(row + c, x);
    }
  }

  // Loads some value columns: half of the warps solve for z, the others fetch U and the states.
  PRIMUS_DEVICE void load_part(Memory& m, std::int64_t item, std::int64_t first, float& of_states) const {
    const std::int64_t width = in.all_heads * in.value_dim;
    const T* const out = d.out + in.row(item) * width + in.head(item) * in.value_dim + first * kStrip;
    Base::template copy_rows<kThreads, kColumns>(out, width, in.tokens(item), in.value_dim - first * kStrip,
                                                 m.part.out);
    end_group_of_copies();
    const int local = warp() % kBlocks * kStrip;
    const std::int64_t strip = first + warp() % kBlocks;
    const bool there = strip < to.strips;
    const std::int64_t of_u = (item * to.strips + strip) * kBlocks * kWarp + lane();
    const std::int64_t of_state = (item * to.strips + strip) * kKeyTiles * kWarp + lane();
    if (warp() < kBlocks) {
      Operand<T> z[kBlocks];
      PRIMUS_UNROLL
      for (int j = kBlocks - 1; j >= 0; --j) {
        Accumulator sum;
        sum.clear();
        const auto u = there ? std::bit_cast<Operand<T>>(d.u[of_u + j * kWarp]) : Operand<T>{};
        multiply(sum, u, load_right<true>(&m.back[j * kTile][j * kTile], kRows + kPad));
        PRIMUS_UNROLL
        for (int i = kBlocks - 1; i > j; --i)
          multiply(sum, z[i], load_right<true>(&m.back[i * kTile][j * kTile], kRows + kPad));
        z[j] = to_left<T>(sum);
        lay(z[j], &m.part.z[local][j * kTile], kRows + kPad);
      }
    } else {
      PRIMUS_UNROLL
      for (int t = 0; t < kBlocks; ++t) {
        const auto u = there ? std::bit_cast<Operand<T>>(to.u[of_u + t * kWarp]) : Operand<T>{};
        lay(u, &m.part.u[local][t * kTile], kRows + kPad);
      }
      PRIMUS_UNROLL
      for (int c = 0; c < kKeyTiles; ++c) {
        const auto state = there ? std::bit_cast<Operand<T>>(to.states[of_state + c * kWarp]) : Operand<T>{};
        const auto d_state = there ? std::bit_cast<Operand<T>>(d.states[of_state + c * kWarp]) : Operand<T>{};
        lay(state, &m.part.state[local][c * kTile], kKeys + kPad);
        lay(d_state, &m.part.d_state[local][c * kTile], kKeys + kPad);
        PRIMUS_UNROLL
        for (int n = 0; n < kPerLane; ++n)
          of_states = multiply_add(to_float(state.at[n]), to_float(d_state.at[n]), of_states);
      }
    }
    wait_for_copies<0>();
  }
  PRIMUS_DEVICE static void lay(const Operand<T>& tile, T* to, int step) {
    PRIMUS_UNROLL
    for (int n = 0; n < kPerLane; n += 2)
      *reinterpret_cast<Pack<T, 2>*>(to + Operand<T>::left_row(n) * step + Operand<T>::left_k(n)) = {
          tile.at[n], tile.at[n + 1]};
  }

  // A thread handles some values of one token.
  static constexpr int kOwn = kColumns / (kThreads / kRows);
  struct Values {
    Bytes16 at[kOwn / 8];
  };
  PRIMUS_DEVICE std::int64_t value_column(std::int64_t first) const {
    return first * kStrip + thread() / kRows * kOwn;
  }
  PRIMUS_DEVICE std::int64_t values_at(std::int64_t item, std::int64_t column) const {
    return (in.row(item) + thread() % kRows) * in.width + in.v_column + in.head(item) * in.value_dim + column;
  }
  PRIMUS_DEVICE Values load_values(std::int64_t item, std::int64_t first) const {
    Values values{};
    if (thread() % kRows >= in.tokens(item)) return values;
    const std::int64_t column = value_column(first);
    PRIMUS_UNROLL
    for (int v = 0; v < kOwn; v += 8) {
      if (column + v < in.value_dim) values.at[v / 8] = load_line(in.qkv + values_at(item, column + v));
    }
    return values;
  }
  // Stores the gradient of values; returns this thread's part of z · values.
  PRIMUS_DEVICE float values_gradient(const Memory& m, std::int64_t item, std::int64_t first,
                                      const Values& values) const {
    const int i = thread() % kRows;
    if (i >= in.tokens(item)) return 0;
    const std::int64_t column = value_column(first);
    float sum = 0;
    PRIMUS_UNROLL
    for (int v = 0; v < kOwn; v += 8) {
      if (column + v >= in.value_dim) break;
      const auto piece = std::bit_cast<Pack<T, 8>>(values.at[v / 8]);
      float gradient[8];
      PRIMUS_UNROLL
      for (int n = 0; n < 8; ++n) {
        const float z = to_float(m.part.z[thread() / kRows * kOwn + v + n][i]);
        sum = multiply_add(z, to_float(piece.at[n]), sum);
        gradient[n] = m.beta[i] * z;
      }
      store<8>(d.qkv + values_at(item, column + v), gradient);
    }
    return sum;
  }

  PRIMUS_DEVICE void store_keys(Memory& m, std::int64_t item, int channel, const Accumulator (&q)[kBlocks],
                                const Accumulator (&looking)[kBlocks],
                                const Accumulator (&seen)[kBlocks]) const {
    PRIMUS_UNROLL
    for (int b = 0; b < kBlocks; ++b) {
      float gates[Accumulator::kRows] = {}, betas[Accumulator::kRows] = {};
      PRIMUS_UNROLL
      for (int n = 0; n < kPerLane; ++n) {
        const int row = b * kTile + Accumulator::row(n), c = channel + Accumulator::col(n);
        const float key = to_float(m.k[row][c]), look = m.beta[row] * looking[b].at[n];
        float& gate = gates[Accumulator::slot(n)];
        gate = multiply_add(to_float(m.q[row][c]), q[b].at[n], gate);
        gate = multiply_add(key, look - seen[b].at[n], gate);
        float& beta = betas[Accumulator::slot(n)];
        beta = multiply_add(key, looking[b].at[n], beta);
        if (n % 2 == 0 || c >= in.key_dim) continue;
        const std::int64_t at = (item * kRows + row) * in.key_dim + c - 1;
        using Pair = Pack<float, 2>;
        const float before = multiply_add(m.beta[row], looking[b].at[n - 1], seen[b].at[n - 1]);
        *reinterpret_cast<Pair*>(d.q + at) = {q[b].at[n - 1], q[b].at[n]};
        *reinterpret_cast<Pair*>(d.k + at) = {before, look + seen[b].at[n]};
      }
      PRIMUS_UNROLL
      for (int slot = 0; slot < Accumulator::kRows; ++slot) {
        const float gate = reduce_row(gates[slot], Plus{}), beta = reduce_row(betas[slot], Plus{});
        const int row = b * kTile + Accumulator::row_of_slot(slot);
        m.gates[warp()][row] = gate;
        m.betas[warp()][row] = beta;
      }
    }
  }
  // The gradient of beta is z · error: z · values, minus z times what the keys read from the state and from
  // earlier tokens.
  PRIMUS_DEVICE void store_beta(const Memory& m, std::int64_t item, int tokens) const {
    const int i = thread();
    if (i >= tokens) return;
    float sum = 0;
    PRIMUS_UNROLL
    for (int part = 0; part < kThreads / kRows; ++part) sum += m.z_values[part][i];
    PRIMUS_UNROLL
    for (int w = 0; w < kKeyTiles; ++w) sum += m.betas[w][i];
    d.beta[(in.row(item) + i) * in.all_heads + in.head(item)] = sum;
  }
  // The gradient of a gate sums over its own and all later tokens; a lane handles two.
  PRIMUS_DEVICE void store_gates(const Memory& m, std::int64_t item, int tokens, float of_last) const {
    const auto of_token = [&](int i) {
      double sum = 0;
      if (i >= tokens) return sum;
      PRIMUS_UNROLL
      for (int w = 0; w < kKeyTiles; ++w) sum += static_cast<double>(m.gates[w][i]);
      return i == tokens - 1 ? sum + static_cast<double>(of_last) : sum;
    };
    const int i = kRows - 1 - 2 * lane();
    const double first = of_token(i), second = of_token(i - 1);
    double sum = first + second;
    PRIMUS_UNROLL
    for (int distance = 1; distance < kWarp; distance *= 2) {
      const double before = from_lane_before(sum, distance);
      if (lane() >= distance) sum += before;
    }
    const double before = from_lane_before(sum, 1), start = lane() > 0 ? before : 0.0;
    const auto keep = [&](int token, double value) {
      if (token >= tokens) return;
      d.g[(in.row(item) + token) * in.all_heads + in.head(item)] =
          m.document[token] == token ? 0.0F : static_cast<float>(value);
    };
    keep(i, start + first);
    keep(i - 1, start + first + second);
  }
};

// Gradients of queries and keys: sums over the value heads of a key head, and differentiates the
// normalisation. One block per chunk of a key head; a warp processes one row of both after the other.
template <class T>
struct DeltaChunkKeys {
  static constexpr int kThreads = 256, kOwn = 4;
  DeltaItems<T> in;
  DeltaChunkGradients<T> d;

  PRIMUS_DEVICE void operator()() const {
    const std::int64_t heads = in.heads / in.group, own = block() % heads;
    const std::int64_t first = block() / heads * in.heads + own * in.group, size = kRows * in.key_dim;
    const int tokens = in.tokens(first), c = lane() * kOwn;
    const bool there = c < in.key_dim;
    const std::int64_t column = in.row(first) * in.width + (in.first_head / in.group + own) * in.key_dim + c;
    for (int row = warp(); row < 2 * kRows; row += kThreads / kWarp) {
      const bool key = row >= kRows;
      const int i = row % kRows;
      if (i >= tokens) continue;
      const std::int64_t at = column + i * in.width + (key ? in.k_column : 0);
      float x[kOwn] = {}, gradient[kOwn] = {};
      if (there) {
        load<kOwn>(in.qkv + at, x);
        const float* from = (key ? d.k : d.q) + first * size + i * in.key_dim + c;
        for (std::int64_t head = 0; head < in.group; ++head, from += size) {
          float more[kOwn];
          load<kOwn>(from, more);
          PRIMUS_UNROLL
          for (int n = 0; n < kOwn; ++n) gradient[n] += more[n];
        }
      }
      if (in.normalise) {
        float square = 0, along = 0;
        PRIMUS_UNROLL
        for (int n = 0; n < kOwn; ++n) {
          square = multiply_add(x[n], x[n], square);
          along = multiply_add(x[n], gradient[n], along);
        }
        const float factor = unit_factor(warp_reduce(square), in.epsilon);
        const float less = warp_reduce(along) * factor * factor;
        PRIMUS_UNROLL
        for (int n = 0; n < kOwn; ++n) gradient[n] = factor * multiply_add(-less, x[n], gradient[n]);
      }
      if (there) store<kOwn>(d.qkv + at, gradient);
    }
  }
};

}  // namespace primus::turbo::PRIMUS_GPU
