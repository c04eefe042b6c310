#include "turbo/attention/gpu_paged.h"
#include "turbo/attention/gpu_tiles.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

constexpr int kThreadsOfRun = 128;
constexpr int kWarpsOfRun = kThreadsOfRun / kWarp;
constexpr int kLoads = 4;  // rows of keys, and as many of values, that a lane has under way together
constexpr int kSteps = 4;  // times that

// Lanes that share a row of a head, with 16 bytes each.
template <class T>
PRIMUS_DEVICE int lanes_of_row(std::int64_t dim) {
  return static_cast<int>(dim) / kVector<T>;
}
// Keys of a run. It depends on the width of heads alone.
std::int64_t run_length(const PagedAttention& a) {
  const std::int64_t vector = 16 / size_of(a.q.dtype);
  return kWarpsOfRun * kLoads * kSteps * kWarp * vector / a.head_dim;
}
// Runs that a query's keys may be in: those of its window, which begins anywhere in one, or all.
std::int64_t most_runs(const PagedAttention& a) {
  const std::int64_t length = run_length(a), all = blocks_for(a.sequences.capacity(), length);
  std::int64_t seen = a.sequences.capacity();
  if (a.window > 0) seen = std::min(seen, a.window);
  if (a.chunk > 0) seen = std::min(seen, a.chunk);
  return std::min(all, blocks_for(seen, length) + 1);
}

// A row's sequence, and the keys it sees.
struct Query {
  std::int64_t sequence, begin, end;
};
struct Queries {
  Pages pages;
  std::int64_t window, chunk;

  PRIMUS_DEVICE bool has(std::int64_t row) const { return row < pages.starts[pages.batch]; }
  PRIMUS_DEVICE Query at(std::int64_t row) const {
    const std::int64_t b = pages.sequence_of(row);
    const std::int64_t position = pages.lengths[b] - pages.starts[b + 1] + row;
    Query query{b, 0, position + 1};
    if (chunk > 0) query.begin = position / chunk * chunk;
    if (window > 0) query.begin = larger(query.begin, position - window + 1);
    return query;
  }
};

// What a run leaves of one query and head: the largest score (in base 2), the sum of the exponentials
// relative to it, and as many values, weighted by them, as a head is wide.
PRIMUS_DEVICE std::int64_t floats_of_part(std::int64_t head_dim) { return head_dim + 2; }

// A block for a row, up to kHeads of the heads that share keys, and a run of those.
template <class T, int kHeads>
struct DecodeRun {
  static constexpr int kThreads = kThreadsOfRun;
  static constexpr int kVec = kVector<T>;
  using Line = Pack<T, kVec>;
  Queries queries;
  const T *q, *k, *v;
  float* parts;  // [rows, heads, runs, floats_of_part]
  std::int64_t q_stride, k_stride, v_stride;
  std::int64_t heads, kv_heads, group, head_chunks, head_dim, runs, length;
  float scale;  // in base 2

