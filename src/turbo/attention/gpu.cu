// Flash attention for every case of the contract, on any GPU. Where a library is there (gpu_cudnn.h), it does
// the calls that it covers; the rest is ours. Backward runs in two kernels, one for the
// gradients of keys and values and one for those of queries; each sums in a fixed order by itself, so results
// are deterministic without atomics, at the price of computing the scores twice.
#include "turbo/attention/attention.h"
#include "turbo/attention/gpu_cudnn.h"
#include "turbo/attention/gpu_paged.h"
#include "turbo/attention/gpu_tiles.h"
#include "turbo/attention/gpu_warpgroups.h"
#include "turbo/attention/gpu_warpgroups_backward.h"
#include "turbo/attention/paged_attention.h"
#include "turbo/gpu/register.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

// ---- Forward ------------------------------------------------------------------------------------

template <class T>
struct Forward {
  using Tiles = AttentionTiles<T>;
  static constexpr int kThreads = Tiles::kThreads, kSlots = Accumulator::kRows;
  Visibility visibility;
  const T *q, *k, *v, *sinks;  // sinks or null
  T* out;
  float* lse;  // or null
  std::int64_t q_stride, k_stride, v_stride;
  std::int64_t batch, capacity_k, heads, group, head_dim, value_dim, tiles, chunks;
  float scale;
  const std::int32_t* unless_zero;  // null, or: nothing to do where this is 0

  PRIMUS_DEVICE void operator()() const {
    if (unless_zero && *unless_zero == 0) return;
    auto& m = *reinterpret_cast<typename Tiles::Memory*>(dynamic_shared());
    // The last queries of a sequence see the most keys: they begin first.
    const std::int64_t chunk = block() % chunks, head = block() / chunks % heads;
    const std::int64_t sequence = block() / chunks / heads % batch;
    const std::int64_t row = (tiles - 1 - block() / chunks / heads / batch) * Tiles::kRows;
    const std::int64_t seq_q = visibility.seq_q, seq_k = visibility.seq_k;
    run(m, visibility, {q + sequence * seq_q * q_stride + head * head_dim, q_stride, seq_q, head_dim},
        HeadRows<T>{k + sequence * capacity_k * k_stride + head / group * head_dim, k_stride, seq_k,
                    head_dim},
        HeadRows<T>{v + sequence * capacity_k * v_stride + head / group * value_dim, v_stride, seq_k,
                    value_dim},
        sequence, head, row, chunk, out + sequence * seq_q * heads * value_dim,
        lse ? lse + (head * batch + sequence) * seq_q : nullptr);
  }

  // One tile of queries of one sequence. `of` and `to`, `log_sums`: of the sequence.
  template <class Keys>
  PRIMUS_DEVICE void run(typename Tiles::Memory& m, const Visibility& of, const HeadRows<T>& queries,
                         const Keys& keys, const Keys& values, std::int64_t sequence, std::int64_t head,
                         std::int64_t row, std::int64_t chunk, T* to, float* log_sums) const {
    const std::int64_t seq_q = of.seq_q;
    KeyRange seen[kSlots];
    float most[kSlots], total[kSlots];
    PRIMUS_UNROLL
    for (int s = 0; s < kSlots; ++s) {
      const std::int64_t i = row + warp() * kTile + Accumulator::row_of_slot(s);
      seen[s] = i < seq_q ? of.keys(sequence, i) : KeyRange{0, 0};
      most[s] = -infinity();
      total[s] = 0;
    }
    typename Tiles::Sums sums;
    Tiles::clear(sums);
    const std::int64_t end = of.keys(sequence, smaller(row + Tiles::kRows, seq_q) - 1).end;
    bool loaded = false;
    for (std::int64_t col = of.keys(sequence, row).begin / Tiles::kCols * Tiles::kCols; col < end;
         col += Tiles::kCols) {
      typename Tiles::Scores scores;
      Tiles::multiply_rows(m, scores, 0, queries, row, keys, col, loaded,
                           [&] { Tiles::fetch(m.wide, values, col, chunk * Tiles::kWide); });
      softmax(scores, seen, col, most, total, sums);
      Tiles::add_weighted(m, sums, scores, chunk * Tiles::kWide, value_dim);
    }
    finish(seq_q, head, row, chunk, most, total, sums, to, log_sums);
  }

