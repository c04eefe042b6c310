// A work item is one query. Its keys are converted to fp32 in tiles, once for all heads.
//
// A key's gradient is a sum over many queries. Queries are processed in slices, whose length depends only on
// the shape. For each query of a slice, the contributions to the gradients of its keys are written to the
// workspace, and a table stores their positions. Then the contributions to each key are added in query order.
#include <algorithm>
#include <limits>

#include "turbo/attention/cpu_vectors.h"
#include "turbo/cpu/register.h"
#include "turbo/cpu/simd.h"
#include "turbo/selected_attention/selected_attention.h"

namespace primus::turbo::PRIMUS_CPU_ISA {
namespace {

constexpr std::int64_t kKeys = 32;  // keys per tile

PRIMUS_INLINE void add_scaled(float by, const float* x, std::int64_t n, float* sum) {
  PRIMUS_SIMD()
  for (std::int64_t i = 0; i < n; ++i) sum[i] = multiply_add(by, x[i], sum[i]);
}

PRIMUS_INLINE float dot(const float* a, const float* b, std::int64_t n) {
  return sum_terms(n, [=](std::int64_t i) { return a[i] * b[i]; });
}

template <class T>
PRIMUS_INLINE void widen(const T* x, std::int64_t n, float* to) {
  PRIMUS_SIMD()
  for (std::int64_t i = 0; i < n; ++i) to[i] = to_float(x[i]);
}

template <class T>
PRIMUS_INLINE void narrow(const float* x, std::int64_t n, T* to) {
  PRIMUS_SIMD()
  for (std::int64_t i = 0; i < n; ++i) to[i] = from_float<T>(x[i]);
}

// Converts the keys of a query's list to fp32 in `keys`, tile by tile, and calls body(list positions of the
// keys, count) for each tile.
template <class T, class Body>
PRIMUS_INLINE void for_each_tile(const SelectedAttentionShape& s, const T* kv, const std::int32_t* list,
                                 float* keys, Body body) {
  std::int64_t places[kKeys];
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < s.selected; ++i) {
    if (list[i] >= 0) {
      assert(list[i] < s.rows);
      widen(kv + list[i] * s.key_dim, s.key_dim, keys + count * s.key_dim);
      places[count++] = i;
    }
    if (count == 0 || (count < kKeys && i + 1 < s.selected)) continue;
    body(static_cast<const std::int64_t*>(places), count);
    count = 0;
  }
}

// ---- Forward ------------------------------------------------------------------------------------

// A thread's buffers for a query.
struct Worker {
  static std::int64_t floats(const SelectedAttentionShape& s) {
    return kKeys * s.key_dim + s.heads * (s.key_dim + s.value_dim + 2);
  }
  Worker(const SelectedAttentionShape& s, float* memory)
      : keys(memory),
        q(keys + kKeys * s.key_dim),
        sums(q + s.heads * s.key_dim),
        max(sums + s.heads * s.value_dim),
        total(max + s.heads) {}
  float *keys, *q, *sums, *max, *total;
};

std::int64_t forward_workspace(CpuContext& context, const SelectedAttentionForward& a) {
  return context.threads() * Worker::floats(a.shape) * static_cast<std::int64_t>(sizeof(float));
}

void forward(CpuContext& context, const SelectedAttentionForward& a) {
  const SelectedAttentionShape& s = a.shape;
  const auto* const selected = context.data<const std::int32_t>(a.selected);
  float* const lse = a.lse.absent() ? nullptr : context.data<float>(a.lse);
  auto* const workspace = context.data<float>(a.workspace);
  with_float_type(a.q.dtype, [&](auto tag) {
    using T = decltype(tag);
    const T* const q = context.data<const T>(a.q);
    const T* const kv = context.data<const T>(a.kv);
    const T* const sinks = a.sinks.absent() ? nullptr : context.data<const T>(a.sinks);
    T* const out = context.data<T>(a.out);
    context.pool().parallel_for(s.tokens, 1, [&](std::int64_t t, std::int64_t, int thread) {
      const Worker w(s, workspace + thread * Worker::floats(s));
      widen(q + t * s.heads * s.key_dim, s.heads * s.key_dim, w.q);
      std::fill_n(w.sums, s.heads * s.value_dim, 0.0F);
      // Computes in base 2, for exp2_flushed(). Without sinks, the initial maximum is finite, so that a head
      // without keys does not compute inf - inf.
      for (std::int64_t h = 0; h < s.heads; ++h) {
        w.max[h] = sinks ? to_float(sinks[h]) * kLog2E : -1e30F;
        w.total[h] = sinks ? 1.0F : 0.0F;
      }
      for_each_tile(s, kv, selected + t * s.selected, w.keys, [&](const std::int64_t*, std::int64_t count) {
        for (std::int64_t h = 0; h < s.heads; ++h) {
          float* const sum = w.sums + h * s.value_dim;
          float weight[kKeys], maximum = w.max[h];
          for (std::int64_t j = 0; j < count; ++j) {
            weight[j] = s.scale * kLog2E * dot(w.q + h * s.key_dim, w.keys + j * s.key_dim, s.key_dim);
            maximum = weight[j] < maximum ? maximum : weight[j];  // keeps NaN
          }
          const float before = exp2_flushed(w.max[h] - maximum);
          w.max[h] = maximum;
          w.total[h] *= before;
          PRIMUS_SIMD()
          for (std::int64_t c = 0; c < s.value_dim; ++c) sum[c] *= before;
          for (std::int64_t j = 0; j < count; ++j) {
            weight[j] = exp2_flushed(weight[j] - maximum);
            w.total[h] += weight[j];
            add_scaled(weight[j], w.keys + j * s.key_dim, s.value_dim, sum);
          }
        }
      });
      for (std::int64_t h = 0; h < s.heads; ++h) {
        float* const sum = w.sums + h * s.value_dim;
        const float inverse = w.total[h] == 0 ? 0.0F : 1.0F / w.total[h];
        PRIMUS_SIMD()
        for (std::int64_t c = 0; c < s.value_dim; ++c) sum[c] *= inverse;
        if (lse) lse[h * s.tokens + t] = log_sum_exp2(w.max[h], w.total[h]);
      }
      narrow(w.sums, s.heads * s.value_dim, out + t * s.heads * s.value_dim);
    });
  });
}

// ---- Backward -----------------------------------------------------------------------------------

struct BackwardWorker {
  static std::int64_t floats(const SelectedAttentionShape& s) {
    return kKeys * s.key_dim + s.heads * (2 * s.key_dim + s.value_dim + 1);
  }
  BackwardWorker(const SelectedAttentionShape& s, float* memory)
      : keys(memory),
        q(keys + kKeys * s.key_dim),
        d_q(q + s.heads * s.key_dim),
        d_out(d_q + s.heads * s.key_dim),
        delta(d_out + s.heads * s.value_dim) {}
  float *keys, *q, *d_q, *d_out, *delta;
};

// The layout of the workspace.
struct Plan {
  // Max. number of floats for a slice of queries.
  static constexpr std::int64_t kSlice = std::int64_t{16} << 20;

