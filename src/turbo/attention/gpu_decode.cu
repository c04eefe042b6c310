#include "turbo/attention/gpu_decode_latents.h"
#include "turbo/attention/gpu_paged.h"
#include "turbo/attention/gpu_tiles.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

constexpr int kThreadsOfRun = 128;
constexpr int kWarpsOfRun = kThreadsOfRun / kWarp;
constexpr int kLoads = 4;  // number of key rows, and of value rows, that a lane loads concurrently
constexpr int kSteps = 2;  // number of steps per run; a lane loads kLoads rows per step

// Returns whether heads share cached latents, whose first columns are the values.
bool over_latents(const PagedAttention& a) {
  constexpr std::int64_t kFewHeads = 4;
  using Run = DecodeLatents;
  return a.q.dtype == DType::kBF16 && a.k.data == a.v.data && a.k_stride == a.v_stride && a.kv_heads == 1 &&
         a.heads >= kFewHeads && a.value_dim < a.head_dim && a.head_dim <= Run::kWidest &&
         a.value_dim <= Run::kWidestValue && a.head_dim % kTile == 0 && a.value_dim % kTile == 0;
}
// Returns the number of keys in a run: the consecutive keys that one block processes. This number depends
// only on the shape of heads.
std::int64_t run_length(const PagedAttention& a) {
  if (over_latents(a)) return DecodeLatents::kLength;
  const std::int64_t vector = 16 / size_of(a.q.dtype);
  return kWarpsOfRun * kLoads * kSteps * kWarp * vector / a.head_dim;
}
// Returns the maximum number of runs with keys that one query sees. With a window or chunk, one run is added,
// because the visible keys may begin anywhere in a run.
std::int64_t max_runs(const PagedAttention& a) {
  const std::int64_t length = run_length(a), all = blocks_for(a.sequences.capacity(), length);
  std::int64_t seen = a.sequences.capacity();
  if (a.window > 0) seen = std::min(seen, a.window);
  if (a.chunk > 0) seen = std::min(seen, a.chunk);
  return std::min(all, blocks_for(seen, length) + 1);
}

// The result of a run for one query and head: the largest score (in base 2), the sum of the exponentials
// relative to this score, and the sum of the values weighted by the exponentials (one float per column of the
// head). A block processes one query row, one run of keys, and up to kHeads of the heads that share keys.
// kLanes lanes share a row of keys; each lane loads 16 bytes of the row.
template <class T, int kHeads, int kLanes>
struct DecodeRun {
  static constexpr int kThreads = kThreadsOfRun;
  using StartsEarly = void;
  static constexpr int kVec = kVector<T>;
  using Row = Pack<T, kVec>;
  Queries queries;
  const T *q, *k, *v;
  float* parts;  // [rows, heads, runs, floats_of_part]
  std::int64_t q_stride, k_stride, v_stride;
  int heads, kv_heads, group, head_tiles, runs;
  float scale;     // factor of scores (with a soft cap: the cap), converted to base 2
  float into_cap;  // factor of scores before the tanh of the soft cap; 0: no cap

  static constexpr int kDim = kLanes * kVec, kPart = kDim + 2;
  static constexpr int kKeysAtOnce = kWarp / kLanes;
  static constexpr int kLength = kWarpsOfRun * kLoads * kSteps * kKeysAtOnce;