  // Masks and scales the scores, moves the running maximum, and turns scores into weights of the values.
  PRIMUS_DEVICE void softmax(typename Tiles::Scores& scores, const KeyRange (&seen)[kSlots], std::int64_t col,
                             float (&most)[kSlots], float (&total)[kSlots],
                             typename Tiles::Sums& sums) const {
    const float factor = scale * kLog2E;
    // Positions within the tile, in 32 bits. Most tiles are visible as a whole.
    int begin[kSlots], end[kSlots];
    bool whole = true;
    float tile_most[kSlots], tile_total[kSlots], shrink[kSlots];
    PRIMUS_UNROLL
    for (int s = 0; s < kSlots; ++s) {
      begin[s] = static_cast<int>(larger(seen[s].begin - col, 0));
      end[s] = static_cast<int>(smaller(seen[s].end - col, Tiles::kCols));
      whole = whole && begin[s] == 0 && end[s] == Tiles::kCols;
      tile_most[s] = -infinity(), tile_total[s] = 0;
    }
    if (!whole) {
      PRIMUS_UNROLL
      for (int j = 0; j < Tiles::kCols / kTile; ++j) {
        PRIMUS_UNROLL
        for (int i = 0; i < kPerLane; ++i) {
          const int s = Accumulator::slot(i), c = j * kTile + Accumulator::col(i);
          if (c < begin[s] || c >= end[s]) scores[j].at[i] = -infinity();
        }
      }
    }
    PRIMUS_UNROLL
    for (int j = 0; j < Tiles::kCols / kTile; ++j) {
      PRIMUS_UNROLL
      for (int i = 0; i < kPerLane; ++i) {
        const int s = Accumulator::slot(i);
        tile_most[s] = ::fmaxf(tile_most[s], scores[j].at[i]);
      }
    }
    PRIMUS_UNROLL
    for (int s = 0; s < kSlots; ++s) {
      const float next = ::fmaxf(most[s], reduce_row(tile_most[s], Maximum{}) * factor);
      // Nothing visible so far: any base will do for exponentials that are all zero.
      const float base = next == -infinity() ? 0.0F : next;
      shrink[s] = exp2_flushed(most[s] - base);
      most[s] = next;
      tile_most[s] = base;
    }
    PRIMUS_UNROLL
    for (int j = 0; j < Tiles::kCols / kTile; ++j) {
      PRIMUS_UNROLL
      for (int i = 0; i < kPerLane; ++i) {
        const int s = Accumulator::slot(i);
        scores[j].at[i] = exp2_flushed(multiply_add(scores[j].at[i], factor, -tile_most[s]));
        tile_total[s] += scores[j].at[i];
      }
    }
    PRIMUS_UNROLL
    for (int s = 0; s < kSlots; ++s) total[s] = total[s] * shrink[s] + reduce_row(tile_total[s], Plus{});
    PRIMUS_UNROLL
    for (int j = 0; j < Tiles::kWide / kTile; ++j) {
      PRIMUS_UNROLL
      for (int i = 0; i < kPerLane; ++i) sums[j].at[i] *= shrink[Accumulator::slot(i)];
    }
  }

  PRIMUS_DEVICE void finish(std::int64_t seq_q, std::int64_t head, std::int64_t row, std::int64_t chunk,
                            float (&most)[kSlots], float (&total)[kSlots], const typename Tiles::Sums& sums,
                            T* to, float* log_sums) const {
    float factor[kSlots];
    PRIMUS_UNROLL
    for (int s = 0; s < kSlots; ++s) {
      const float sink = sinks ? to_float(sinks[head]) * kLog2E : -infinity();
      const float final_most = ::fmaxf(most[s], sink);
      // A query that sees nothing: its sums are zero, and so is what it gets.
      const bool nothing = final_most == -infinity();
      const float shrink = nothing ? 0.0F : ::exp2f(most[s] - final_most);
      const float sum = total[s] * shrink + (sinks ? ::exp2f(sink - final_most) : 0.0F);
      factor[s] = nothing ? 0.0F : shrink / sum;
      const std::int64_t i = row + warp() * kTile + Accumulator::row_of_slot(s);
      if (log_sums && chunk == 0 && i < seq_q && Accumulator::col(0) == 0) {
        log_sums[i] = nothing ? -infinity() : (final_most + ::log2f(sum)) * kLn2;
      }
    }
    Tiles::store(sums, to + head * value_dim, heads * value_dim, row, chunk * Tiles::kWide, seq_q, value_dim,
                 factor);
  }
};

std::int64_t forward_workspace(Context& context, const AttentionForward& a) {
  return attention_library_workspace(context, a, 0);
}

template <int kHeadDim, int kValueDim>
void attend_by_warpgroups(Context& context, const AttentionForward& a, const std::int32_t* unless_zero) {
  using Kernel = ForwardWarpgroups<kHeadDim, kValueDim>;
  const AttentionShape& s = a.shape;
  const auto map = [&](const Tensor& x, std::int64_t cols, std::int64_t rows, std::int64_t capacity,
                       std::int64_t stride, int lines) {
    return box_map({context.data<BFloat16>(x), {cols, rows, s.batch}, {stride, capacity * stride}, lines});
  };
  const auto count = [](std::int64_t n) { return static_cast<int>(n); };
  const std::int64_t tiles = blocks_for(s.seq_q, Kernel::kRows);
  launch(context, tiles * s.batch * s.heads,
         Kernel{.visibility = Visibility(s, optional<std::int32_t>(context, a.first_key)),
                .queries = map(a.q, s.heads * kHeadDim, s.seq_q, s.seq_q, a.q_stride, Kernel::kRows),
                .keys = map(a.k, s.kv_heads * kHeadDim, s.seq_k, s.capacity_k, a.k_stride, Kernel::kKeys),
                .values = map(a.v, s.kv_heads * kValueDim, s.seq_k, s.capacity_k, a.v_stride, kPanelLine),
                .sinks = optional<BFloat16>(context, a.sinks),
                .out = context.data<BFloat16>(a.out),
                .lse = optional<float>(context, a.lse),
                .batch = count(s.batch),
                .heads = count(s.heads),
                .group = count(s.heads / s.kv_heads),
                .tiles = count(tiles),
                .scale = s.scale,
                .unless_zero = unless_zero},
         Kernel::kSharedBytes);
}

