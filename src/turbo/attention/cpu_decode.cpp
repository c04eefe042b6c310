// Attention of a few queries over many cached keys: bound by reading keys and values once. Keys are cut into
// chunks of fixed length, which are the work items; each leaves a partial result with its own maximum and
// sum, and a second pass merges those in the order of the keys. Nothing depends on the number of threads.

#include <algorithm>

#include "turbo/attention/cpu_attention.h"

namespace primus::turbo::PRIMUS_CPU_ISA {
namespace {

// At about this many queries per head the tiles' products, which compute with at least 32, win.
constexpr std::int64_t kMostQueries = 8;
constexpr std::int64_t kChunk = 256;

// The queries of one (sequence, key/value head) are rows: seq_q of each of the group's heads.
struct Rows {
  explicit Rows(const AttentionShape& s) : group(s.heads / s.kv_heads), count(group * s.seq_q) {}
  std::int64_t group, count;
  std::int64_t head(std::int64_t kv_head, std::int64_t row) const { return kv_head * group + row % group; }
  std::int64_t query(std::int64_t row) const { return row / group; }
};

// Keys that any query sees, in chunks.
Range visible_to_any(const AttentionShape& s) { return Visibility(s, nullptr, 0).between(0, s.seq_q).any; }
std::int64_t chunks(const AttentionShape& s) {
  const Range range = visible_to_any(s);
  return (range.size() + kChunk - 1) / kChunk;
}

// What one chunk of keys leaves of each row: exponentials relative to max (in base 2), their sum, and the sum
// of values weighted by them.
struct Partial {
  float *max, *sum, *values;
};

struct Partials {
  std::int64_t rows, value_dim, chunk_count;
  float* data;
  std::int64_t row_floats() const { return value_dim + 2; }
  Partial at(std::int64_t head_index, std::int64_t row, std::int64_t chunk) const {
    float* p = data + ((head_index * rows + row) * chunk_count + chunk) * row_floats();
    return {p, p + 1, p + 2};
  }
};

template <class T>
float dot(const T* a, const T* b, std::int64_t n) {
  return sum_terms(n, [=](std::int64_t i) { return to_float(a[i]) * to_float(b[i]); });
}

template <class T>
void attend_chunk(const AttentionShape& s, const Operand<const T>& q, const Operand<const T>& k,
                  const Operand<const T>& v, const Visibility& visibility, std::int64_t sequence,
                  std::int64_t kv_head, Range keys, const Partials& partials, std::int64_t chunk) {
  const Rows rows(s);
  const float scale = s.scale * kLog2E;
  for (std::int64_t row = 0; row < rows.count; ++row) {
    const Range visible = visibility.keys(rows.query(row));
    const Range seen{std::max(keys.begin, visible.begin), std::min(keys.end, visible.end)};
    const T* query = q.at(sequence, rows.head(kv_head, row), rows.query(row));
    const Partial partial = partials.at(sequence * s.kv_heads + kv_head, row, chunk);
    float scores[kChunk];
    float max = -1e30F;  // finite: a row may see nothing of this chunk
    for (std::int64_t j = seen.begin; j < seen.end; ++j) {
      const float score = scale * dot(query, k.at(sequence, kv_head, j), s.head_dim);
      scores[j - keys.begin] = score;
      max = score > max ? score : max;
    }
    const std::int64_t count = std::max<std::int64_t>(seen.size(), 0);
    float* weights = scores + (seen.begin - keys.begin);
    PRIMUS_SIMD()
    for (std::int64_t j = 0; j < count; ++j) weights[j] = exp2_flushed(weights[j] - max);
    *partial.max = max;
    *partial.sum = sum_terms(count, [=](std::int64_t j) { return weights[j]; });
    float* sum = partial.values;
    std::fill_n(sum, s.value_dim, 0.0F);
    for (std::int64_t j = 0; j < count; ++j) {
      const T* value = v.at(sequence, kv_head, seen.begin + j);
      const float weight = weights[j];
      PRIMUS_SIMD()
      for (std::int64_t c = 0; c < s.value_dim; ++c)
        sum[c] = multiply_add(weight, to_float(value[c]), sum[c]);
    }
  }
}

template <class T>
void merge_row(const AttentionShape& s, const Partials& partials, std::int64_t head_index, std::int64_t row,
               const T* sink, T* out, float* lse) {
  const Partial total = partials.at(head_index, row, 0);
  const float sink_score = sink ? to_float(*sink) * kLog2E : 0.0F;
  float max = sink ? sink_score : *total.max;
  for (std::int64_t chunk = 0; chunk < partials.chunk_count; ++chunk) {
    const float other = *partials.at(head_index, row, chunk).max;
    max = other > max ? other : max;
  }
  float sum = sink ? exp2_flushed(sink_score - max) : 0.0F;
  for (std::int64_t chunk = 0; chunk < partials.chunk_count; ++chunk) {
    const Partial part = partials.at(head_index, row, chunk);
    const float weight = exp2_flushed(*part.max - max);
    sum = multiply_add(*part.sum, weight, sum);
    PRIMUS_SIMD()
    for (std::int64_t c = 0; c < s.value_dim; ++c) {
      total.values[c] =
          chunk == 0 ? weight * total.values[c] : multiply_add(weight, part.values[c], total.values[c]);
    }
  }
  const float inverse = 1.0F / sum;
  PRIMUS_SIMD()
  for (std::int64_t c = 0; c < s.value_dim; ++c) out[c] = from_float<T>(total.values[c] * inverse);
  if (lse) *lse = log_sum_exp2(max, sum);
}

}  // namespace

bool is_decode(const AttentionShape& s) { return s.seq_q <= kMostQueries && s.seq_k > kTile; }

void attention_decode(CpuContext& context, const AttentionForward& call) {
  const AttentionShape& s = call.shape;
  const Rows rows(s);
  const Partials partials{rows.count, s.value_dim, chunks(s), context.data<float>(call.workspace)};
  float* lse = call.lse.absent() ? nullptr : context.data<float>(call.lse);
  with_float_type(call.q.dtype, [&](auto type) {
    using T = decltype(type);
    const Operand<const T> q{context.data<const T>(call.q), call.q_stride, s.head_dim, s.seq_q};
    const Operand<const T> k{context.data<const T>(call.k), call.k_stride, s.head_dim, s.capacity_k};
    const Operand<const T> v{context.data<const T>(call.v), call.v_stride, s.value_dim, s.capacity_k};
    const Operand<T> out{context.data<T>(call.out), s.heads * s.value_dim, s.value_dim, s.seq_q};
    const T* sinks = call.sinks.absent() ? nullptr : context.data<const T>(call.sinks);
    const Range range = visible_to_any(s);
    const std::int64_t all_heads = s.batch * s.kv_heads;
    context.pool().parallel_for(
        all_heads * partials.chunk_count, 1, [&](std::int64_t item, std::int64_t, int) {
          const std::int64_t chunk = item / all_heads, sequence = item % all_heads / s.kv_heads,
                             kv_head = item % s.kv_heads;
          const std::int64_t begin = range.begin + chunk * kChunk;
          attend_chunk(s, q, k, v, {s, nullptr, sequence}, sequence, kv_head,
                       {begin, std::min(begin + kChunk, range.end)}, partials, chunk);
        });
    parallel_ranges(context, all_heads * rows.count, partials.chunk_count * partials.row_floats() * 4,
                    [&](std::int64_t begin, std::int64_t end) {
                      for (std::int64_t item = begin; item < end; ++item) {
                        const std::int64_t head_index = item / rows.count, row = item % rows.count;
                        const std::int64_t sequence = head_index / s.kv_heads, query = rows.query(row);
                        const std::int64_t head = rows.head(head_index % s.kv_heads, row);
                        merge_row(s, partials, head_index, row, sinks ? sinks + head : nullptr,
                                  out.at(sequence, head, query),
                                  lse ? lse + (head * s.batch + sequence) * s.seq_q + query : nullptr);
                      }
                    });
  });
}

std::int64_t attention_decode_workspace(const AttentionShape& s) {
  const Partials partials{Rows(s).count, s.value_dim, chunks(s), nullptr};
  return s.batch * s.kv_heads * partials.rows * partials.chunk_count * partials.row_floats() *
         static_cast<std::int64_t>(sizeof(float));
}

}  // namespace primus::turbo::PRIMUS_CPU_ISA
