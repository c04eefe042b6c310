// Kernels of the delta rule's backward pass on GPUs: the gradients of queries, keys and gates. These kernels
// run after the kernels of gpu_gradients.h.
#pragma once

#include "turbo/delta_rule/gpu_states.h"

namespace primus::turbo::PRIMUS_GPU {

// Converts gradients of decayed queries and keys to gradients before the decay. Also computes the
// contributions of the keys and of the state before the chunk to DeltaGradients::last.
template <class T>
struct DeltaUndecay {
  static constexpr int kThreads = 128;
  DeltaItems<T> in;
  DeltaStates<T> from;
  DeltaGradients<T> d;

  PRIMUS_DEVICE void operator()() const {
    const std::int64_t item = block(), keys = item * kRows * in.key_dim,
                       states = item * in.key_dim * in.value_dim;
    const double* const gates = in.sums(from.sums, item);
    for (std::int64_t c = thread(); c < in.key_dim; c += kThreads) {
      float last = 0;
      for (int i = 0; i < kRows; ++i) {
        const std::int64_t at = keys + i * in.key_dim + c;
        const float since = i < in.tokens(item) ? in.since_begin(gates, item, i, c) : 0.0F;
        const float seen = d.seen[at] * in.until_end(gates, item, i, c);
        d.q[at] *= since;
        d.looking[at] *= since;
        d.seen[at] = seen;
        last = multiply_add(seen, to_float(from.k[at]), last);
      }
      d.last[item * in.key_dim + c] = last;
    }
    barrier();
    for (std::int64_t c = warp(); c < in.key_dim; c += kThreads / kWarp) {
      float sum = 0;
      for (std::int64_t v = lane(); v < in.value_dim; v += kWarp) {
        const std::int64_t at = states + c * in.value_dim + v;
        sum = multiply_add(to_float(from.states[at]), to_float(d.states[at]), sum);
      }
      sum = warp_reduce(sum);
      if (lane() == 0) d.last[item * in.key_dim + c] += in.through(gates, item, c) * sum;
    }
  }
};

// With gates per channel, computes the gradients of the token-by-token matrices, pair by pair. Each thread
// processes one channel.
template <class T>
struct DeltaPairsBackward {
  static constexpr int kThreads = 64;
  DeltaItems<T> in;
  DeltaStates<T> from;
  DeltaGradients<T> d;

  PRIMUS_DEVICE void operator()() const {
    struct Sums {
      float seen[kRows][kThreads];
    };
    Sums& sums = shared<Sums>();
    const std::int64_t parts = (in.key_dim + kThreads - 1) / kThreads, item = block() / parts;
    const std::int64_t c = block() % parts * kThreads + thread();
    if (c >= in.key_dim) return;
    const std::int64_t keys = item * kRows * in.key_dim + c;
    const double* const gates = in.sums(from.sums, item) + c;
    const int tokens = in.tokens(item);
    for (int i = 0; i < tokens; ++i) {
      const std::int64_t own = keys + i * in.key_dim, matrices = (item * kRows + i) * kRows;
      const double sum = gates[i * in.key_dim];
      const float query = to_float(from.q[own]), key = to_float(from.k[own]);
      float d_query = 0, d_key = 0;
      sums.seen[i][thread()] = 0;
      const int document = in.document(item, i);
      for (int j = document > 0 ? document : 0; j <= i; ++j) {
        const float decay = ::expf(static_cast<float>(sum - gates[j * in.key_dim]));
        const float read = d.of_read[matrices + j], write = j < i ? d.of_write[matrices + j] : 0.0F;
        const float seen = to_float(from.k[keys + j * in.key_dim]) * decay;
        d_query = multiply_add(read, seen, d_query);
        d_key = multiply_add(write, seen, d_key);
        float& to = sums.seen[j][thread()];
        to = multiply_add(multiply_add(read, query, write * key), decay, to);
      }
      d.q[own] += d_query;
      d.looking[own] += d_key;
    }
    for (int i = 0; i < tokens; ++i) d.seen[keys + i * in.key_dim] += sums.seen[i][thread()];
  }
};

// Computes the gradients of gates. Adds `seen` to `looking`; the sum is the complete gradient of the keys.
template <class T>
struct DeltaGates {
  static constexpr int kThreads = 128;
  DeltaItems<T> in;
  DeltaStates<T> from;
  DeltaGradients<T> d;