// Whether the GPU has warpgroups (has_warpgroups), and all rows of these begin at multiples of 16 bytes.
bool whole_lines(Context& context, std::initializer_list<const Tensor*> tensors,
                 std::initializer_list<std::int64_t> strides) {
  if (!has_warpgroups(context)) return false;
  for (const std::int64_t stride : strides) {
    if (stride % kVector<BFloat16> != 0) return false;
  }
  for (const Tensor* tensor : tensors) {
    if (reinterpret_cast<std::uintptr_t>(context.data<std::byte>(*tensor)) % 16 != 0) return false;
  }
  return true;
}

bool forward_by_warpgroups(Context& context, const AttentionForward& a, const std::int32_t* unless_zero) {
  const AttentionShape& s = a.shape;
  // The copy engine knows no empty tensors.
  if (a.q.dtype != DType::kBF16 || s.batch == 0 || s.seq_q == 0 || s.seq_k == 0 ||
      !whole_lines(context, {&a.q, &a.k, &a.v, &a.out}, {a.q_stride, a.k_stride, a.v_stride})) {
    return false;
  }
  if (s.head_dim == 64 && s.value_dim == 64) {
    attend_by_warpgroups<64, 64>(context, a, unless_zero);
  } else if (s.head_dim == 128 && s.value_dim == 128) {
    attend_by_warpgroups<128, 128>(context, a, unless_zero);
  } else if (s.head_dim == 192 && s.value_dim == 128) {
    attend_by_warpgroups<192, 128>(context, a, unless_zero);
  } else {
    return false;
  }
  return true;
}

void forward(Context& context, const AttentionForward& a) {
  const LeftToDo left = attention_by_library(context, a, 0);
  if (!left.all && !left.unless_zero) return;
  if (forward_by_warpgroups(context, a, left.unless_zero)) return;
  with_float_type(a.q.dtype, [&](auto tag) {
    using T = decltype(tag);
    using Tiles = AttentionTiles<T>;
    const AttentionShape& s = a.shape;
    const std::int64_t tiles = blocks_for(s.seq_q, Tiles::kRows),
                       chunks = blocks_for(s.value_dim, Tiles::kWide);
    launch(context, tiles * s.batch * s.heads * chunks,
           Forward<T>{Visibility(s, optional<std::int32_t>(context, a.first_key)),
                      context.data<T>(a.q),
                      context.data<T>(a.k),
                      context.data<T>(a.v),
                      optional<T>(context, a.sinks),
                      context.data<T>(a.out),
                      optional<float>(context, a.lse),
                      a.q_stride,
                      a.k_stride,
                      a.v_stride,
                      s.batch,
                      s.capacity_k,
                      s.heads,
                      s.heads / s.kv_heads,
                      s.head_dim,
                      s.value_dim,
                      tiles,
                      chunks,
                      s.scale,
                      left.unless_zero},
           sizeof(typename Tiles::Memory));
  });
}

// ---- Over pages ---------------------------------------------------------------------------------

// Blocks for the most tiles of queries there can be; those that a step does not have return at once.
template <class T>
struct PagedForward {
  using Tiles = AttentionTiles<T>;
  static constexpr int kThreads = Tiles::kThreads;
  Forward<T> forward;
  Pages pages;
  std::int64_t tokens;

  PRIMUS_DEVICE void operator()() const {
    auto& m = *reinterpret_cast<typename Tiles::Memory*>(dynamic_shared());
    const Forward<T>& f = forward;
    const std::int64_t chunk = block() % f.chunks, head = block() / f.chunks % f.heads;
    const std::int64_t sequence = block() / f.chunks / f.heads % (pages.batch + 1);
    const std::int64_t row = block() / f.chunks / f.heads / (pages.batch + 1) * Tiles::kRows;
    const std::int64_t first = pages.starts[sequence];
    if (sequence == pages.batch) return clear(first + row, head, chunk);
    Visibility visibility = f.visibility;
    visibility.seq_q = pages.starts[sequence + 1] - first;
    if (row >= visibility.seq_q) return;
    visibility.seq_k = pages.lengths[sequence];
    visibility.q_first = visibility.seq_k - visibility.seq_q;
    const std::int32_t* table = pages.table + sequence * pages.blocks;
    f.run(m, visibility,
          {f.q + first * f.q_stride + head * f.head_dim, f.q_stride, visibility.seq_q, f.head_dim},
          PagedRows<T>{f.k + head / f.group * f.head_dim, f.k_stride, visibility.seq_k, f.head_dim, table,
                       pages.page_bits},
          PagedRows<T>{f.v + head / f.group * f.value_dim, f.v_stride, visibility.seq_k, f.value_dim, table,
                       pages.page_bits},
          sequence, head, row, chunk, f.out + first * f.heads * f.value_dim, nullptr);
  }

