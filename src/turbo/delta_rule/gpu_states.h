// Computes the states before all chunks from the inputs, on GPUs. The forward and the backward pass begin
// with these kernels.
#pragma once

#include "turbo/delta_rule/gpu_item_products.h"
#include "turbo/delta_rule/gpu_scan.h"

namespace primus::turbo::PRIMUS_GPU {

// Computes the sums of gates, and queries and keys with decays and without decays. There is one block per
// item.
template <class T>
struct DeltaGather {
  static constexpr int kThreads = 256;
  DeltaItems<T> in;
  DeltaStates<T> to;

  PRIMUS_DEVICE void operator()() const {
    const std::int64_t item = block(), columns = in.gate_columns(), row = in.row(item);
    const int tokens = in.tokens(item);
    double* const sums = to.sums + item * kRows * columns;
    for (std::int64_t c = thread(); c < columns; c += kThreads) {
      double sum = 0;
      for (int i = 0; i < kRows; ++i) {
        if (i < tokens)
          sum += static_cast<double>(in.g[((row + i) * in.all_heads + in.head(item)) * columns + c]);
        sums[i * columns + c] = sum;
      }
    }
    barrier();
    const std::int64_t from = in.head(item) / in.group * in.key_dim;
    for (int i = warp(); i < kRows; i += kThreads / kWarp) {
      const bool there = i < tokens;
      const T* const q = in.qkv + (row + (there ? i : 0)) * in.width + from;
      const T* const k = q + in.k_column;
      float q_factor = 1, k_factor = 1;
      if (in.normalise) {
        q_factor = normalising_factor(q);
        k_factor = normalising_factor(k);
      }
      const std::int64_t at = (item * kRows + i) * in.key_dim;
      for (std::int64_t c = lane(); c < in.key_dim; c += kWarp) {
        const float x = there ? to_float(q[c]) * q_factor : 0.0F,
                    y = there ? to_float(k[c]) * k_factor : 0.0F;
        const float since = there ? in.since_begin(sums, item, i, c) : 0.0F;
        to.q[at + c] = from_float<T>(x);
        to.k[at + c] = from_float<T>(y);
        to.q_since[at + c] = from_float<T>(x * since);
        to.k_since[at + c] = from_float<T>(y * since);
        to.k_until[at + c] = from_float<T>(y * in.until_end(sums, item, i, c));
      }
    }
  }

 private:
  PRIMUS_DEVICE float normalising_factor(const T* x) const {
    float square = 0;
    for (std::int64_t c = lane(); c < in.key_dim; c += kWarp) square += to_float(x[c]) * to_float(x[c]);
    return unit_factor(warp_reduce(square), in.epsilon);
  }
};

// For one gate per head: multiplies query-key and key-key products, or the gradients of these products, by
// the decay from token to token.
template <class T, class Write>
struct DeltaWeigh {
  static constexpr int kThreads = 256;
  DeltaItems<T> in;
  const double* sums;
  const float *of_read, *of_write;
  T* read;
  Write* write;

  PRIMUS_DEVICE void operator()() const {
    const std::int64_t element = block() * kThreads + thread(), item = element / (kRows * kRows);
    const int i = static_cast<int>(element / kRows % kRows), j = static_cast<int>(element % kRows);
    const double* const own = in.sums(sums, item);
    const float decay = in.sees(item, i, j) ? ::expf(static_cast<float>(own[i] - own[j])) : 0.0F;
    const float by_query = of_read[element], by_key = of_write[element];
    read[element] = from_float<T>(decay * by_query);
    write[element] = from_float<Write>(j < i ? decay * by_key : 0.0F);
  }
};

// With gates per channel, computes the product of each pair of tokens separately. A thread processes one key,
// and half of the tokens that see this key.
template <class T>
struct DeltaPairs {
  static constexpr int kThreads = 256, kGroups = kThreads / kRows, kOwn = kRows / kGroups, kChannels = 16;
  DeltaItems<T> in;
  DeltaStates<T> to;

  PRIMUS_DEVICE void operator()() const {
    struct Tile {
      double sum[kRows][kChannels + 1];
      float q[kRows][kChannels + 1], k[kRows][kChannels + 1];
    };
    Tile& tile = shared<Tile>();
    const std::int64_t item = block(), from = item * kRows * in.key_dim;
    const double* const sums = in.sums(to.sums, item);
    const int j = thread() % kRows, first = thread() / kRows;
    float read[kOwn] = {}, write[kOwn] = {};
    for (std::int64_t channel = 0; channel < in.key_dim; channel += kChannels) {
      barrier();
      for (int at = thread(); at < kRows * kChannels; at += kThreads) {
        const int i = at / kChannels, c = at % kChannels;
        const bool there = channel + c < in.key_dim;
        const std::int64_t element = i * in.key_dim + channel + c;
        tile.sum[i][c] = there ? sums[element] : 0.0;
        tile.q[i][c] = there ? to_float(to.q[from + element]) : 0.0F;
        tile.k[i][c] = there ? to_float(to.k[from + element]) : 0.0F;
      }
      barrier();
      for (int c = 0; c < kChannels; ++c) {
        const double sum = tile.sum[j][c];
        const float key = tile.k[j][c];
        PRIMUS_UNROLL
        for (int n = 0; n < kOwn; ++n) {
          const int i = n * kGroups + first;
          if (i < j) continue;
          const float seen = key * ::expf(static_cast<float>(tile.sum[i][c] - sum));
          read[n] = multiply_add(tile.q[i][c], seen, read[n]);
          write[n] = multiply_add(tile.k[i][c], seen, write[n]);
        }
      }
    }
    PRIMUS_UNROLL
    for (int n = 0; n < kOwn; ++n) {
      const int i = n * kGroups + first;
      const std::int64_t element = (item * kRows + i) * kRows + j;
      const bool sees = in.sees(item, i, j);
      to.read[element] = from_float<T>(sees ? read[n] : 0.0F);
      to.write[element] = sees && j < i ? write[n] : 0.0F;
    }
  }
};

// Solves (I + write · beta) [error, w] = [values, keys with the decay since the start] by substitution, with
// one column per thread.
template <class T>
struct DeltaSolve {
  static constexpr int kThreads = 64;
  DeltaItems<T> in;
  DeltaStates<T> to;