  PRIMUS_DEVICE void operator()() const {
    struct Sums {
      float of_token[kRows];
    };
    Sums& sums = shared<Sums>();
    const std::int64_t item = block(), columns = in.gate_columns();
    const std::int64_t first = in.row(item) * in.all_heads + in.head(item);
    const int tokens = in.tokens(item);
    const float* const last = d.last + item * in.key_dim;
    if (in.channel_gates) {
      for (std::int64_t c = thread(); c < columns; c += kThreads) {
        float sum = last[c];
        for (int i = tokens - 1; i >= 0; --i) {
          sum += of_sum(item, i, c);
          d.g[(first + i * in.all_heads) * columns + c] = in.document(item, i) == i ? 0.0F : sum;
        }
      }
    } else {
      for (int i = warp(); i < tokens; i += kThreads / kWarp) {
        float sum = 0;
        for (std::int64_t c = lane(); c < in.key_dim; c += kWarp) {
          sum += of_sum(item, i, c);
          if (i == tokens - 1) sum += last[c];
        }
        sum = warp_reduce(sum);
        if (lane() == 0) sums.of_token[i] = sum;
      }
      barrier();
      double sum = 0;
      for (int i = tokens - 1; i >= 0 && thread() == 0; --i) {
        sum += static_cast<double>(sums.of_token[i]);
        d.g[first + i * in.all_heads] = in.document(item, i) == i ? 0.0F : static_cast<float>(sum);
      }
    }
    barrier();
    const std::int64_t keys = item * kRows * in.key_dim;
    for (std::int64_t e = thread(); e < tokens * in.key_dim; e += kThreads)
      d.looking[keys + e] += d.seen[keys + e];
  }

 private:
  // Returns the contribution of channel c to the gradient of a token's sum of gates. In the decays, this sum
  // has a positive sign for the token's rows of the matrices, and a negative sign for its columns.
  PRIMUS_DEVICE float of_sum(std::int64_t item, int i, std::int64_t c) const {
    const std::int64_t at = (item * kRows + i) * in.key_dim + c;
    return multiply_add(to_float(from.q[at]), d.q[at], to_float(from.k[at]) * (d.looking[at] - d.seen[at]));
  }
};

// Computes the gradients of queries and keys: sums over the value heads of a key head, and passes the sums
// backward through the normalisation. A warp processes a row of a key head; query rows precede key rows.
template <class T>
struct DeltaKeys {
  static constexpr int kThreads = 256;
  DeltaItems<T> in;
  DeltaGradients<T> d;

  PRIMUS_DEVICE std::int64_t heads() const { return in.heads / in.group; }
  PRIMUS_DEVICE void operator()() const {
    constexpr int kMax = DeltaRuleShape::kMaxDim / kWarp;
    const std::int64_t rows = in.batch * in.sequence, of_all = block() * (kThreads / kWarp) + warp();
    if (of_all >= 2 * rows * heads()) return;
    const bool key = of_all >= rows * heads();
    const std::int64_t row = of_all % (rows * heads()) / heads(), own = of_all % heads();
    const std::int64_t token = row % in.sequence;
    const std::int64_t first = in.item(row / in.sequence, token / kRows, own * in.group);
    const std::int64_t column = (in.first_head / in.group + own) * in.key_dim + (key ? in.k_column : 0);
    const float* const from = key ? d.looking : d.q;
    float x[kMax], gradient[kMax], square = 0, along = 0;
    PRIMUS_UNROLL
    for (int n = 0; n < kMax; ++n) {
      const std::int64_t c = n * kWarp + lane();
      x[n] = gradient[n] = 0;
      if (c >= in.key_dim) continue;
      x[n] = to_float(in.qkv[row * in.width + column + c]);
      for (std::int64_t head = 0; head < in.group; ++head)
        gradient[n] += from[((first + head) * kRows + token % kRows) * in.key_dim + c];
      square = multiply_add(x[n], x[n], square);
      along = multiply_add(x[n], gradient[n], along);
    }
    float factor = 1, less = 0;
    if (in.normalise) {
      factor = unit_factor(warp_reduce(square), in.epsilon);
      less = warp_reduce(along) * factor * factor;
    }
    PRIMUS_UNROLL
    for (int n = 0; n < kMax; ++n) {
      const std::int64_t c = n * kWarp + lane();
      if (c < in.key_dim)
        d.qkv[row * in.width + column + c] = from_float<T>(factor * multiply_add(-less, x[n], gradient[n]));
    }
  }
};

}  // namespace primus::turbo::PRIMUS_GPU