  // Rows that belong to no sequence.
  PRIMUS_DEVICE void clear(std::int64_t first, std::int64_t head, std::int64_t chunk) const {
    const std::int64_t begin = chunk * Tiles::kWide, width = smaller(forward.value_dim - begin, Tiles::kWide);
    for (std::int64_t i = thread(); i < Tiles::kRows * width; i += kThreads) {
      const std::int64_t row = first + i / width;
      if (row >= tokens) return;
      forward.out[(row * forward.heads + head) * forward.value_dim + begin + i % width] = T{};
    }
  }
};

std::int64_t paged_workspace(Context&, const PagedAttention& a) { return paged_decode_workspace(a); }

void paged_attention(Context& context, const PagedAttention& a) {
  if (paged_decode(context, a)) return;
  with_float_type(a.q.dtype, [&](auto tag) {
    using T = decltype(tag);
    using Tiles = AttentionTiles<T>;
    const AttentionShape s{.batch = a.sequences.batch(),
                           .seq_q = 0,  // per sequence, from the tables
                           .seq_k = 0,
                           .capacity_k = 0,
                           .heads = a.heads,
                           .kv_heads = a.kv_heads,
                           .head_dim = a.head_dim,
                           .value_dim = a.value_dim,
                           .scale = a.scale,
                           .causal = true,
                           .window = a.window,
                           .chunk = a.chunk};
    const std::int64_t tiles = blocks_for(a.tokens, Tiles::kRows),
                       chunks = blocks_for(s.value_dim, Tiles::kWide);
    const Forward<T> forward{Visibility(s, nullptr),
                             context.data<T>(a.q),
                             context.data<T>(a.k),
                             context.data<T>(a.v),
                             optional<T>(context, a.sinks),
                             context.data<T>(a.out),
                             nullptr,
                             a.q_stride,
                             a.k_stride,
                             a.v_stride,
                             s.batch,
                             0,
                             s.heads,
                             s.heads / s.kv_heads,
                             s.head_dim,
                             s.value_dim,
                             tiles,
                             chunks,
                             s.scale,
                             nullptr};
    launch(context, tiles * (s.batch + 1) * s.heads * chunks,
           PagedForward<T>{forward, Pages(context, a.sequences), a.tokens}, sizeof(typename Tiles::Memory));
  });
}

// ---- Parts of the keys --------------------------------------------------------------------------

// A warp for every token's head.
template <class T, class Part>
struct Merge {
  static constexpr int kThreads = 256;
  static constexpr int kWarps = kThreads / kWarp;
  T* out;
  float* lse;
  const Part* part;
  const float* part_lse;
  std::int64_t tokens, heads, value_dim;
  bool accumulate;

  PRIMUS_DEVICE void operator()() const {
    const std::int64_t item = block() * kWarps + warp();
    if (item >= tokens * heads) return;
    const std::int64_t statistic = item % heads * tokens + item / heads;
    const float mine = accumulate ? lse[statistic] : -infinity(), other = part_lse[statistic];
    const float most = ::fmaxf(mine, other);
    float a = 0, b = 1, merged = other;
    if (accumulate && most != -infinity()) {
      const float weight_a = ::expf(mine - most), weight_b = ::expf(other - most);
      a = weight_a / (weight_a + weight_b);
      b = weight_b / (weight_a + weight_b);
      merged = most + ::logf(weight_a + weight_b);
    }
    warp_barrier();  // everybody has read the sum
    if (lane() == 0) lse[statistic] = merged;
    for (std::int64_t i = item * value_dim + lane(); i < (item + 1) * value_dim; i += kWarp) {
      const float value = b * to_float(part[i]);
      out[i] = from_float<T>(accumulate ? multiply_add(a, to_float(out[i]), value) : value);
    }
  }
};

void merge(Context& context, const AttentionMerge& a) {
  with_float_type(a.out.dtype, [&](auto out_tag) {
    with_float_type(a.part.dtype, [&](auto part_tag) {
      using T = decltype(out_tag);
      using Part = decltype(part_tag);
      const std::int64_t tokens = a.out.rows();
      launch(context, blocks_for(tokens * a.heads, Merge<T, Part>::kWarps),
             Merge<T, Part>{context.data<T>(a.out), context.data<float>(a.lse), context.data<Part>(a.part),
                            context.data<float>(a.part_lse), tokens, a.heads, a.value_dim, a.accumulate});
    });
  });
}

// ---- Backward -----------------------------------------------------------------------------------

// delta[head, token] = out · d_out: a warp for each.
template <class T>
struct Deltas {
  static constexpr int kThreads = 256;
  static constexpr int kWarps = kThreads / kWarp;
  const T *out, *d_out;
  float* delta;
  std::int64_t tokens, heads, value_dim;
  const std::int32_t* unless_zero;