  PRIMUS_DEVICE void operator()() const {
    let_next_begin();
    const int item = static_cast<int>(block());
    const int run = item % runs, tile = item / runs % head_tiles;
    const int kv_head = item / runs / head_tiles % kv_heads, row = item / runs / head_tiles / kv_heads;
    const bool has_row = queries.has(row);
    const Query query = has_row ? queries.at(row) : Query{};
    const int first = (query.begin / kLength + run) * kLength;
    if (!has_row || first >= query.end) return wait_for_previous();

    const int column = lane() % kLanes * kVec, first_head = kv_head * group + tile * kHeads;
    const int there = group - tile * kHeads < kHeads ? group - tile * kHeads : kHeads;
    const std::int32_t* table = queries.pages.table + query.sequence * queries.pages.blocks;
    const int bits = queries.pages.page_bits;
    const T* of_keys = k + kv_head * kDim + column;
    const T* of_values = v + kv_head * kDim + column;
    // Finds the rows of this lane's keys of a step, and whether each key exists. The code has no branches, so
    // that all lookups run concurrently.
    bool seen[kLoads];
    std::int64_t at[kLoads];
    const auto look_up = [&](int step) {
      PRIMUS_UNROLL
      for (int j = 0; j < kLoads; ++j) {
        const int key = first + ((step * kLoads + j) * kWarpsOfRun + warp()) * kKeysAtOnce + lane() / kLanes;
        seen[j] = key >= query.begin && key < query.end;
        const int safe = seen[j] ? key : query.end - 1;
        at[j] = (static_cast<std::int64_t>(table[safe >> bits]) << bits) + (safe & ((1 << bits) - 1));
      }
    };
    // Prefetches keys and values while the previous kernel still computes the queries and the last row.
    for (int step = kSteps - 1; step >= 0; --step) {
      look_up(step);
      PRIMUS_UNROLL
      for (int j = 0; j < kLoads; ++j) {
        if (!seen[j]) continue;
        prefetch(of_keys + at[j] * k_stride);
        prefetch(of_values + at[j] * v_stride);
      }
    }
    wait_for_previous();
    float asked[kHeads][kVec];
    PRIMUS_UNROLL
    for (int h = 0; h < kHeads; ++h) {
      const int head = h < there ? h : 0;  // head 0 replaces a head that does not exist
      load<kVec>(q + row * q_stride + (first_head + head) * kDim + column, asked[h]);
    }
    float maximum[kHeads], total[kHeads], sums[kHeads][kVec];
    PRIMUS_UNROLL
    for (int h = 0; h < kHeads; ++h) {
      maximum[h] = -infinity(), total[h] = 0;
      PRIMUS_UNROLL
      for (int i = 0; i < kVec; ++i) sums[h][i] = 0;
    }

    for (int step = 0; step < kSteps; ++step) {
      Row keys[kLoads], values[kLoads];
      bool here[kLoads];
      PRIMUS_UNROLL
      for (int j = 0; j < kLoads; ++j) {
        here[j] = seen[j];
        keys[j] = seen[j] ? row_of(of_keys + at[j] * k_stride) : Row{};
      }
      PRIMUS_UNROLL
      for (int j = 0; j < kLoads; ++j) values[j] = seen[j] ? row_of(of_values + at[j] * v_stride) : Row{};
      if (step + 1 < kSteps) look_up(step + 1);
      PRIMUS_UNROLL
      for (int h = 0; h < kHeads; ++h) {
        add_keys(asked[h], keys, values, here, maximum[h], total[h], sums[h]);
      }
    }
    finish(row, run, first_head, there, maximum, total, sums);
  }

  // Adds the keys and values of a step to the running result of one head.
  PRIMUS_DEVICE void add_keys(const float (&asked)[kVec], const Row (&keys)[kLoads],
                              const Row (&values)[kLoads], const bool (&here)[kLoads], float& maximum,
                              float& total, float (&sums)[kVec]) const {
    float scores[kLoads], next = maximum;
    PRIMUS_UNROLL
    for (int j = 0; j < kLoads; ++j) {
      float score = 0;
      PRIMUS_UNROLL
      for (int i = 0; i < kVec; ++i) score = multiply_add(asked[i], to_float(keys[j].at[i]), score);
      PRIMUS_UNROLL
      for (int mask = kLanes / 2; mask > 0; mask /= 2) score += from_lane_xor(score, mask);
      if (into_cap > 0) score = ::tanhf(score * into_cap);
      scores[j] = here[j] ? score * scale : -infinity();
      next = ::fmaxf(next, scores[j]);
    }
    const float base = next == -infinity() ? 0.0F : next;
    const float shrink = exp2_flushed(maximum - base);
    maximum = next;
    total *= shrink;
    PRIMUS_UNROLL
    for (int i = 0; i < kVec; ++i) sums[i] *= shrink;
    PRIMUS_UNROLL
    for (int j = 0; j < kLoads; ++j) {
      const float weight = exp2_flushed(scores[j] - base);
      total += weight;
      PRIMUS_UNROLL
      for (int i = 0; i < kVec; ++i) sums[i] = multiply_add(weight, to_float(values[j].at[i]), sums[i]);
    }
  }

  PRIMUS_DEVICE static Row row_of(const T* from) { return std::bit_cast<Row>(load_line_once(from)); }