  explicit Plan(const SelectedAttentionBackward& a) : Plan(a.shape, a.queries_at_once) {}
  Plan(const SelectedAttentionShape& s, std::int64_t at_once)
      : queries(std::clamp<std::int64_t>(at_once > 0 ? at_once : kSlice / (s.selected * s.key_dim + s.rows),
                                         1, s.tokens)),
        parts(queries * s.selected * s.key_dim),
        sums(s.rows * s.key_dim) {}
  std::int64_t queries;  // queries per slice
  std::int64_t parts;    // number of floats of a slice's contributions
  std::int64_t sums;     // number of floats of d_kv
};

std::int64_t backward_workspace(CpuContext& context, const SelectedAttentionBackward& a) {
  const SelectedAttentionShape& s = a.shape;
  const Plan plan(a);
  return static_cast<std::int64_t>(sizeof(float)) *
         (context.threads() * BackwardWorker::floats(s) + plan.parts + plan.sums + plan.queries * s.rows);
}

// Writes the contributions of query t to the gradients of its keys to `parts`, in list order.
template <class T>
void backward_query(const SelectedAttentionBackward& a, const CpuContext& context, std::int64_t t,
                    const BackwardWorker& w, float* parts) {
  const SelectedAttentionShape& s = a.shape;
  const std::int64_t q_width = s.heads * s.key_dim, out_width = s.heads * s.value_dim;
  const T* const out = context.data<const T>(a.out) + t * out_width;
  const float* const lse = context.data<const float>(a.lse) + t;
  widen(context.data<const T>(a.q) + t * q_width, q_width, w.q);
  widen(context.data<const T>(a.d_out) + t * out_width, out_width, w.d_out);
  std::fill_n(w.d_q, q_width, 0.0F);
  for (std::int64_t h = 0; h < s.heads; ++h) {
    const float* const d = w.d_out + h * s.value_dim;
    const T* const o = out + h * s.value_dim;
    w.delta[h] = sum_terms(s.value_dim, [=](std::int64_t i) { return d[i] * to_float(o[i]); });
  }
  for_each_tile(s, context.data<const T>(a.kv), context.data<const std::int32_t>(a.selected) + t * s.selected,
                w.keys, [&](const std::int64_t* places, std::int64_t count) {
                  for (std::int64_t j = 0; j < count; ++j)
                    std::fill_n(parts + places[j] * s.key_dim, s.key_dim, 0.0F);
                  for (std::int64_t h = 0; h < s.heads; ++h) {
                    const float* const q = w.q + h * s.key_dim;
                    const float* const d_out = w.d_out + h * s.value_dim;
                    for (std::int64_t j = 0; j < count; ++j) {
                      const float* const key = w.keys + j * s.key_dim;
                      float* const d_key = parts + places[j] * s.key_dim;
                      const float p =
                          exp2_flushed(kLog2E * (s.scale * dot(q, key, s.key_dim) - lse[h * s.tokens]));
                      const float d_score = s.scale * p * (dot(d_out, key, s.value_dim) - w.delta[h]);
                      add_scaled(d_score, key, s.key_dim, w.d_q + h * s.key_dim);
                      add_scaled(d_score, q, s.key_dim, d_key);
                      add_scaled(p, d_out, s.value_dim, d_key);
                    }
                  }
                });
  narrow(w.d_q, q_width, context.data<T>(a.d_q) + t * q_width);
}

void backward(CpuContext& context, const SelectedAttentionBackward& a) {
  const SelectedAttentionShape& s = a.shape;
  const Plan plan(a);
  const auto* const selected = context.data<const std::int32_t>(a.selected);
  auto* const workers = context.data<float>(a.workspace);
  float* const parts = workers + context.threads() * BackwardWorker::floats(s);
  float* const sums = parts + plan.parts;
  // places[i * rows + r] is the position of row r in the list of the slice's query i, or -1.
  auto* const places = reinterpret_cast<std::int32_t*>(sums + plan.sums);
  std::fill_n(sums, plan.sums, 0.0F);
  with_float_type(a.q.dtype, [&](auto tag) {
    using T = decltype(tag);
    for (std::int64_t first = 0; first < s.tokens; first += plan.queries) {
      const std::int64_t count = std::min(plan.queries, s.tokens - first);
      context.pool().parallel_for(count, 1, [&](std::int64_t i, std::int64_t, int thread) {
        std::int32_t* const own = places + i * s.rows;
        std::fill_n(own, s.rows, -1);
        const std::int32_t* const list = selected + (first + i) * s.selected;
        for (std::int64_t place = 0; place < s.selected; ++place) {
          if (list[place] >= 0) own[list[place]] = static_cast<std::int32_t>(place);
        }
        const BackwardWorker worker(s, workers + thread * BackwardWorker::floats(s));
        backward_query<T>(a, context, first + i, worker, parts + i * s.selected * s.key_dim);
      });
      parallel_ranges(context, s.rows, count * s.key_dim, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = 0; i < count; ++i) {
          for (std::int64_t row = begin; row < end; ++row) {
            const std::int64_t place = places[i * s.rows + row];
            if (place < 0) continue;
            const float* const part = parts + (i * s.selected + place) * s.key_dim;
            float* const sum = sums + row * s.key_dim;
            PRIMUS_SIMD()
            for (std::int64_t c = 0; c < s.key_dim; ++c) sum[c] += part[c];
          }
        }
      });
    }
    T* const d_kv = context.data<T>(a.d_kv);
    parallel_ranges(context, s.rows, s.key_dim * sizeof(float), [&](std::int64_t begin, std::int64_t end) {
      narrow(sums + begin * s.key_dim, (end - begin) * s.key_dim, d_kv + begin * s.key_dim);
    });
  });
}

}  // namespace

void register_selected_attention(KernelTable& table) {
  table.add<SelectedAttentionForward, CpuContext, &forward, &forward_workspace>();
  table.add<SelectedAttentionBackward, CpuContext, &backward, &backward_workspace>();
}

}  // namespace primus::turbo::PRIMUS_CPU_ISA