  PRIMUS_DEVICE void operator()() const {
    if (unless_zero && *unless_zero == 0) return;
    const std::int64_t item = block() * kWarps + warp();
    if (item >= tokens * heads) return;
    const std::int64_t at = item * value_dim;
    float sum = 0;
    for (std::int64_t i = lane(); i < value_dim; i += kWarp) {
      sum = multiply_add(to_float(out[at + i]), to_float(d_out[at + i]), sum);
    }
    sum = warp_reduce(sum);
    if (lane() == 0) delta[item % heads * tokens + item / heads] = sum;
  }
};

// What both backward kernels know.
template <class T>
struct Backward {
  using Tiles = AttentionTiles<T>;
  static constexpr int kThreads = Tiles::kThreads, kSlots = Accumulator::kRows;
  Visibility visibility;
  const T *q, *k, *v, *d_out;
  const float *lse, *delta;
  std::int64_t q_stride, k_stride, v_stride;
  std::int64_t batch, capacity_k, heads, group, head_dim, value_dim;
  float scale;
  const std::int32_t* unless_zero;

  PRIMUS_DEVICE bool nothing_to_do() const { return unless_zero && *unless_zero == 0; }
  PRIMUS_DEVICE HeadRows<T> queries(std::int64_t sequence, std::int64_t head) const {
    return {q + sequence * visibility.seq_q * q_stride + head * head_dim, q_stride, visibility.seq_q,
            head_dim};
  }
  PRIMUS_DEVICE HeadRows<T> keys(std::int64_t sequence, std::int64_t kv_head) const {
    return {k + sequence * capacity_k * k_stride + kv_head * head_dim, k_stride, visibility.seq_k, head_dim};
  }
  PRIMUS_DEVICE HeadRows<T> values(std::int64_t sequence, std::int64_t kv_head) const {
    return {v + sequence * capacity_k * v_stride + kv_head * value_dim, v_stride, visibility.seq_k,
            value_dim};
  }
  PRIMUS_DEVICE HeadRows<T> d_outs(std::int64_t sequence, std::int64_t head) const {
    const std::int64_t stride = heads * value_dim;
    return {d_out + sequence * visibility.seq_q * stride + head * value_dim, stride, visibility.seq_q,
            value_dim};
  }
  // Index of a query in lse and delta.
  PRIMUS_DEVICE std::int64_t place(std::int64_t sequence, std::int64_t head, std::int64_t i) const {
    return (head * batch + sequence) * visibility.seq_q + i;
  }
  // Of a query that sees no key at all the sum is of nothing; it has no weights either.
  PRIMUS_DEVICE float log_sum(std::int64_t place) const {
    return lse[place] == -infinity() ? 0.0F : lse[place];
  }
  PRIMUS_DEVICE float weight(float score, float log_sum) const {
    return exp2_flushed(multiply_add(score, scale * kLog2E, -log_sum * kLog2E));
  }
};

// Rows are keys; a block owns a column chunk of their d_v or d_k, and sums over all queries that see them.
template <class T, class Gradient>
struct BackwardKeys : Backward<T> {
  using Base = Backward<T>;
  using Base::batch, Base::capacity_k, Base::group, Base::kSlots, Base::scale, Base::visibility;
  using typename Base::Tiles;
  Gradient *d_k, *d_v;
  std::int64_t d_k_stride, d_v_stride, kv_heads, value_chunks, chunks;
  bool accumulate;

  struct Memory {
    typename Tiles::Memory tiles;
    float lse[Tiles::kCols], delta[Tiles::kCols];
    std::int32_t begin[Tiles::kCols], end[Tiles::kCols];
  };

  PRIMUS_DEVICE void operator()() const {
    if (this->nothing_to_do()) return;
    Memory& m = *reinterpret_cast<Memory*>(dynamic_shared());
    const std::int64_t chunk = block() % chunks, kv_head = block() / chunks % kv_heads;
    const std::int64_t sequence = block() / chunks / kv_heads % batch;
    const std::int64_t row = block() / chunks / kv_heads / batch * Tiles::kRows;
    const bool for_values = chunk < value_chunks;
    const std::int64_t column = (for_values ? chunk : chunk - value_chunks) * Tiles::kWide;
    const auto keys = this->keys(sequence, kv_head), values = this->values(sequence, kv_head);
    const std::int64_t last = smaller(row + Tiles::kRows, visibility.seq_k) - 1;
    const std::int64_t first_query = visibility.first_to_end_behind(sequence, row);
    const std::int64_t end_query = visibility.first_to_begin_behind(sequence, last);
    bool keys_loaded = false, values_loaded = false;
    typename Tiles::Sums sums;
    Tiles::clear(sums);
    for (std::int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      const auto queries = this->queries(sequence, head), d_outs = this->d_outs(sequence, head);
      for (std::int64_t col = first_query / Tiles::kCols * Tiles::kCols; col < end_query;
           col += Tiles::kCols) {
        typename Tiles::Scores scores;
        Tiles::multiply_rows(m.tiles, scores, 0, keys, row, queries, col, keys_loaded, [&] {
          fetch_queries(m, sequence, head, col);
          Tiles::fetch(m.tiles.wide, for_values ? d_outs : queries, col, column);
        });
        mask(m, scores, row);
        if (!for_values) {
          typename Tiles::Scores d_weights;
          Tiles::multiply_rows(m.tiles, d_weights, 1, values, row, d_outs, col, values_loaded, [] {});
          if (Tiles::kLefts == 1) keys_loaded = false;  // they take turns in one place
          PRIMUS_UNROLL
          for (int j = 0; j < Tiles::kCols / kTile; ++j) {
            PRIMUS_UNROLL
            for (int i = 0; i < kPerLane; ++i) {
              scores[j].at[i] *= (d_weights[j].at[i] - m.delta[j * kTile + Accumulator::col(i)]) * scale;
            }
          }
        }
        Tiles::add_weighted(m.tiles, sums, scores, column, for_values ? this->value_dim : this->head_dim);
      }
    }
    float factor[kSlots];
    PRIMUS_UNROLL
    for (float& f : factor) f = 1;
    if (for_values) {
      Tiles::store(sums, d_v + sequence * capacity_k * d_v_stride + kv_head * this->value_dim, d_v_stride,
                   row, column, visibility.seq_k, this->value_dim, factor, accumulate);
    } else {
      Tiles::store(sums, d_k + sequence * capacity_k * d_k_stride + kv_head * this->head_dim, d_k_stride, row,
                   column, visibility.seq_k, this->head_dim, factor, accumulate);
    }
  }