  static std::int64_t parts(std::int64_t columns) { return blocks_for(columns, kThreads); }
  PRIMUS_DEVICE void operator()() const {
    struct Tile {
      float factor[kRows][kRows];
      float x[kRows][kThreads];
    };
    Tile& tile = shared<Tile>();
    const std::int64_t columns = in.value_dim + in.key_dim,
                       parts_of_item = (columns + kThreads - 1) / kThreads;
    const std::int64_t item = block() / parts_of_item, row = in.row(item);
    const std::int64_t column = block() % parts_of_item * kThreads + thread();
    const int tokens = in.tokens(item);
    const float* const beta = in.beta + row * in.all_heads + in.head(item);
    for (int at = thread(); at < kRows * kRows; at += kThreads) {
      const int j = at % kRows;
      tile.factor[at / kRows][j] =
          j < tokens ? to.write[item * kRows * kRows + at] * beta[j * in.all_heads] : 0.0F;
    }
    barrier();
    if (column >= columns) return;
    const bool value = column < in.value_dim;
    const T* const values = in.qkv + row * in.width + in.v_column + in.head(item) * in.value_dim + column;
    const std::int64_t key = item * kRows * in.key_dim + column - in.value_dim;
    for (int i = 0; i < kRows; ++i) {
      float x = 0;
      if (i < tokens) x = to_float(value ? values[i * in.width] : to.k_since[key + i * in.key_dim]);
      for (int j = 0; j < i; ++j) x = multiply_add(-tile.factor[i][j], tile.x[j][thread()], x);
      tile.x[i][thread()] = x;
      if (value) {
        to.error[(item * kRows + i) * in.value_dim + column] = x;
      } else {
        to.w[key + i * in.key_dim] = from_float<T>(x);
      }
    }
  }
};

// Computes the states before all chunks, the errors and U.
template <class T>
struct DeltaScan {
  static constexpr int kThreads = kScanThreads;
  DeltaItems<T> in;
  DeltaStates<T> to;

  PRIMUS_DEVICE void operator()() const {
    const DeltaScanMemory<T> memory(in.key_dim);
    const DeltaScanPlace place(in);
    const std::int64_t first = place.first;
    Accumulator sums[kScanTiles];
    for (std::int64_t chunk = 0; chunk < in.chunks; ++chunk) {
      const std::int64_t item = in.item(place.sequence, chunk, place.head), keys = item * kRows * in.key_dim;
      const double* const gates = in.sums(to.sums, item);
      const float through = in.through(gates, item, 0);
      barrier();
      memory.keep_state(to.states + item * in.key_dim * in.value_dim, in.key_dim, in.value_dim, first);
      PRIMUS_UNROLL
      for (int t = 0; t < kScanTiles; ++t) sums[t].clear();
      memory.multiply_state(to.w + keys, in.key_dim, sums);
      memory.for_each_element([&](int t, int n, int i, int v) {
        T u = from_float<T>(0.0F);
        if (first + v < in.value_dim) {
          const std::int64_t at = (item * kRows + i) * in.value_dim + first + v;
          const float error = to.error[at] - sums[t].at[n];
          to.error[at] = error;
          u = from_float<T>(in.beta_of(item, i) * error);
          to.u[at] = u;
        }
        memory.right[i][v] = u;
      });
      for (std::int64_t column = 0; column < in.key_dim; column += kScanPiece) {
        memory.load_piece(to.k_until + keys, in.key_dim, column);
        memory.multiply_piece(memory.right, sums);
        memory.pass(in, gates, item, through, column, sums);
      }
    }
  }
};

// Computes the states and U.
template <class T>
void make_states(Context& context, const DeltaItems<T>& in, const DeltaStates<T>& to) {
  const std::int64_t items = in.count(), dim = in.key_dim;
  launch(context, items, DeltaGather<T>{in, to});
  if (in.channel_gates) {
    launch(context, items, DeltaPairs<T>{in, to});
  } else {
    const auto keys = matrix(to.k, kRows, dim).transposed();
    multiply_items(context, items, kRows, kRows, dim, matrix(to.q, kRows, dim), keys, to.scores);
    multiply_items(context, items, kRows, kRows, dim, matrix(to.k, kRows, dim), keys, to.write);
    using Weigh = DeltaWeigh<T, float>;
    launch(context, blocks_for(items * kRows * kRows, Weigh::kThreads),
           Weigh{in, to.sums, to.scores, to.write, to.read, to.write});
  }
  launch(context, items * DeltaSolve<T>::parts(in.value_dim + dim), DeltaSolve<T>{in, to});
  launch_scan(context, in, DeltaScan<T>{in, to});
}

}  // namespace primus::turbo::PRIMUS_GPU
