// Kernels of the delta rule's backward pass on GPUs: the gradients of states, values and beta. The kernels of
// gpu_input_gradients.h run after these kernels.
#pragma once

#include "turbo/delta_rule/gpu_states.h"

namespace primus::turbo::PRIMUS_GPU {

// Scales the gradient of the output and copies it to the workspace, in order of items.
template <class T>
struct DeltaScaled {
  static constexpr int kThreads = 256;
  DeltaItems<T> in;
  DeltaGradients<T> d;

  PRIMUS_DEVICE void operator()() const {
    const std::int64_t item = block(), at = item * kRows * in.value_dim;
    const T* const from = d.out + (in.row(item) * in.all_heads + in.head(item)) * in.value_dim;
    for (std::int64_t e = thread(); e < kRows * in.value_dim; e += kThreads) {
      const std::int64_t i = e / in.value_dim, v = e % in.value_dim;
      const float x =
          i < in.tokens(item) ? in.scale * to_float(from[i * in.all_heads * in.value_dim + v]) : 0.0F;
      d.scaled[at + e] = from_float<T>(x);
    }
  }
};

// Computes the gradients of states, from the last chunk to the first chunk, and the contribution of these
// gradients to the gradient of U.
template <class T>
struct DeltaScanBackward {
  static constexpr int kThreads = kScanThreads;
  DeltaItems<T> in;
  DeltaStates<T> from;
  DeltaGradients<T> d;

  PRIMUS_DEVICE void operator()() const {
    const DeltaScanMemory<T> memory(in.key_dim);
    const DeltaScanPlace place(in);
    const std::int64_t first = place.first;
    Accumulator sums[kScanTiles], less[kScanTiles];
    for (std::int64_t chunk = in.chunks - 1; chunk >= 0; --chunk) {
      const std::int64_t item = in.item(place.sequence, chunk, place.head), keys = item * kRows * in.key_dim;
      const double* const gates = in.sums(from.sums, item);
      const float through = in.through(gates, item, 0);
      barrier();
      memory.keep_state(d.states + item * in.key_dim * in.value_dim, in.key_dim, in.value_dim, first);
      PRIMUS_UNROLL
      for (int t = 0; t < kScanTiles; ++t) sums[t].clear();
      memory.multiply_state(from.k_until + keys, in.key_dim, sums);
      memory.for_each_element([&](int t, int n, int i, int v) {
        T scaled = from_float<T>(0.0F), of_beta = scaled;
        if (first + v < in.value_dim) {
          const std::int64_t at = (item * kRows + i) * in.value_dim + first + v;
          const float u = d.u[at] + sums[t].at[n];
          d.u[at] = u;
          scaled = d.scaled[at];
          of_beta = from_float<T>(in.beta_of(item, i) * u);
        }
        memory.right[i][v] = scaled;
        memory.more[i][v] = of_beta;
      });
      for (std::int64_t column = 0; column < in.key_dim; column += kScanPiece) {
        memory.load_piece(from.q_since + keys, in.key_dim, column);
        memory.multiply_piece(memory.right, sums);
        memory.load_piece(from.w + keys, in.key_dim, column);
        memory.multiply_piece(memory.more, less);
        memory.for_each_element([&](int t, int n, int, int) { sums[t].at[n] -= less[t].at[n]; });
        memory.pass(in, gates, item, through, column, sums);
      }
    }
  }
};

// Solves (I + beta · write)ᵀ z = dU by substitution, beginning with the last token. Then computes d error =
// beta · z and d beta = z · error. There is one block per item. In the first part, a thread processes a
// column; in the second part, a token.
template <class T>
struct DeltaSolveBackward {
  static constexpr int kThreads = kRows;
  DeltaItems<T> in;
  DeltaStates<T> from;
  DeltaGradients<T> d;

  PRIMUS_DEVICE void operator()() const {
    struct Tile {
      float factor[kRows][kRows];
      float x[kRows][kThreads + 1];
    };
    Tile& tile = shared<Tile>();
    const std::int64_t item = block(), row = in.row(item), head = in.head(item);
    const int tokens = in.tokens(item), own = thread();
    const float* const beta = in.beta + row * in.all_heads + head;
    for (int at = own; at < kRows * kRows; at += kThreads) {
      const int i = at / kRows;
      tile.factor[i][at % kRows] =
          i < tokens ? from.write[item * kRows * kRows + at] * beta[i * in.all_heads] : 0.0F;
    }
    float d_beta = 0;
    for (std::int64_t column = 0; column < in.value_dim; column += kThreads) {
      const std::int64_t v = column + own;
      barrier();
      for (int j = kRows - 1; j >= 0; --j) {
        const std::int64_t at = (item * kRows + j) * in.value_dim + v;
        float z = v < in.value_dim && j < tokens ? d.u[at] : 0.0F;
        for (int i = j + 1; i < kRows; ++i) z = multiply_add(-tile.factor[i][j], tile.x[i][own], z);
        tile.x[j][own] = z;
      }
      for (int j = 0; j < kRows; ++j) {
        if (v >= in.value_dim) continue;
        const std::int64_t at = (item * kRows + j) * in.value_dim + v;
        const float z = tile.x[j][own], of_error = j < tokens ? beta[j * in.all_heads] * z : 0.0F;
        d.error[at] = from_float<T>(-of_error);
        tile.x[j][own] = z * from.error[at];
        if (j < tokens)
          d.qkv[(row + j) * in.width + in.v_column + head * in.value_dim + v] = from_float<T>(of_error);
      }
      barrier();
      const int columns = static_cast<int>(smaller(in.value_dim - column, kThreads));
      for (int c = 0; c < columns; ++c) d_beta += tile.x[own][c];
    }
    if (own < tokens) d.beta[(row + own) * in.all_heads + head] = d_beta;
  }
};

}  // namespace primus::turbo::PRIMUS_GPU