  // What the queries of a step saw, and their sums. Those beyond the last one saw nothing.
  PRIMUS_DEVICE void fetch_queries(Memory& m, std::int64_t sequence, std::int64_t head,
                                   std::int64_t col) const {
    for (int c = thread(); c < Tiles::kCols; c += Base::kThreads) {
      const std::int64_t i = col + c;
      const bool there = i < visibility.seq_q;
      const KeyRange seen = there ? visibility.keys(sequence, i) : KeyRange{0, 0};
      m.begin[c] = static_cast<std::int32_t>(seen.begin);
      m.end[c] = static_cast<std::int32_t>(seen.end);
      m.lse[c] = there ? this->log_sum(this->place(sequence, head, i)) : 0.0F;
      m.delta[c] = there ? this->delta[this->place(sequence, head, i)] : 0.0F;
    }
  }

  // Scores become weights: those of the forward pass, zero where the query does not see the key.
  PRIMUS_DEVICE void mask(const Memory& m, typename Tiles::Scores& scores, std::int64_t row) const {
    PRIMUS_UNROLL
    for (int j = 0; j < Tiles::kCols / kTile; ++j) {
      PRIMUS_UNROLL
      for (int i = 0; i < kPerLane; ++i) {
        const int key = static_cast<int>(row) + warp() * kTile + Accumulator::row(i);
        const int c = j * kTile + Accumulator::col(i);
        float& score = scores[j].at[i];
        score = key >= m.begin[c] && key < m.end[c] ? this->weight(score, m.lse[c]) : 0.0F;
      }
    }
  }
};

// Rows are queries; a block owns a column chunk of their d_q.
template <class T, class Gradient>
struct BackwardQueries : Backward<T> {
  using Base = Backward<T>;
  using Base::batch, Base::group, Base::heads, Base::kSlots, Base::scale, Base::visibility;
  using typename Base::Tiles;
  Gradient* d_q;
  std::int64_t d_q_stride, tiles, chunks;
  bool accumulate;

  PRIMUS_DEVICE void operator()() const {
    if (this->nothing_to_do()) return;
    auto& m = *reinterpret_cast<typename Tiles::Memory*>(dynamic_shared());
    const std::int64_t chunk = block() % chunks, head = block() / chunks % heads;
    const std::int64_t sequence = block() / chunks / heads % batch;
    const std::int64_t row = (tiles - 1 - block() / chunks / heads / batch) * Tiles::kRows;
    const auto queries = this->queries(sequence, head), d_outs = this->d_outs(sequence, head);
    const auto keys = this->keys(sequence, head / group), values = this->values(sequence, head / group);
    int begin[kSlots], end[kSlots];
    float log_sums[kSlots], deltas[kSlots];
    PRIMUS_UNROLL
    for (int s = 0; s < kSlots; ++s) {
      const std::int64_t i = row + warp() * kTile + Accumulator::row_of_slot(s);
      const bool there = i < visibility.seq_q;
      const KeyRange seen = there ? visibility.keys(sequence, i) : KeyRange{0, 0};
      begin[s] = static_cast<int>(seen.begin);
      end[s] = static_cast<int>(seen.end);
      log_sums[s] = there ? this->log_sum(this->place(sequence, head, i)) : 0.0F;
      deltas[s] = there ? this->delta[this->place(sequence, head, i)] : 0.0F;
    }
    bool queries_loaded = false, d_outs_loaded = false;
    typename Tiles::Sums sums;
    Tiles::clear(sums);
    const std::int64_t end_key =
        visibility.keys(sequence, smaller(row + Tiles::kRows, visibility.seq_q) - 1).end;
    for (std::int64_t col = visibility.keys(sequence, row).begin / Tiles::kCols * Tiles::kCols; col < end_key;
         col += Tiles::kCols) {
      typename Tiles::Scores scores, d_weights;
      Tiles::multiply_rows(m, scores, 0, queries, row, keys, col, queries_loaded,
                           [&] { Tiles::fetch(m.wide, keys, col, chunk * Tiles::kWide); });
      Tiles::multiply_rows(m, d_weights, 1, d_outs, row, values, col, d_outs_loaded, [] {});
      if (Tiles::kLefts == 1) queries_loaded = false;  // they take turns in one place
      PRIMUS_UNROLL
      for (int j = 0; j < Tiles::kCols / kTile; ++j) {
        PRIMUS_UNROLL
        for (int i = 0; i < kPerLane; ++i) {
          const int s = Accumulator::slot(i);
          const int key = static_cast<int>(col) + j * kTile + Accumulator::col(i);
          const bool visible = key >= begin[s] && key < end[s];
          const float p = visible ? this->weight(scores[j].at[i], log_sums[s]) : 0.0F;
          scores[j].at[i] = p * (d_weights[j].at[i] - deltas[s]) * scale;
        }
      }
      Tiles::add_weighted(m, sums, scores, chunk * Tiles::kWide, this->head_dim);
    }

    float factor[kSlots];
    PRIMUS_UNROLL
    for (float& f : factor) f = 1;
    Tiles::store(sums, d_q + sequence * visibility.seq_q * d_q_stride + head * this->head_dim, d_q_stride,
                 row, chunk * Tiles::kWide, visibility.seq_q, this->head_dim, factor, accumulate);
  }
};