  PRIMUS_DEVICE void operator()() const {
    const std::int64_t run = block() % runs, chunk = block() / runs % head_chunks;
    const std::int64_t kv_head = block() / runs / head_chunks % kv_heads;
    const std::int64_t row = block() / runs / head_chunks / kv_heads;
    if (!queries.has(row)) return;
    const Query query = queries.at(row);
    const std::int64_t first = (query.begin / length + run) * length;
    if (first >= query.end) return;

    const int lanes = lanes_of_row<T>(head_dim), column = lane() % lanes * kVec;
    const int keys_at_once = kWarp / lanes;
    const std::int64_t first_head = kv_head * group + chunk * kHeads;
    const int there = static_cast<int>(smaller(group - chunk * kHeads, kHeads));
    float asked[kHeads][kVec];
    PRIMUS_UNROLL
    for (int h = 0; h < kHeads; ++h) {
      const int head = h < there ? h : 0;  // another one's in place of none
      load<kVec>(q + row * q_stride + (first_head + head) * head_dim + column, asked[h]);
    }
    float most[kHeads], total[kHeads], sums[kHeads][kVec];
    PRIMUS_UNROLL
    for (int h = 0; h < kHeads; ++h) {
      most[h] = -infinity(), total[h] = 0;
      PRIMUS_UNROLL
      for (int i = 0; i < kVec; ++i) sums[h][i] = 0;
    }

    const std::int32_t* table = queries.pages.table + query.sequence * queries.pages.blocks;
    const int bits = queries.pages.page_bits;
    const T* of_keys = k + kv_head * head_dim + column;
    const T* of_values = v + kv_head * head_dim + column;
    for (int step = 0; step < kSteps; ++step) {
      Line keys[kLoads], values[kLoads];
      bool seen[kLoads];
      std::int64_t at[kLoads];
      PRIMUS_UNROLL
      for (int j = 0; j < kLoads; ++j) {
        const std::int64_t key =
            first + ((step * kLoads + j) * kWarpsOfRun + warp()) * keys_at_once + lane() / lanes;
        seen[j] = key >= query.begin && key < query.end;
        at[j] = seen[j] ? (static_cast<std::int64_t>(table[key >> bits]) << bits) +
                              (key & ((std::int64_t{1} << bits) - 1))
                        : 0;
      }
      PRIMUS_UNROLL
      for (int j = 0; j < kLoads; ++j) keys[j] = seen[j] ? load_once(of_keys + at[j] * k_stride) : Line{};
      PRIMUS_UNROLL
      for (int j = 0; j < kLoads; ++j) values[j] = seen[j] ? load_once(of_values + at[j] * v_stride) : Line{};
      PRIMUS_UNROLL
      for (int h = 0; h < kHeads; ++h) {
        float scores[kLoads], next = most[h];
        PRIMUS_UNROLL
        for (int j = 0; j < kLoads; ++j) {
          float score = 0;
          PRIMUS_UNROLL
          for (int i = 0; i < kVec; ++i) score = multiply_add(asked[h][i], to_float(keys[j].at[i]), score);
          for (int mask = lanes / 2; mask > 0; mask /= 2) score += from_lane_xor(score, mask);
          scores[j] = seen[j] ? score * scale : -infinity();
          next = ::fmaxf(next, scores[j]);
        }
        const float base = next == -infinity() ? 0.0F : next;
        const float shrink = exp2_flushed(most[h] - base);
        most[h] = next;
        total[h] *= shrink;
        PRIMUS_UNROLL
        for (int i = 0; i < kVec; ++i) sums[h][i] *= shrink;
        PRIMUS_UNROLL
        for (int j = 0; j < kLoads; ++j) {
          const float weight = exp2_flushed(scores[j] - base);
          total[h] += weight;
          PRIMUS_UNROLL
          for (int i = 0; i < kVec; ++i)
            sums[h][i] = multiply_add(weight, to_float(values[j].at[i]), sums[h][i]);
        }
      }
    }
    finish(row, run, first_head, there, lanes, most, total, sums);
  }

  // Joins what the lanes of a warp found, then what the warps did, in their order.
  PRIMUS_DEVICE void finish(std::int64_t row, std::int64_t run, std::int64_t first_head, int there, int lanes,
                            float (&most)[kHeads], float (&total)[kHeads],
                            float (&sums)[kHeads][kVec]) const {
    auto* of_warps = reinterpret_cast<float*>(dynamic_shared());  // [warps, kHeads, part]
    const std::int64_t size = floats_of_part(head_dim);
    PRIMUS_UNROLL
    for (int h = 0; h < kHeads; ++h) {
      float all = most[h];
      for (int mask = lanes; mask < kWarp; mask *= 2) all = ::fmaxf(all, from_lane_xor(all, mask));
      const float base = all == -infinity() ? 0.0F : all;
      const float shrink = exp2_flushed(most[h] - base);
      float sum = total[h] * shrink;
      for (int mask = lanes; mask < kWarp; mask *= 2) sum += from_lane_xor(sum, mask);
      float* to = of_warps + (warp() * kHeads + h) * size;
      PRIMUS_UNROLL
      for (int i = 0; i < kVec; ++i) {
        float value = sums[h][i] * shrink;
        for (int mask = lanes; mask < kWarp; mask *= 2) value += from_lane_xor(value, mask);
        if (lane() < lanes) to[2 + lane() * kVec + i] = value;
      }
      if (lane() == 0) to[0] = all, to[1] = sum;
    }
    barrier();
    for (std::int64_t i = thread(); i < there * (size - 1); i += kThreads) {
      const std::int64_t h = i / (size - 1), element = i % (size - 1) + 1;
      const float* from = of_warps + h * size;
      float all = -infinity(), sum = 0;
      PRIMUS_UNROLL
      for (int w = 0; w < kWarpsOfRun; ++w) all = ::fmaxf(all, from[w * kHeads * size]);
      const float base = all == -infinity() ? 0.0F : all;
      PRIMUS_UNROLL
      for (int w = 0; w < kWarpsOfRun; ++w) {
        const float* part = from + w * kHeads * size;
        sum = multiply_add(part[element], exp2_flushed(part[0] - base), sum);
      }
      float* to = parts + ((row * heads + first_head + h) * runs + run) * size;
      to[element] = sum;
      if (element == 1) to[0] = all;
    }
  }
};

