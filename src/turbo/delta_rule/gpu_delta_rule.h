// Shared code of the delta rule's GPU kernels: addressing of chunks, and decays between tokens under gates
// and documents.
//
// An item is a chunk of a value head of a sequence. Most of the work is products that are computed for all
// items at once (turbo/gpu/gemm_tile.h). The operands of these products are matrices [kRows, key_dim] and
// [kRows, value_dim] per item, in the workspace and in the type of the inputs. Rows after the end of a
// sequence are zero. A scan over chunks computes the results that need the state before a chunk. A block of
// the scan processes some value columns of a head.
#pragma once

#include "turbo/delta_rule/delta_rule.h"
#include "turbo/delta_rule/formula.h"
#include "turbo/gpu/reduce.h"

namespace primus::turbo::PRIMUS_GPU {

constexpr int kRows = DeltaRuleShape::kChunk;

// The place of an item in the tensors. Finding it takes divisions, so a kernel does this once.
struct DeltaPlace {
  std::int64_t item, row, begin;  // row: the chunk's first row; begin: its position in the sequence
  std::int64_t head, key_head;    // head: the value head
  int tokens;
};

// Some value heads of all sequences, and their inputs. Sums of gates are in double, so that a small
// difference of two large sums is accurate.
template <class T>
struct DeltaItems {
  const T* qkv;
  const float *g, *beta;
  const std::int32_t* first_key;
  std::int64_t batch, sequence, chunks;
  std::int64_t first_head, heads, all_heads, group;  // all_heads: number of heads in a row of the tensors;
                                                     // group: number of value heads per key head
  std::int64_t key_dim, value_dim, width, k_column, v_column;
  bool channel_gates, normalise;
  float scale, epsilon;

  template <class Arguments>
  DeltaItems(const Context& context, const Arguments& a, std::int64_t from, std::int64_t count)
      : qkv(context.template data<T>(a.qkv)),
        g(context.template data<float>(a.g)),
        beta(context.template data<float>(a.beta)),
        first_key(optional<std::int32_t>(context, a.first_key)),
        batch(a.shape.batch),
        sequence(a.shape.sequence),
        chunks(blocks_for(a.shape.sequence, kRows)),
        first_head(from),
        heads(count),
        all_heads(a.shape.value_heads),
        group(a.shape.value_heads / a.shape.key_heads),
        key_dim(a.shape.key_dim),
        value_dim(a.shape.value_dim),
        width(a.shape.width()),
        k_column(a.shape.k_column()),
        v_column(a.shape.v_column()),
        channel_gates(a.shape.channel_gates),
        normalise(a.shape.normalise),
        scale(a.shape.scale),
        epsilon(a.shape.epsilon) {}

  std::int64_t count() const { return batch * chunks * heads; }
  PRIMUS_DEVICE std::int64_t head(std::int64_t item) const { return first_head + item % heads; }
  PRIMUS_DEVICE std::int64_t begin(std::int64_t item) const { return item / heads % chunks * kRows; }
  PRIMUS_DEVICE std::int64_t row(std::int64_t item) const {
    return item / heads / chunks * sequence + begin(item);
  }
  PRIMUS_DEVICE int tokens(std::int64_t item) const {
    return static_cast<int>(smaller(sequence - begin(item), kRows));
  }
  PRIMUS_DEVICE std::int64_t item(std::int64_t of_batch, std::int64_t chunk, std::int64_t of_heads) const {
    return (of_batch * chunks + chunk) * heads + of_heads;
  }
  PRIMUS_DEVICE DeltaPlace place(std::int64_t of_batch, std::int64_t chunk, std::int64_t of_heads) const {
    const std::int64_t start = chunk * kRows, own = first_head + of_heads;
    const auto of_key = static_cast<std::uint32_t>(own) / static_cast<std::uint32_t>(group);
    return {item(of_batch, chunk, of_heads),
            of_batch * sequence + start,
            start,
            own,
            of_key,
            static_cast<int>(smaller(sequence - start, kRows))};
  }
  // Items are numbers of blocks, so 32 bits hold them.
  PRIMUS_DEVICE DeltaPlace place(std::int64_t item) const {
    const auto all = static_cast<std::uint32_t>(item), per_chunk = static_cast<std::uint32_t>(heads);
    const std::uint32_t of_all = all / per_chunk, per_sequence = static_cast<std::uint32_t>(chunks);
    return place(of_all / per_sequence, of_all % per_sequence, all % per_chunk);
  }
  // Returns the place of the same head, `by` chunks later.
  PRIMUS_DEVICE DeltaPlace moved(DeltaPlace from, int by) const {
    from.item += by * heads;
    from.row += by * kRows;
    from.begin += by * kRows;
    from.tokens = static_cast<int>(smaller(sequence - from.begin, kRows));
    return from;
  }
  PRIMUS_DEVICE float beta_of(const DeltaPlace& at, int token) const {
    return token < at.tokens ? beta[(at.row + token) * all_heads + at.head] : 0.0F;
  }
  PRIMUS_DEVICE int document(const DeltaPlace& at, int token) const {
    const std::int64_t first = first_key ? first_key[at.row + token] : 0;
    return static_cast<int>(first - at.begin);
  }
  PRIMUS_DEVICE float beta_of(std::int64_t item, int token) const {
    return token < tokens(item) ? beta[(row(item) + token) * all_heads + head(item)] : 0.0F;
  }
  // Returns the start of a token's document relative to the chunk's start: negative if the document began
  // before the chunk.
  PRIMUS_DEVICE int document(std::int64_t item, int token) const {
    const std::int64_t first = first_key ? first_key[row(item) + token] : 0;
    return static_cast<int>(first - begin(item));
  }