// Of our own kernels: delta.
std::int64_t own_workspace(const AttentionBackward& a) {
  return a.shape.heads * a.shape.batch * a.shape.seq_q * static_cast<std::int64_t>(sizeof(float));
}

std::int64_t backward_workspace(Context& context, const AttentionBackward& a) {
  return attention_library_workspace(context, a, own_workspace(a));
}

template <class Gradient, int kHeadDim>
void gradients_by_warpgroups(Context& context, const AttentionBackward& a, const float* delta,
                             const std::int32_t* unless_zero) {
  const AttentionShape& s = a.shape;
  const std::int64_t q_width = s.heads * kHeadDim, kv_width = s.kv_heads * kHeadDim;
  const auto map = [&](const Tensor& x, std::int64_t cols, std::int64_t rows, std::int64_t capacity,
                       std::int64_t stride) {
    return box_map(
        {context.data<BFloat16>(x), {cols, rows, s.batch}, {stride, capacity * stride}, kPanelLine});
  };
  const auto count = [](std::int64_t n) { return static_cast<int>(n); };
  const auto run = [&]<bool kOfKeys>() {
    using Kernel = BackwardWarpgroups<Gradient, kHeadDim, kOfKeys>;
    const std::int64_t tiles = blocks_for(kOfKeys ? s.seq_k : s.seq_q, Kernel::kRows);
    launch(context, tiles * s.batch * (kOfKeys ? s.kv_heads : s.heads),
           Kernel{.visibility = Visibility(s, optional<std::int32_t>(context, a.first_key)),
                  .q = map(a.q, q_width, s.seq_q, s.seq_q, a.q_stride),
                  .k = map(a.k, kv_width, s.seq_k, s.capacity_k, a.k_stride),
                  .v = map(a.v, kv_width, s.seq_k, s.capacity_k, a.v_stride),
                  .d_out = map(a.d_out, q_width, s.seq_q, s.seq_q, q_width),
                  .lse = context.data<float>(a.lse),
                  .delta = delta,
                  .d_first = context.data<Gradient>(kOfKeys ? a.d_k : a.d_q),
                  .d_second = kOfKeys ? context.data<Gradient>(a.d_v) : nullptr,
                  .d_first_stride = kOfKeys ? a.d_k_stride : a.d_q_stride,
                  .d_second_stride = a.d_v_stride,
                  .batch = count(s.batch),
                  .heads = count(s.heads),
                  .group = count(s.heads / s.kv_heads),
                  .tiles = count(tiles),
                  .kept_capacity = kOfKeys ? s.capacity_k : s.seq_q,
                  .scale = s.scale,
                  .accumulate = kOfKeys ? a.accumulate_d_kv : a.accumulate_d_q,
                  .unless_zero = unless_zero},
           Kernel::kSharedBytes);
  };
  run.template operator()<true>();
  run.template operator()<false>();
}

// Where the GPU has warpgroups, heads are of 64 or 128, and rows begin at multiples of 16 bytes.
template <class Gradient>
bool backward_by_warpgroups(Context& context, const AttentionBackward& a, const float* delta,
                            const std::int32_t* unless_zero) {
  const AttentionShape& s = a.shape;
  if (!whole_lines(context, {&a.q, &a.k, &a.v, &a.d_out, &a.d_q, &a.d_k, &a.d_v},
                   {a.q_stride, a.k_stride, a.v_stride, a.d_q_stride, a.d_k_stride, a.d_v_stride}) ||
      s.batch == 0 || s.seq_q == 0 || s.seq_k == 0 || s.head_dim != s.value_dim) {
    return false;
  }
  if (s.head_dim == 64) {
    gradients_by_warpgroups<Gradient, 64>(context, a, delta, unless_zero);
  } else if (s.head_dim == 128) {
    gradients_by_warpgroups<Gradient, 128>(context, a, delta, unless_zero);
  } else {
    return false;
  }
  return true;
}