  // Joins the results of a warp's lanes, then the results of the warps, in order.
  PRIMUS_DEVICE void finish(int row, int run, int first_head, int there, float (&maximum)[kHeads],
                            float (&total)[kHeads], float (&sums)[kHeads][kVec]) const {
    auto* of_warps = reinterpret_cast<float*>(dynamic_shared());  // [warps, kHeads, part]
    PRIMUS_UNROLL
    for (int h = 0; h < kHeads; ++h) {
      float all = maximum[h];
      PRIMUS_UNROLL
      for (int mask = kLanes; mask < kWarp; mask *= 2) all = ::fmaxf(all, from_lane_xor(all, mask));
      const float base = all == -infinity() ? 0.0F : all;
      const float shrink = exp2_flushed(maximum[h] - base);
      float sum = total[h] * shrink;
      PRIMUS_UNROLL
      for (int mask = kLanes; mask < kWarp; mask *= 2) sum += from_lane_xor(sum, mask);
      float* to = of_warps + (warp() * kHeads + h) * kPart;
      PRIMUS_UNROLL
      for (int i = 0; i < kVec; ++i) {
        float value = sums[h][i] * shrink;
        PRIMUS_UNROLL
        for (int mask = kLanes; mask < kWarp; mask *= 2) value += from_lane_xor(value, mask);
        if (lane() < kLanes) to[2 + lane() * kVec + i] = value;
      }
      if (lane() == 0) to[0] = all, to[1] = sum;
    }
    barrier();
    for (int i = thread(); i < there * (kPart - 1); i += kThreads) {
      const int h = i / (kPart - 1), element = i % (kPart - 1) + 1;
      const float* from = of_warps + h * kPart;
      float all = -infinity(), sum = 0;
      PRIMUS_UNROLL
      for (int w = 0; w < kWarpsOfRun; ++w) all = ::fmaxf(all, from[w * kHeads * kPart]);
      const float base = all == -infinity() ? 0.0F : all;
      PRIMUS_UNROLL
      for (int w = 0; w < kWarpsOfRun; ++w) {
        const float* part = from + w * kHeads * kPart;
        sum = multiply_add(part[element], exp2_flushed(part[0] - base), sum);
      }
      float* to = parts + ((static_cast<std::int64_t>(row) * heads + first_head + h) * runs + run) * kPart;
      to[element] = sum;
      if (element == 1) to[0] = all;
    }
  }
};

// Joins the results of the runs in order. A thread computes one column at a time. `pieces` blocks share the
// columns of one row and head.
template <class T>
struct DecodeMerge {
  static constexpr int kThreads = 128;
  using StartsEarly = void;
  Queries queries;
  const float* parts;
  const T* sinks;  // null: no sinks
  T* out;
  int heads, head_dim, runs, length, pieces;

  PRIMUS_DEVICE void operator()() const {
    let_next_begin();
    const int item = static_cast<int>(block()) / pieces, head = item % heads, row = item / heads;
    const int first = static_cast<int>(block()) % pieces * kThreads + thread();
    T* to = out + static_cast<std::int64_t>(item) * head_dim;
    const bool has_row = queries.has(row);
    const Query query = has_row ? queries.at(row) : Query{};
    wait_for_previous();
    if (!has_row) {
      for (int i = first; i < head_dim; i += pieces * kThreads) to[i] = T{};
      return;
    }
    const int count = (query.end - 1) / length - query.begin / length + 1, size = head_dim + 2;
    const float* from = parts + static_cast<std::int64_t>(item) * runs * size;
    const float sink = sinks ? to_float(sinks[head]) * kLog2E : -infinity();
    float maximum = sink;
    PRIMUS_UNROLL_BY(8)
    for (int run = 0; run < count; ++run) maximum = ::fmaxf(maximum, from[run * size]);
    for (int i = first; i < head_dim; i += pieces * kThreads) {
      float sum = 0, total = sinks ? exp2_flushed(sink - maximum) : 0.0F;
      PRIMUS_UNROLL_BY(8)
      for (int run = 0; run < count; ++run) {
        const float* part = from + run * size;
        const float weight = exp2_flushed(part[0] - maximum);
        total = multiply_add(part[1], weight, total);
        sum = multiply_add(part[2 + i], weight, sum);
      }
      to[i] = from_float<T>(sum / total);
    }
  }
};

// Merges the results of all rows and heads. Several blocks share a wide head only if there are too few heads
// to fill the GPU. The bits do not depend on the number of blocks.
template <class T>
void merge(Context& context, const PagedAttention& a, const Queries& queries, const float* parts,
           int head_dim, int runs, int length) {
  using Merge = DecodeMerge<T>;
  const std::int64_t heads = a.tokens * a.heads;
  const std::int64_t pieces =
      heads < 2 * multiprocessors(context) ? blocks_for(head_dim, Merge::kThreads) : 1;
  launch(context, heads * pieces,
         Merge{queries, parts, optional<T>(context, a.sinks), context.data<T>(a.out),
               static_cast<int>(a.heads), head_dim, runs, length, static_cast<int>(pieces)});
}

std::int64_t bytes_of_parts(const PagedAttention& a) {
  return a.tokens * a.heads * max_runs(a) * (a.value_dim + 2) * static_cast<std::int64_t>(sizeof(float));
}

bool has_room_for_latents([[maybe_unused]] const Context& context) {
#ifdef PRIMUS_GPU_VENDOR
  return max_shared(context) >= static_cast<std::int64_t>(sizeof(DecodeLatents::Memory));
#else
  return true;
#endif
}