  // An item's sums of gates have the shape [kRows, gate_columns()]. Rows after the
  // last token repeat the last token's sums.
  PRIMUS_DEVICE std::int64_t gate_columns() const { return channel_gates ? key_dim : 1; }
  PRIMUS_DEVICE const double* sums(const double* all, std::int64_t item) const {
    return all + item * kRows * gate_columns();
  }
  PRIMUS_DEVICE double sum(const double* of_item, int token, std::int64_t channel) const {
    return channel_gates ? of_item[token * key_dim + channel] : of_item[token];
  }
  // Returns the decay from the state before the chunk to a token.
  PRIMUS_DEVICE float since_begin(const double* of_item, std::int64_t item, int token,
                                  std::int64_t channel) const {
    if (document(item, token) >= 0) return 0;
    return ::expf(static_cast<float>(sum(of_item, token, channel)));
  }
  // Returns the decay from a token to the end of the chunk.
  PRIMUS_DEVICE float until_end(const double* of_item, std::int64_t item, int token,
                                std::int64_t channel) const {
    const int last = tokens(item) - 1;
    if (token > last || document(item, last) > token) return 0;
    return ::expf(static_cast<float>(sum(of_item, last, channel) - sum(of_item, token, channel)));
  }
  PRIMUS_DEVICE float through(const double* of_item, std::int64_t item, std::int64_t channel) const {
    return since_begin(of_item, item, tokens(item) - 1, channel);
  }
  // Returns whether a token sees token `other`. A token sees itself.
  PRIMUS_DEVICE bool sees(std::int64_t item, int token, int other) const {
    return other <= token && token < tokens(item) && other >= document(item, token);
  }
};

// Matrices of all items in the workspace.
template <class T>
struct DeltaStates {
  double* sums;
  T *q, *k;              // [kRows, key_dim]: queries and keys
  T *q_since, *k_since;  // q · decay and k · decay since the start of the chunk
  T* k_until;            // [kRows, key_dim]: k · decay to the end of the chunk
  T* read;               // [kRows, kRows]: products of queries and keys
  float* write;          // [kRows, kRows]: products of keys and earlier keys, below the diagonal
  float* scores;         // [kRows, kRows]: products before the decays are applied
  T* w;                  // [kRows, key_dim]: the errors contain -w · (state before the chunk)
  float* error;          // [kRows, value_dim]: U = beta · error
  T* u;
  T* states;  // [key_dim, value_dim]: states before the chunk
};

// Gradients in the workspace and in the caller's tensors.
template <class T>
struct DeltaGradients {
  const T* out;               // [rows, out_width], not in the workspace: gradient of the output
  T* scaled;                  // [kRows, value_dim]: the gradient of the output, multiplied by the scale
  float* u;                   // [kRows, value_dim]: gradient of U
  T* error;                   // [kRows, value_dim]: minus the gradient of the errors
  T* states;                  // [key_dim, value_dim]: gradient of the state after the chunk
  float *of_read, *of_write;  // [kRows, kRows]: gradients of the token-by-token matrices
  T *read, *write;            // of_read and of_write times the decays
  // [kRows, key_dim]: gradients of queries, and of keys as rows and as columns of the token-by-token
  // matrices.
  float *q, *looking, *seen;
  float* last;  // [key_dim]: gradient of the sums of gates at the chunk's end
  T* qkv;       // in the caller's tensor
  float *g, *beta;
};

PRIMUS_DEVICE float power_of_two(float x) {
#if PRIMUS_CUDA_ARCH >= 800
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
#else
  return ::exp2f(x);
#endif
}

// Computes cumulative sums [kRows, kStep] of an item's gates for each channel, as logarithms in base 2.
// Columns from kStep - 4 on are padding. A thread sums the gates of one channel for some tokens. All threads
// of the block call this function, which has barriers; another barrier must follow.
template <int kThreads, class T, int kStep>
PRIMUS_DEVICE void sum_gates_of_channels(const DeltaItems<T>& in, const DeltaPlace& place,
                                         float (*sums)[kStep]) {
  constexpr float kMinGate = -150.0F;  // 2^-150 is 0 in fp32
  constexpr float kLog2E = 1.44269504088896341F;
  constexpr int kChannels = kStep - 4, kTokens = kRows / (kThreads / kChannels);
  static_assert(kThreads % kChannels == 0 && kTokens > 0);
  const std::int64_t stride = in.all_heads * in.key_dim;
  const int c = thread() % kChannels, own = thread() / kChannels, first = own * kTokens;
  const float* g = in.g + (place.row * in.all_heads + place.head) * in.key_dim + c + first * stride;
  float gates[kTokens], sum = 0;
  PRIMUS_UNROLL
  for (int i = 0; i < kTokens; ++i, g += stride)
    gates[i] = c < in.key_dim && first + i < place.tokens ? *g : 0.0F;
  PRIMUS_UNROLL
  for (int i = 0; i < kTokens; ++i) {
    sum += ::fmaxf(gates[i] * kLog2E, kMinGate);
    gates[i] = sum;
  }
  sums[first + kTokens - 1][c] = sum;
  barrier();
  float before = 0;
  for (int part = 0; part < own; ++part) before += sums[part * kTokens + kTokens - 1][c];
  barrier();
  PRIMUS_UNROLL
  for (int i = 0; i < kTokens; ++i) sums[first + i][c] = before + gates[i];
}

}  // namespace primus::turbo::PRIMUS_GPU
