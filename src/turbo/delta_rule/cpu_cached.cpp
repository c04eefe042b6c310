// Processes new tokens one after another, for generation. A work item is a value head of a sequence.
#include "turbo/delta_rule/cpu_cached.h"

#include <cmath>

#include "turbo/check.h"
#include "turbo/cpu/simd.h"
#include "turbo/delta_rule/formula.h"

namespace primus::turbo::PRIMUS_CPU_ISA {
namespace {

// The inputs of a token in the layout of `recent`: beta, gates, key and value. The key is normalised.
struct Recent {
  Recent(float* row, const DeltaRuleShape& s)
      : beta(row), gates(row + 1), key(gates + (s.channel_gates ? s.key_dim : 1)), value(key + s.key_dim) {}
  float *beta, *gates, *key, *value;
};

template <class T>
void load_vector(const DeltaRuleShape& s, const T* from, float* to) {
  for (std::int64_t c = 0; c < s.key_dim; ++c) to[c] = to_float(from[c]);
  if (!s.normalise) return;
  const float square = sum_terms(s.key_dim, [=](std::int64_t c) { return to[c] * to[c]; });
  const float factor = unit_factor(square, s.epsilon);
  for (std::int64_t c = 0; c < s.key_dim; ++c) to[c] *= factor;
}

// Updates the state with a token.
void take(const DeltaRuleShape& s, const Recent& token, float* state) {
  float u[DeltaRuleShape::kMaxDim];
  for (std::int64_t i = 0; i < s.value_dim; ++i) u[i] = token.value[i];
  const float left = exp(token.gates[0]);
  for (std::int64_t c = 0; c < s.key_dim; ++c) {
    const float fade = s.channel_gates ? exp(token.gates[c]) : left;
    const float key = token.key[c];
    float* row = state + c * s.value_dim;
    PRIMUS_SIMD()
    for (std::int64_t i = 0; i < s.value_dim; ++i) {
      row[i] *= fade;
      u[i] = multiply_add(-key, row[i], u[i]);
    }
  }
  for (std::int64_t i = 0; i < s.value_dim; ++i) u[i] *= *token.beta;
  for (std::int64_t c = 0; c < s.key_dim; ++c) {
    const float key = token.key[c];
    float* row = state + c * s.value_dim;
    PRIMUS_SIMD()
    for (std::int64_t i = 0; i < s.value_dim; ++i) row[i] = multiply_add(key, u[i], row[i]);
  }
}

template <class T>
void read(const DeltaRuleShape& s, const T* query, const float* state, T* out) {
  float q[DeltaRuleShape::kMaxDim], sum[DeltaRuleShape::kMaxDim] = {};
  load_vector(s, query, q);
  for (std::int64_t c = 0; c < s.key_dim; ++c) {
    const float* row = state + c * s.value_dim;
    PRIMUS_SIMD()
    for (std::int64_t i = 0; i < s.value_dim; ++i) sum[i] = multiply_add(q[c], row[i], sum[i]);
  }
  for (std::int64_t i = 0; i < s.value_dim; ++i) out[i] = from_float<T>(s.scale * sum[i]);
}

// The tokens of a sequence that a pass processes.
struct Span {
  std::int64_t row;              // row of its first new token
  std::int64_t begin, end;       // positions of the new tokens
  std::int64_t committed, next;  // value of `committed` before and after the pass
};

Span span_of(const CachedDeltaRule& a, std::int64_t row, std::int64_t rows, std::int64_t length,
             std::int64_t committed) {
  const std::int64_t begin = length - rows, from = begin == 0 ? 0 : committed;
  return {row, begin, length, from, length - from > a.recent.shape[1] ? length - a.spare : from};
}

template <class T>
void pass(CpuContext& context, const CachedDeltaRule& a) {
  const DeltaRuleShape& s = a.shape;
  const std::int64_t batch = a.sequences.batch(), heads = s.value_heads, ring = a.recent.shape[1];
  const std::int64_t size = s.key_dim * s.value_dim, group = heads / s.key_heads;
  const std::int64_t gates = s.channel_gates ? s.key_dim : 1;
  const auto* const starts = context.data<const std::int32_t>(a.sequences.query_starts);
  const auto* const lengths = context.data<const std::int32_t>(a.sequences.key_lengths);
  auto* const committed = context.data<std::int32_t>(a.committed);
  const T* const qkv = context.data<const T>(a.qkv);
  T* const out = context.data<T>(a.out);
  const auto* const g = context.data<const float>(a.g);
  const auto* const beta = context.data<const float>(a.beta);
  const auto span = [&](std::int64_t b) {
    return span_of(a, starts[b], starts[b + 1] - starts[b], lengths[b], committed[b * heads]);
  };
  context.pool().parallel_for(batch * heads, 1, [&](std::int64_t item, std::int64_t, int thread) {
    const std::int64_t b = item / heads, head = item % heads;
    const Span x = span(b);
    if (x.begin == x.end) return;
    float* const state = context.data<float>(a.workspace) + thread * size;
    float* const kept = context.data<float>(a.state) + item * size;
    const auto recent = [&](std::int64_t position) {
      return Recent(
          context.data<float>(a.recent) + ((b * ring + position % ring) * heads + head) * s.recent_width(),
          s);
    };
    if (x.committed > 0) {
      std::copy_n(kept, size, state);
    } else {
      std::fill_n(state, size, 0.0F);
    }
    for (std::int64_t p = x.committed; p < x.end; ++p) {
      const Recent token = recent(p);
      const std::int64_t row = x.row + p - x.begin;
      if (p >= x.begin) {
        const T* const query = qkv + row * s.width() + head / group * s.key_dim;
        const T* const value = qkv + row * s.width() + s.v_column() + head * s.value_dim;
        *token.beta = beta[row * heads + head];
        std::copy_n(g + row * s.gates() + head * gates, gates, token.gates);
        load_vector(s, query + s.k_column(), token.key);
        for (std::int64_t i = 0; i < s.value_dim; ++i) token.value[i] = to_float(value[i]);
      }
      take(s, token, state);
      if (p >= x.begin)
        read(s, qkv + row * s.width() + head / group * s.key_dim, state,
             out + row * s.out_width() + head * s.value_dim);
      if (p + 1 == x.next) std::copy_n(state, size, kept);
    }
  });
  for (std::int64_t b = 0; b < batch; ++b) {
    const Span x = span(b);
    if (x.begin < x.end) std::fill_n(committed + b * heads, heads, static_cast<std::int32_t>(x.next));
  }
  std::fill(out + starts[batch] * s.out_width(), out + s.rows() * s.out_width(), T{});
}

}  // namespace

std::int64_t cached_delta_rule_workspace(CpuContext& context, const CachedDeltaRule& a) {
  if (!a.around.absent()) return CachedDeltaRule::kNotTaken;  // fusing does not make a CPU faster
  return context.threads() * a.shape.key_dim * a.shape.value_dim * static_cast<std::int64_t>(sizeof(float));
}

void cached_delta_rule(CpuContext& context, const CachedDeltaRule& a) {
  PRIMUS_CHECK(CachedDeltaRule::kId, a.around.absent());  // because is_taken() returns false for such calls
  with_float_type(a.qkv.dtype, [&](auto tag) { pass<decltype(tag)>(context, a); });
}

}  // namespace primus::turbo::PRIMUS_CPU_ISA