bool takes(const Context& context, const PagedAttention& a) {
  constexpr std::int64_t kMaxRows = 8, kMaxBytes = std::int64_t{1} << 30, kMaxBlocks = std::int64_t{1} << 30;
  const std::int64_t vector = 16 / size_of(a.q.dtype), lanes = a.head_dim / vector;
  const auto vectors = [&](const Tensor& t, std::int64_t stride) {
    return reinterpret_cast<std::uintptr_t>(t.data) % 16 == 0 && stride % vector == 0;
  };
  const bool rows_alike =
      a.value_dim == a.head_dim && a.head_dim % vector == 0 && (lanes == 8 || lanes == 16 || lanes == 32);
  return a.tokens <= std::max(a.sequences.batch(), kMaxRows) &&
         (rows_alike || (over_latents(a) && a.score_cap == 0 && has_room_for_latents(context))) &&
         vectors(a.q, a.q_stride) && vectors(a.k, a.k_stride) && vectors(a.v, a.v_stride) &&
         bytes_of_parts(a) <= kMaxBytes && a.tokens * a.heads * max_runs(a) <= kMaxBlocks;
}

template <class T, int kHeads, int kLanes>
void decode(Context& context, const PagedAttention& a) {
  using Run = DecodeRun<T, kHeads, kLanes>;
  const auto heads = static_cast<int>(a.heads), kv_heads = static_cast<int>(a.kv_heads);
  const auto runs = static_cast<int>(max_runs(a));
  const int group = heads / kv_heads, head_tiles = static_cast<int>(blocks_for(group, kHeads));
  const Queries queries{Pages(context, a.sequences), static_cast<int>(a.window), static_cast<int>(a.chunk)};
  auto* parts = context.data<float>(a.workspace);
  const bool capped = a.score_cap > 0;
  launch(context, a.tokens * kv_heads * head_tiles * runs,
         Run{queries, context.data<T>(a.q), context.data<T>(a.k), context.data<T>(a.v), parts, a.q_stride,
             a.k_stride, a.v_stride, heads, kv_heads, group, head_tiles, runs,
             (capped ? a.score_cap : a.scale) * kLog2E, capped ? a.scale / a.score_cap : 0.0F},
         static_cast<std::size_t>(kWarpsOfRun * kHeads * Run::kPart) * sizeof(float));
  merge<T>(context, a, queries, parts, Run::kDim, runs, Run::kLength);
}

void decode_latents(Context& context, const PagedAttention& a) {
  using T = DecodeLatents::T;
  const auto heads = static_cast<int>(a.heads), kv_heads = static_cast<int>(a.kv_heads);
  const auto runs = static_cast<int>(max_runs(a)), value_dim = static_cast<int>(a.value_dim);
  const int group = heads / kv_heads, head_tiles = static_cast<int>(blocks_for(group, kTile));
  const Queries queries{Pages(context, a.sequences), static_cast<int>(a.window), static_cast<int>(a.chunk)};
  auto* const parts = context.data<float>(a.workspace);
  launch(context, a.tokens * kv_heads * head_tiles * runs,
         DecodeLatents{queries, context.data<T>(a.q), context.data<T>(a.k), parts, a.q_stride, a.k_stride,
                       heads, kv_heads, group, head_tiles, runs, static_cast<int>(a.head_dim), value_dim,
                       a.scale * kLog2E},
         sizeof(DecodeLatents::Memory));
  merge<T>(context, a, queries, parts, value_dim, runs, DecodeLatents::kLength);
}

template <class T, int kLanes>
void decode(Context& context, const PagedAttention& a) {
  // A block computes several heads that share keys, unless the GPU would have too few blocks. The bits of
  // results do not depend on the number of heads per block.
  const std::int64_t group = a.heads / a.kv_heads, runs = a.tokens * a.kv_heads * max_runs(a);
  const auto fills = [&](std::int64_t heads) {
    constexpr std::int64_t kBlocksOfProcessor = 2;
    return group >= heads && runs * blocks_for(group, heads) >= kBlocksOfProcessor * multiprocessors(context);
  };
  if (group > 2 && fills(4)) return decode<T, 4, kLanes>(context, a);
  if (fills(2)) return decode<T, 2, kLanes>(context, a);
  return decode<T, 1, kLanes>(context, a);
}

}  // namespace

std::int64_t paged_decode_workspace(const Context& context, const PagedAttention& a) {
  return takes(context, a) ? bytes_of_parts(a) : 0;
}

bool paged_decode(Context& context, const PagedAttention& a) {
  if (!takes(context, a)) return false;
  if (over_latents(a)) {
    decode_latents(context, a);
    return true;
  }
  with_float_type(a.q.dtype, [&](auto tag) {
    using T = decltype(tag);
    switch (a.head_dim / kVector<T>) {
      case 8:
        return decode<T, 8>(context, a);
      case 16:
        return decode<T, 16>(context, a);
      default:
        return decode<T, 32>(context, a);
    }
  });
  return true;
}

}  // namespace primus::turbo::PRIMUS_GPU