template <class T, class Gradient>
void gradients(Context& context, const AttentionBackward& a, const Backward<T>& both) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    if (backward_by_warpgroups<Gradient>(context, a, both.delta, both.unless_zero)) return;
  }
  using Tiles = AttentionTiles<T>;
  using Keys = BackwardKeys<T, Gradient>;
  const AttentionShape& s = a.shape;
  const std::int64_t key_chunks = blocks_for(s.head_dim, Tiles::kWide);
  const std::int64_t value_chunks = blocks_for(s.value_dim, Tiles::kWide), chunks = key_chunks + value_chunks;
  launch(context, blocks_for(s.seq_k, Tiles::kRows) * s.batch * s.kv_heads * chunks,
         Keys{both, context.data<Gradient>(a.d_k), context.data<Gradient>(a.d_v), a.d_k_stride, a.d_v_stride,
              s.kv_heads, value_chunks, chunks, a.accumulate_d_kv},
         sizeof(typename Keys::Memory));
  const std::int64_t tiles = blocks_for(s.seq_q, Tiles::kRows);
  launch(context, tiles * s.batch * s.heads * key_chunks,
         BackwardQueries<T, Gradient>{both, context.data<Gradient>(a.d_q), a.d_q_stride, tiles, key_chunks,
                                      a.accumulate_d_q},
         sizeof(typename Tiles::Memory));
}

void backward(Context& context, const AttentionBackward& a) {
  const LeftToDo left = attention_by_library(context, a, own_workspace(a));
  if (!left.all && !left.unless_zero) return;
  with_float_type(a.q.dtype, [&](auto tag) {
    using T = decltype(tag);
    const AttentionShape& s = a.shape;
    auto* delta = context.data<float>(a.workspace);
    const std::int64_t tokens = s.batch * s.seq_q;
    launch(context, blocks_for(tokens * s.heads, Deltas<T>::kWarps),
           Deltas<T>{context.data<T>(a.out), context.data<T>(a.d_out), delta, tokens, s.heads, s.value_dim,
                     left.unless_zero});
    const Backward<T> both{Visibility(s, optional<std::int32_t>(context, a.first_key)),
                           context.data<T>(a.q),
                           context.data<T>(a.k),
                           context.data<T>(a.v),
                           context.data<T>(a.d_out),
                           context.data<float>(a.lse),
                           delta,
                           a.q_stride,
                           a.k_stride,
                           a.v_stride,
                           s.batch,
                           s.capacity_k,
                           s.heads,
                           s.heads / s.kv_heads,
                           s.head_dim,
                           s.value_dim,
                           s.scale,
                           left.unless_zero};
    if (a.d_q.dtype == a.q.dtype) {
      gradients<T, T>(context, a, both);
    } else {
      gradients<T, float>(context, a, both);
    }
  });
}

// A block for every head; its warps share the tokens.
template <class T>
struct BackwardSinks {
  static constexpr int kThreads = 256;
  static constexpr int kWarps = kThreads / kWarp;
  const T *sinks, *out, *d_out;
  const float* lse;
  float* d_sinks;
  std::int64_t tokens, heads, value_dim;
  bool accumulate;

  PRIMUS_DEVICE void operator()() const {
    const std::int64_t head = block();
    const float sink = to_float(sinks[head]);
    double sum = 0;
    for (std::int64_t token = warp(); token < tokens; token += kWarps) {
      const std::int64_t at = (token * heads + head) * value_dim;
      float part = 0;
      for (std::int64_t i = lane(); i < value_dim; i += kWarp) {
        part = multiply_add(to_float(out[at + i]), to_float(d_out[at + i]), part);
      }
      part = warp_reduce(part);
      if (lane() == 0) sum -= static_cast<double>(::expf(sink - lse[head * tokens + token]) * part);
    }
    sum = block_reduce<kThreads>(sum);
    if (thread() == 0)
      d_sinks[head] = static_cast<float>(accumulate ? static_cast<double>(d_sinks[head]) + sum : sum);
  }
};

void backward_sinks(Context& context, const AttentionBackwardSinks& a) {
  with_float_type(a.out.dtype, [&](auto tag) {
    using T = decltype(tag);
    launch(context, a.heads,
           BackwardSinks<T>{context.data<T>(a.sinks), context.data<T>(a.out), context.data<T>(a.d_out),
                            context.data<float>(a.lse), context.data<float>(a.d_sinks), a.out.rows(), a.heads,
                            a.value_dim, a.accumulate});
  });
}

}  // namespace

void register_attention(KernelTable& table) {
  table.add<AttentionForward, Context, &forward, &forward_workspace>();
  table.add<AttentionBackward, Context, &backward, &backward_workspace>();
  table.add<AttentionBackwardSinks, Context, &backward_sinks>();
  table.add<AttentionMerge, Context, &merge>();
  table.add<PagedAppend, Context, &paged_append>();
  table.add<PagedAttention, Context, &paged_attention, &paged_workspace>();
}

}  // namespace primus::turbo::PRIMUS_GPU
