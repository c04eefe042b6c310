// Attention of a few queries over many cached keys. The time is that of reading the keys and values once.
// Keys are divided into splits of fixed length, which are the work items. For each split, a thread computes a
// partial result with its own maximum and sum. A second pass merges the partial results in key order. The
// result does not depend on the number of threads.

#include <algorithm>
#include <bit>

#include "turbo/attention/cpu_attention.h"

namespace primus::turbo::PRIMUS_CPU_ISA {
namespace {

// With more queries per head than about this number, tile products are faster. (Tile products always compute
// at least 32 queries.)
constexpr std::int64_t kMaxQueries = 8;
constexpr std::int64_t kSplit = 256;

// The new tokens of one sequence. For one key/value head, the rows are the queries of the group's heads
// (seq_q per head).
struct Decoding {
  AttentionShape s;               // batch is 1
  const std::int32_t* first_key;  // one per query, or null
  std::int64_t first_row;         // first row of the sequence in q and out
  std::int64_t first_partial;     // number of tokens before this sequence in the workspace

  std::int64_t group() const { return s.heads / s.kv_heads; }
  std::int64_t rows() const { return group() * s.seq_q; }
  std::int64_t head(std::int64_t kv_head, std::int64_t row) const {
    return kv_head * group() + row % group();
  }
  std::int64_t query(std::int64_t row) const { return row / group(); }
  Visibility visibility() const { return {s, first_key, 0}; }
  // Return the keys that at least one query sees, and the number of their splits.
  Range visible_to_any() const { return s.seq_q > 0 ? visibility().between(0, s.seq_q).any : Range{0, 0}; }
  std::int64_t splits() const { return (visible_to_any().size() + kSplit - 1) / kSplit; }
};

// The result of one split for one row: the maximum score (in base 2), the sum of the exponentials relative to
// the maximum, and the sum of the values weighted by these exponentials.
struct Partial {
  float *max, *sum, *values;
};

struct Partials {
  std::int64_t heads, value_dim, split_count;
  float* data;
  std::int64_t row_floats() const { return value_dim + 2; }
  std::int64_t bytes(std::int64_t tokens) const {
    return tokens * heads * split_count * row_floats() * static_cast<std::int64_t>(sizeof(float));
  }
  Partial at(std::int64_t token, std::int64_t head, std::int64_t split) const {
    float* p = data + ((token * heads + head) * split_count + split) * row_floats();
    return {p, p + 1, p + 2};
  }
};

template <class T>
float dot(const T* a, const T* b, std::int64_t n) {
  return sum_terms(n, [=](std::int64_t i) { return to_float(a[i]) * to_float(b[i]); });
}

// q, sinks, out and lse are the tensors of the complete call, with `rows` rows.
template <class T, template <class> class Keys>
struct DecodeOperands {
  Operand<const T> q;
  Keys<const T> k, v;
  Operand<T> out;
  const T* sinks;
  float* lse;
  std::int64_t rows;
};

template <class T, template <class> class Keys>
void attend_split(const Decoding& d, const DecodeOperands<T, Keys>& x, std::int64_t sequence,
                  std::int64_t kv_head, Range keys, const Partials& partials, std::int64_t split) {
  const AttentionShape& s = d.s;
  const Visibility visibility = d.visibility();
  const float scale = score_scale(s) * kLog2E, cap = s.score_cap, into_cap = cap > 0 ? s.scale / cap : 0;
  for (std::int64_t row = 0; row < d.rows(); ++row) {
    const Range visible = visibility.keys(d.query(row));
    const Range seen{std::max(keys.begin, visible.begin), std::min(keys.end, visible.end)};
    const std::int64_t head = d.head(kv_head, row);
    const T* query = x.q.at(0, head, d.first_row + d.query(row));
    const Partial partial = partials.at(d.first_partial + d.query(row), head, split);
    float scores[kSplit];
    float max = -1e30F;  // finite, so that a row that sees no key of this split does not compute inf - inf
    for (std::int64_t j = seen.begin; j < seen.end; ++j) {
      const float product = dot(query, x.k.at(sequence, kv_head, j), s.head_dim);
      const float score = scale * (cap > 0 ? tanh(product * into_cap) : product);
      scores[j - keys.begin] = score;
      max = score > max ? score : max;
    }
    const std::int64_t count = std::max<std::int64_t>(seen.size(), 0);
    float* weights = count > 0 ? scores + (seen.begin - keys.begin) : scores;
    PRIMUS_SIMD()
    for (std::int64_t j = 0; j < count; ++j) weights[j] = exp2_flushed(weights[j] - max);
    *partial.max = max;
    *partial.sum = sum_terms(count, [=](std::int64_t j) { return weights[j]; });
    float* sum = partial.values;
    std::fill_n(sum, s.value_dim, 0.0F);
    for (std::int64_t j = 0; j < count; ++j) {
      const T* value = x.v.at(sequence, kv_head, seen.begin + j);
      const float weight = weights[j];
      PRIMUS_SIMD()
      for (std::int64_t c = 0; c < s.value_dim; ++c)
        sum[c] = multiply_add(weight, to_float(value[c]), sum[c]);
    }
  }
}

template <class T>
void merge_row(const Partials& partials, std::int64_t token, std::int64_t head, std::int64_t splits,
               const T* sink, T* out, float* lse) {
  const float sink_score = sink ? to_float(*sink) * kLog2E : 0.0F;
  float max = sink ? sink_score : -1e30F;
  for (std::int64_t split = 0; split < splits; ++split) {
    const float other = *partials.at(token, head, split).max;
    max = other > max ? other : max;
  }
  float sum = sink ? exp2_flushed(sink_score - max) : 0.0F;
  const std::int64_t dim = partials.value_dim;
  const Partial total = partials.at(token, head, 0);
  for (std::int64_t split = 0; split < splits; ++split) {
    const Partial part = partials.at(token, head, split);
    const float weight = exp2_flushed(*part.max - max);
    sum = multiply_add(*part.sum, weight, sum);
    PRIMUS_SIMD()
    for (std::int64_t c = 0; c < dim; ++c) {
      total.values[c] =
          split == 0 ? weight * total.values[c] : multiply_add(weight, part.values[c], total.values[c]);
    }
  }
  if (lse) *lse = log_sum_exp2(max, sum);
  if (splits == 0 || sum == 0) {
    std::fill_n(out, dim, T{});
    return;
  }
  const float inverse = 1.0F / sum;
  PRIMUS_SIMD()
  for (std::int64_t c = 0; c < dim; ++c) out[c] = from_float<T>(total.values[c] * inverse);
}

// `sequence(b)` returns the Decoding of sequence b < batch; sequences with seq_q == 0 are skipped.
template <class T, template <class> class Keys, class Sequence>
void decode(CpuContext& context, std::int64_t batch, std::int64_t kv_heads, const Partials& partials,
            const DecodeOperands<T, Keys>& x, Sequence sequence) {
  const std::int64_t items = batch * kv_heads * partials.split_count, heads = partials.heads;
  context.pool().parallel_for(items, 1, [&](std::int64_t item, std::int64_t, int) {
    const std::int64_t split = item / (batch * kv_heads), b = item % (batch * kv_heads) / kv_heads;
    const Decoding d = sequence(b);
    const Range range = d.visible_to_any();
    const std::int64_t begin = range.begin + split * kSplit;
    if (begin >= range.end) return;
    attend_split(d, x, b, item % kv_heads, {begin, std::min(begin + kSplit, range.end)}, partials, split);
  });
  parallel_ranges(context, batch * heads, partials.bytes(1) / std::max<std::int64_t>(heads, 1),
                  [&](std::int64_t begin, std::int64_t end) {
                    for (std::int64_t item = begin; item < end; ++item) {
                      const std::int64_t head = item % heads;
                      const Decoding d = sequence(item / heads);
                      const std::int64_t splits = d.splits();
                      for (std::int64_t i = 0; i < d.s.seq_q; ++i) {
                        const std::int64_t row = d.first_row + i;
                        merge_row(partials, d.first_partial + i, head, splits,
                                  x.sinks ? x.sinks + head : nullptr, x.out.at(0, head, row),
                                  x.lse ? x.lse + head * x.rows + row : nullptr);
                      }
                    }
                  });
}

Decoding sequence_of(AttentionShape s, const std::int32_t* first_key, std::int64_t sequence) {
  const std::int64_t first = sequence * s.seq_q;
  s.batch = 1;
  return {s, first_key ? first_key + first : nullptr, first, first};
}

// Returns the maximum number of splits of a paged sequence. With a window, a sequence sees at most the keys
// of the window and of its consecutive queries.
std::int64_t max_splits(const PagedAttention& call) {
  std::int64_t keys = call.sequences.capacity();
  if (call.window > 0) keys = std::min(keys, call.window + kMaxQueries);
  return (keys + kSplit - 1) / kSplit;
}
std::int64_t max_tokens(const PagedAttention& call) {
  return std::min(call.tokens, kMaxQueries * call.sequences.batch());
}
// Returns the bytes of the table before the partials: for each sequence, the number of tokens before it.
std::int64_t starts_bytes(const PagedAttention& call) {
  return round_up(call.sequences.batch() * static_cast<std::int64_t>(sizeof(std::int64_t)), 64);
}

}  // namespace

bool is_decode(const AttentionShape& s) { return s.seq_q <= kMaxQueries && s.seq_k > kTile; }

void attention_decode(CpuContext& context, const AttentionForward& call) {
  const AttentionShape& s = call.shape;
  const std::int32_t* first_key =
      call.first_key.absent() ? nullptr : context.data<const std::int32_t>(call.first_key);
  std::int64_t splits = 0;
  for (std::int64_t b = 0; b < s.batch; ++b) splits = std::max(splits, sequence_of(s, first_key, b).splits());
  const Partials partials{s.heads, s.value_dim, splits, context.data<float>(call.workspace)};
  with_float_type(call.q.dtype, [&](auto type) {
    using T = decltype(type);
    const DecodeOperands<T, Operand> operands{
        {context.data<const T>(call.q), call.q_stride, s.head_dim, 0},
        {context.data<const T>(call.k), call.k_stride, s.head_dim, s.capacity_k},
        {context.data<const T>(call.v), call.v_stride, s.value_dim, s.capacity_k},
        {context.data<T>(call.out), s.heads * s.value_dim, s.value_dim, 0},
        call.sinks.absent() ? nullptr : context.data<const T>(call.sinks),
        call.lse.absent() ? nullptr : context.data<float>(call.lse),
        s.batch * s.seq_q};
    decode(context, s.batch, s.kv_heads, partials, operands,
           [&](std::int64_t b) { return sequence_of(s, first_key, b); });
  });
}

std::int64_t attention_decode_workspace(const AttentionShape& s) {
  const Partials partials{s.heads, s.value_dim, sequence_of(s, nullptr, 0).splits(), nullptr};
  return partials.bytes(s.batch * s.seq_q);
}

bool is_paged_decode(std::int64_t new_tokens) { return new_tokens <= kMaxQueries; }

AttentionShape paged_shape(const PagedAttention& call, std::int64_t new_tokens, std::int64_t keys) {
  return {.batch = 1,
          .seq_q = new_tokens,
          .seq_k = keys,
          .capacity_k = keys,
          .heads = call.heads,
          .kv_heads = call.kv_heads,
          .head_dim = call.head_dim,
          .value_dim = call.value_dim,
          .scale = call.scale,
          .causal = true,
          .window = call.window,
          .chunk = call.chunk,
          .q_first = keys - new_tokens,
          .score_cap = call.score_cap};
}

void paged_decode(CpuContext& context, const PagedAttention& call) {
  const PagedSequences& sequences = call.sequences;
  const auto* starts = context.data<const std::int32_t>(sequences.query_starts);
  const auto* lengths = context.data<const std::int32_t>(sequences.key_lengths);
  const auto* table = context.data<const std::int32_t>(sequences.block_table);
  auto* workspace = context.data<std::byte>(call.workspace);
  auto* first_partials = reinterpret_cast<std::int64_t*>(workspace);
  const auto sequence = [&](std::int64_t b) -> Decoding {
    std::int64_t count = starts[b + 1] - starts[b];
    if (!is_paged_decode(count)) count = 0;
    return {paged_shape(call, count, lengths[b]), nullptr, starts[b], first_partials[b]};
  };
  std::int64_t splits = 0, tokens = 0;
  for (std::int64_t b = 0; b < sequences.batch(); ++b) {
    first_partials[b] = tokens;
    const Decoding d = sequence(b);
    tokens += d.s.seq_q;
    splits = std::max(splits, d.splits());
  }
  if (tokens == 0) return;
  const Partials partials{call.heads, call.value_dim, splits,
                          reinterpret_cast<float*>(workspace + starts_bytes(call))};
  const int page_bits = std::countr_zero(static_cast<std::uint64_t>(sequences.page_size));
  with_float_type(call.q.dtype, [&](auto type) {
    using T = decltype(type);
    const DecodeOperands<T, PagedOperand> operands{
        {context.data<const T>(call.q), call.q_stride, call.head_dim, 0},
        {context.data<const T>(call.k), call.k_stride, call.head_dim, table, sequences.blocks(), page_bits},
        {context.data<const T>(call.v), call.v_stride, call.value_dim, table, sequences.blocks(), page_bits},
        {context.data<T>(call.out), call.heads * call.value_dim, call.value_dim, 0},
        call.sinks.absent() ? nullptr : context.data<const T>(call.sinks),
        nullptr,
        call.tokens};
    decode(context, sequences.batch(), call.kv_heads, partials, operands, sequence);
  });
}

std::int64_t paged_decode_workspace(const PagedAttention& call) {
  const Partials partials{call.heads, call.value_dim, max_splits(call), nullptr};
  return starts_bytes(call) + partials.bytes(max_tokens(call));
}

}  // namespace primus::turbo::PRIMUS_CPU_ISA