// A block for a row's head, a thread for a column: joins the runs in their order.
template <class T>
struct DecodeMerge {
  static constexpr int kThreads = 128;
  Queries queries;
  const float* parts;
  const T* sinks;  // or null
  T* out;
  std::int64_t heads, head_dim, runs, length;

  PRIMUS_DEVICE void operator()() const {
    const std::int64_t head = block() % heads, row = block() / heads, size = floats_of_part(head_dim);
    T* to = out + block() * head_dim;
    if (!queries.has(row)) {
      for (std::int64_t i = thread(); i < head_dim; i += kThreads) to[i] = T{};
      return;
    }
    const Query query = queries.at(row);
    const std::int64_t count = (query.end - 1) / length - query.begin / length + 1;
    const float* from = parts + block() * runs * size;
    const float sink = sinks ? to_float(sinks[head]) * kLog2E : -infinity();
    float most = sink;
    for (std::int64_t run = 0; run < count; ++run) most = ::fmaxf(most, from[run * size]);
    for (std::int64_t i = thread(); i < head_dim; i += kThreads) {
      float sum = 0, total = sinks ? exp2_flushed(sink - most) : 0.0F;
      for (std::int64_t run = 0; run < count; ++run) {
        const float* part = from + run * size;
        const float weight = exp2_flushed(part[0] - most);
        total = multiply_add(part[1], weight, total);
        sum = multiply_add(part[2 + i], weight, sum);
      }
      to[i] = from_float<T>(sum / total);
    }
  }
};

std::int64_t bytes_of_parts(const PagedAttention& a) {
  return a.tokens * a.heads * most_runs(a) * (a.head_dim + 2) * static_cast<std::int64_t>(sizeof(float));
}

bool takes(const PagedAttention& a) {
  constexpr std::int64_t kMostRows = 8, kMostBytes = std::int64_t{1} << 30;
  const std::int64_t vector = 16 / size_of(a.q.dtype);
  const std::int64_t lanes = a.head_dim / vector;
  const auto vectors = [&](const Tensor& t, std::int64_t stride) {
    return reinterpret_cast<std::uintptr_t>(t.data) % 16 == 0 && stride % vector == 0;
  };
  return a.tokens <= std::max(a.sequences.batch(), kMostRows) && a.value_dim == a.head_dim &&
         a.head_dim % vector == 0 && lanes <= 32 && std::has_single_bit(static_cast<std::uint64_t>(lanes)) &&
         vectors(a.q, a.q_stride) && vectors(a.k, a.k_stride) && vectors(a.v, a.v_stride) &&
         bytes_of_parts(a) <= kMostBytes;
}

template <class T, int kHeads>
void decode(Context& context, const PagedAttention& a) {
  const std::int64_t group = a.heads / a.kv_heads, head_chunks = blocks_for(group, kHeads);
  const std::int64_t runs = most_runs(a), length = run_length(a);
  const Queries queries{Pages(context, a.sequences), a.window, a.chunk};
  auto* parts = context.data<float>(a.workspace);
  launch(context, a.tokens * a.kv_heads * head_chunks * runs,
         DecodeRun<T, kHeads>{queries, context.data<T>(a.q), context.data<T>(a.k), context.data<T>(a.v),
                              parts, a.q_stride, a.k_stride, a.v_stride, a.heads, a.kv_heads, group,
                              head_chunks, a.head_dim, runs, length, a.scale * kLog2E},
         static_cast<std::size_t>(kWarpsOfRun * kHeads * (a.head_dim + 2)) * sizeof(float));
  launch(context, a.tokens * a.heads,
         DecodeMerge<T>{queries, parts, optional<T>(context, a.sinks), context.data<T>(a.out), a.heads,
                        a.head_dim, runs, length});
}

}  // namespace

std::int64_t paged_decode_workspace(const PagedAttention& a) { return takes(a) ? bytes_of_parts(a) : 0; }

bool paged_decode(Context& context, const PagedAttention& a) {
  if (!takes(a)) return false;
  with_float_type(a.q.dtype, [&](auto tag) {
    using T = decltype(tag);
    switch (a.heads / a.kv_heads) {
      case 1:
        return decode<T, 1>(context, a);
      case 2:
        return decode<T, 2>(context, a);
      default:
        return decode<T, 4>(context, a);
    }
  });
  return true;
}

}  // namespace primus::turbo::PRIMUS_GPU
