// Forward attention: the tile loop of FlashAttention-2 (Dao 2023). The loop over tiles of keys keeps a
// running maximum and sum for each query of a tile. When the maximum rises, earlier sums are scaled down.
#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>

#include "turbo/attention/cpu_attention.h"
#include "turbo/attention/cpu_plan.h"
#include "turbo/check.h"

namespace primus::turbo::PRIMUS_CPU_ISA {
namespace {

// `Keys` is Operand, or PagedOperand for a paged cache.
template <class Tiles, template <class> class Keys>
struct ForwardOperands {
  using T = typename Tiles::Source;
  Operand<const T> q;
  Keys<const T> k, v;
  Operand<T> out;
  float* lse;  // [heads, lse_rows] or null
  std::int64_t lse_rows;
  const std::int32_t* first_key;  // [batch * seq_q] or null
  const T* sinks;                 // [heads] or null
};

// The packed keys and values of one (sequence, key/value head).
template <class Tiles>
class ForwardKeys {
 public:
  using Element = typename Tiles::Element;

  ForwardKeys(Carver& carver, const Tiles& engine, const AttentionShape& shape)
      : tiles_(engine),
        s(shape),
        keys_(carver.take<Element>(tiles(s.seq_k) * engine.left_elements(s.head_dim))),
        values_(carver.take<Element>(tiles(s.seq_k) * engine.left_elements(s.value_dim))) {}

  Element* keys(std::int64_t tile) const { return keys_ + tile * tiles_.left_elements(s.head_dim); }
  Element* values(std::int64_t tile) const { return values_ + tile * tiles_.left_elements(s.value_dim); }

  template <class Operands>
  void pack(const Operands& x, std::int64_t sequence, std::int64_t kv_head, std::int64_t tile) const {
    const std::int64_t first = tile * kTile, rows = std::min(kTile, s.seq_k - first);
    tiles_.pack_left(x.k.at(sequence, kv_head, first), x.k.stride, rows, s.head_dim, keys(tile));
    tiles_.pack_left_transposed(x.v.at(sequence, kv_head, first), x.v.stride, rows, s.value_dim,
                                values(tile));
  }

 private:
  const Tiles& tiles_;
  const AttentionShape& s;
  Element *keys_, *values_;
};

// The work of one thread, which processes one tile of queries at a time.
template <class Tiles>
class Forward {
 public:
  using Element = typename Tiles::Element;

  Forward(Carver& carver, const Tiles& engine, const AttentionShape& shape)
      : tiles_(engine),
        s(shape),
        queries_(carver.take<Element>(engine.right_elements(s.head_dim))),
        scores_(carver.take<float>(kTile * kTile)),
        probabilities_(Tiles::kScoresAreLeftAndRight ? reinterpret_cast<Element*>(scores_)
                                                     : carver.take<Element>(kTile * kTile)),
        out_(carver.take<float>(engine.transposed_rows(s.value_dim) * kTile)),
        out_rows_(carver.take<float>(kTile * s.value_dim)),
        max_(carver.take<float>(kTile)),
        sum_(carver.take<float>(kTile)),
        correction_(carver.take<float>(kTile)) {}

  template <class Operands>
  void run(const Operands& x, const ForwardKeys<Tiles>& keys, std::int64_t sequence, std::int64_t head,
           std::int64_t tile) const {
    const Visibility visibility(s, x.first_key, sequence);
    const Queries queries = visibility.tile(tile);
    tiles_.pack_right(x.q.at(sequence, head, queries.begin), x.q.stride, queries.size(), s.head_dim,
                      queries_);
    std::fill_n(out_, tiles_.transposed_rows(s.value_dim) * kTile, 0.0F);
    // The softmax starts with the sink as its only element. Without sinks the initial maximum is finite, so
    // that a query that sees no key of its first tile does not compute inf - inf.
    std::fill_n(sum_, kTile, x.sinks ? 1.0F : 0.0F);
    std::fill_n(max_, kTile, x.sinks ? to_float(x.sinks[head]) * kLog2E : -1e30F);
    for (std::int64_t key_tile = queries.first_key_tile(); key_tile < queries.end_key_tile(); ++key_tile) {
      for_each_strip(visibility, queries, key_tile, Tiles::lane_block(queries.size()), Tiles::kKeyBlock,
                     [&](const Strip& strip) {
                       tiles_.score(strip, s.head_dim, keys.keys(key_tile), queries_, scores_);
                       cap_scores(s, strip, scores_);
                       mask_scores(visibility, queries, key_tile, strip, scores_);
                       if (softmax(strip)) scale_out(strip);
                       tiles_.add_transposed(strip, s.value_dim, keys.values(key_tile), probabilities_, out_);
                     });
    }
    store(x, sequence, head, queries);
  }

 private:
  // Turns scores into exponentials relative to the running maxima, and updates maxima and sums. Exponentials
  // are powers of 2: max_ is the maximum of scale * score / ln 2. Returns whether a maximum has risen.
  bool softmax(const Strip& strip) const {
    const float scale = score_scale(s) * kLog2E;
    bool risen = false;
    for (std::int64_t lane = strip.lanes.begin; lane < strip.lanes.end; lane += kGroup) {
      float max[kGroup], sum[kGroup] = {};
      strip_max(strip.keys, scores_ + lane, max);
      float rises = 0;
      PRIMUS_SIMD(reduction(+ : rises))
      for (int i = 0; i < kGroup; ++i) {
        const float before = max_[lane + i];
        max[i] = max[i] * scale > before ? max[i] * scale : before;
        correction_[lane + i] = exp2_flushed(before - max[i]);
        rises += max[i] > before ? 1.0F : 0.0F;
      }
      for (std::int64_t key = strip.keys.begin; key < strip.keys.end; key += 2) {
        const float *even_row = scores_ + key * kTile + lane, *odd_row = even_row + kTile;
        float even[kGroup], odd[kGroup];
        PRIMUS_SIMD()
        for (int i = 0; i < kGroup; ++i) {
          even[i] = exp2_flushed(multiply_add(even_row[i], scale, -max[i]));
          odd[i] = exp2_flushed(multiply_add(odd_row[i], scale, -max[i]));
          sum[i] += even[i] + odd[i];
        }
        tiles_.put_right(key, lane, even, odd, probabilities_);
      }
      PRIMUS_SIMD()
      for (int i = 0; i < kGroup; ++i) {
        sum_[lane + i] = multiply_add(sum_[lane + i], correction_[lane + i], sum[i]);
        max_[lane + i] = max[i];
      }
      risen |= rises > 0;
    }
    return risen;
  }

  // Computes four independent maxima, because the latency of the instruction would limit a single chain of
  // maxima.
  static void strip_max(Range keys, const float* scores, float* max) {
    constexpr int kChains = 4;
    float chains[kChains][kGroup];
    for (auto& chain : chains) std::fill_n(chain, kGroup, -std::numeric_limits<float>::infinity());
    std::int64_t key = keys.begin;
    for (; key + kChains <= keys.end; key += kChains) {
      for (int chain = 0; chain < kChains; ++chain) raise(scores + (key + chain) * kTile, chains[chain]);
    }
    for (; key < keys.end; ++key) raise(scores + key * kTile, chains[0]);
    for (int chain = 1; chain < kChains; ++chain) raise(chains[chain], chains[0]);
    std::copy_n(chains[0], kGroup, max);
  }
  PRIMUS_INLINE static void raise(const float* by, float* max) {
    PRIMUS_SIMD()
    for (int i = 0; i < kGroup; ++i) max[i] = by[i] > max[i] ? by[i] : max[i];
  }

  void scale_out(const Strip& strip) const {
    for (std::int64_t c = 0; c < s.value_dim; ++c) {
      float* row = out_ + c * kTile;
      PRIMUS_SIMD()
      for (std::int64_t lane = strip.lanes.begin; lane < strip.lanes.end; ++lane)
        row[lane] *= correction_[lane];
    }
  }

  template <class Operands>
  void store(const Operands& x, std::int64_t sequence, std::int64_t head, const Queries& queries) const {
    float inverse[kTile];
    for (std::int64_t i = 0; i < kTile; ++i) inverse[i] = sum_[i] == 0 ? 0.0F : 1.0F / sum_[i];
    for (std::int64_t c = 0; c < s.value_dim; ++c) {
      float* row = out_ + c * kTile;
      PRIMUS_SIMD()
      for (std::int64_t i = 0; i < kTile; ++i) row[i] *= inverse[i];
    }
    transpose(out_, kTile, s.value_dim, queries.size(), out_rows_, s.value_dim);
    store_rows(out_rows_, s.value_dim, queries.size(), s.value_dim, x.out.at(sequence, head, queries.begin),
               x.out.stride);
    if (!x.lse) return;
    float* lse = x.lse + head * x.lse_rows + sequence * s.seq_q + queries.begin;
    PRIMUS_SIMD()
    for (std::int64_t i = 0; i < queries.size(); ++i) lse[i] = log_sum_exp2(max_[i], sum_[i]);
  }

  const Tiles& tiles_;
  const AttentionShape& s;
  Element* queries_;
  float* scores_;           // [key][query]
  Element* probabilities_;  // not yet divided by the sum
  float* out_;              // [value_dim][query], not yet divided by the sum
  float* out_rows_;
  float *max_, *sum_, *correction_;  // one value per query
};

template <class Tiles>
using ForwardPlan = Plan<Tiles, Forward<Tiles>, ForwardKeys<Tiles>>;

template <class Tiles, class Operands>
void run_forward(ThreadPool& pool, const Tiles& engine, const AttentionShape& s, const Operands& x,
                 std::byte* workspace) {
  using Index = std::int64_t;
  const ForwardPlan<Tiles> plan(engine, s, pool.size(), workspace);
  const Index query_tiles = tiles(s.seq_q), group = s.heads / s.kv_heads;
  const Visibility visibility(s, nullptr, 0);
  const Index first_key_tile = visibility.tile(0).first_key_tile(),
              end_key_tile = visibility.tile(query_tiles - 1).end_key_tile();
  if (plan.whole_heads()) {
    plan.for_each(pool, s.kv_heads, 1,
                  [&](const Forward<Tiles>& worker, int thread, Index sequence, Index kv_head, Index) {
                    const ForwardKeys<Tiles> keys = plan.keys(thread);
                    for (Index t = first_key_tile; t < end_key_tile; ++t) keys.pack(x, sequence, kv_head, t);
                    for (Index head = kv_head * group; head < (kv_head + 1) * group; ++head) {
                      for (Index t = 0; t < query_tiles; ++t) worker.run(x, keys, sequence, head, t);
                    }
                  });
    return;
  }
  plan.for_each(
      pool, s.kv_heads, end_key_tile - first_key_tile,
      [&](const Forward<Tiles>&, int, Index sequence, Index kv_head, Index tile) {
        plan.keys(sequence * s.kv_heads + kv_head).pack(x, sequence, kv_head, first_key_tile + tile);
      });
  // The last tiles of queries see the most keys, so they are processed first. Tiles with few keys then occupy
  // the threads that finish early.
  plan.for_each(pool, s.heads, query_tiles,
                [&](const Forward<Tiles>& worker, int, Index sequence, Index head, Index tile) {
                  worker.run(x, plan.keys(sequence * s.kv_heads + head / group), sequence, head,
                             query_tiles - 1 - tile);
                });
}

// Returns the bytes that a thread needs in run_sequences() for sequences up to shape `s`.
template <class Tiles>
std::int64_t sequence_bytes(const Tiles& engine, const AttentionShape& s) {
  Carver carver(nullptr);
  Forward<Tiles>(carver, engine, s);
  ForwardKeys<Tiles>(carver, engine, s);
  return carver.used();
}

// Processes many sequences concurrently: a work item is a (sequence, key/value head). sequence(b) returns the
// shape of sequence b, whose batch is 1, and its operands. `bytes` is the result of sequence_bytes().
template <class Tiles, class Sequence>
void run_sequences(ThreadPool& pool, const Tiles& engine, std::int64_t batch, std::int64_t kv_heads,
                   Sequence sequence, std::byte* workspace, std::int64_t bytes) {
  pool.parallel_for(batch * kv_heads, 1, [&](std::int64_t item, std::int64_t, int thread) {
    const auto [s, x] = sequence(item / kv_heads);
    if (s.seq_q == 0) return;
    const std::int64_t kv_head = item % kv_heads, group = s.heads / s.kv_heads, query_tiles = tiles(s.seq_q);
    Carver carver(workspace + thread * bytes);
    const Forward<Tiles> worker(carver, engine, s);
    const ForwardKeys<Tiles> keys(carver, engine, s);
    const Visibility visibility(s, nullptr, 0);
    engine.begin();
    const std::int64_t end_key_tile = visibility.tile(query_tiles - 1).end_key_tile();
    for (std::int64_t t = visibility.tile(0).first_key_tile(); t < end_key_tile; ++t)
      keys.pack(x, 0, kv_head, t);
    for (std::int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      for (std::int64_t t = 0; t < query_tiles; ++t) worker.run(x, keys, 0, head, t);
    }
    engine.end();
  });
}

// Returns whether a batch-invariant pass processes its sequences concurrently. The choice does not affect the
// result.
bool are_concurrent(const CpuContext& context, const PagedAttention& call) {
  return call.sequences.batch() * call.kv_heads >= 2 * static_cast<std::int64_t>(context.threads());
}

// Returns whether the call uses the kernel for decoding, which adds in another order than the tile loop.
bool uses_decode(const CpuContext& context, const AttentionForward& call) {
  return is_decode(call.shape) && call.q.dtype != DType::kF16 && !context.batch_invariant();
}

// Calls body(shape, operands) for consecutive queries with the same first key: the documents of packed
// sequences. The keys of each call begin at that first key, so that tiles of keys begin at the first token of
// a document, as they do if the document is a separate sequence.
template <class Operands, class Body>
void for_each_document(const AttentionShape& s, const Operands& x, Body body) {
  for (std::int64_t sequence = 0; sequence < s.batch; ++sequence) {
    const std::int32_t* const first = x.first_key + sequence * s.seq_q;
    std::int64_t end = 0;
    for (std::int64_t begin = 0; begin < s.seq_q; begin = end) {
      end = begin + 1;
      while (end < s.seq_q && first[end] == first[begin]) ++end;
      const std::int64_t key = std::clamp<std::int64_t>(first[begin] - s.k_first, 0, s.seq_k);
      AttentionShape document = s;
      document.batch = 1;
      document.seq_q = end - begin;
      document.seq_k = std::clamp<std::int64_t>(s.q_first + end - s.k_first, key, s.seq_k) - key;
      document.capacity_k = document.seq_k;
      document.q_first = s.q_first + begin;
      document.k_first = s.k_first + key;
      Operands part = x;
      part.q.data = x.q.at(sequence, 0, begin);
      part.k.data = x.k.at(sequence, 0, key);
      part.v.data = x.v.at(sequence, 0, key);
      part.out.data = x.out.at(sequence, 0, begin);
      if (x.lse) part.lse = x.lse + sequence * s.seq_q + begin;
      part.first_key = nullptr;
      body(document, part);
    }
  }
}

std::int64_t tiled_forward_workspace(CpuContext& context, DType dtype, const AttentionShape& s) {
  return with_tiles(dtype, [&](const auto& engine) {
    return ForwardPlan<std::decay_t<decltype(engine)>>(engine, s, context.threads(), nullptr).bytes();
  });
}

}  // namespace

void attention_forward(CpuContext& context, const AttentionForward& call) {
  const AttentionShape& s = call.shape;
  if (s.batch * s.seq_q == 0) return;
  if (uses_decode(context, call)) return attention_decode(context, call);
  with_tiles(call.q.dtype, [&](const auto& engine) {
    using Tiles = std::decay_t<decltype(engine)>;
    using T = typename Tiles::Source;
    const ForwardOperands<Tiles, Operand> operands{
        {context.data<const T>(call.q), call.q_stride, s.head_dim, s.seq_q},
        {context.data<const T>(call.k), call.k_stride, s.head_dim, s.capacity_k},
        {context.data<const T>(call.v), call.v_stride, s.value_dim, s.capacity_k},
        {context.data<T>(call.out), s.heads * s.value_dim, s.value_dim, s.seq_q},
        call.lse.absent() ? nullptr : context.data<float>(call.lse),
        s.batch * s.seq_q,
        call.first_key.absent() ? nullptr : context.data<const std::int32_t>(call.first_key),
        call.sinks.absent() ? nullptr : context.data<const T>(call.sinks)};
    auto* const workspace = context.data<std::byte>(call.workspace);
    if (context.batch_invariant() && operands.first_key) {
      for_each_document(s, operands, [&](const AttentionShape& document, const auto& of_document) {
        run_forward(context.pool(), engine, document, of_document, workspace);
      });
    } else {
      run_forward(context.pool(), engine, s, operands, workspace);
    }
  });
}

std::int64_t attention_forward_workspace(CpuContext& context, const AttentionForward& call) {
  if (uses_decode(context, call)) return attention_decode_workspace(call.shape);
  if (context.batch_invariant() && !call.first_key.absent()) {
    AttentionShape longest = call.shape;
    longest.batch = 1;
    return tiled_forward_workspace(context, call.q.dtype, longest);
  }
  return tiled_forward_workspace(context, call.q.dtype, call.shape);
}

// Processes sequences with many new tokens one after another, and all sequences with few new tokens
// together. If results must not depend on the number of new tokens, all sequences use the tile loop, because
// the kernel for few tokens adds in another order.
void paged_attention(CpuContext& context, const PagedAttention& call) {
  const PagedSequences& sequences = call.sequences;
  const auto* starts = context.data<const std::int32_t>(sequences.query_starts);
  const auto* lengths = context.data<const std::int32_t>(sequences.key_lengths);
  const auto* table = context.data<const std::int32_t>(sequences.block_table);
  const bool invariant = context.batch_invariant();
  if (!invariant) paged_decode(context, call);
  with_tiles(call.q.dtype, [&](const auto& engine) {
    using Tiles = std::decay_t<decltype(engine)>;
    using T = typename Tiles::Source;
    const int page_bits = std::countr_zero(static_cast<std::uint64_t>(sequences.page_size));
    const std::int64_t out_stride = call.heads * call.value_dim;
    T* out = context.data<T>(call.out);
    using Operands = ForwardOperands<Tiles, PagedOperand>;
    const auto sequence = [&](std::int64_t b) -> std::pair<AttentionShape, Operands> {
      const std::int64_t first = starts[b], count = starts[b + 1] - first;
      const AttentionShape s = paged_shape(call, count, lengths[b]);
      const std::int32_t* pages = table + b * sequences.blocks();
      return {
          s,
          {{context.data<const T>(call.q) + first * call.q_stride, call.q_stride, s.head_dim, count},
           {context.data<const T>(call.k), call.k_stride, s.head_dim, pages, sequences.blocks(), page_bits},
           {context.data<const T>(call.v), call.v_stride, s.value_dim, pages, sequences.blocks(), page_bits},
           {out + first * out_stride, out_stride, s.value_dim, count},
           nullptr,
           0,
           nullptr,
           call.sinks.absent() ? nullptr : context.data<const T>(call.sinks)}};
    };
    auto* const workspace = context.data<std::byte>(call.workspace);
    if (invariant && are_concurrent(context, call)) {
      const AttentionShape longest = paged_shape(call, call.tokens, sequences.capacity());
      run_sequences(context.pool(), engine, sequences.batch(), call.kv_heads, sequence, workspace,
                    sequence_bytes(engine, longest));
    } else {
      for (std::int64_t b = 0; b < sequences.batch(); ++b) {
        const std::int64_t count = starts[b + 1] - starts[b];
        if (count == 0 || (!invariant && is_paged_decode(count))) continue;
        const auto [s, operands] = sequence(b);
        run_forward(context.pool(), engine, s, operands, workspace);
      }
    }
    std::fill(out + starts[sequences.batch()] * out_stride, out + call.tokens * out_stride, T{});
  });
}

std::int64_t paged_attention_workspace(CpuContext& context, const PagedAttention& call) {
  const AttentionShape longest = paged_shape(call, call.tokens, call.sequences.capacity());
  if (context.batch_invariant() && are_concurrent(context, call)) {
    return with_tiles(call.q.dtype, [&](const auto& engine) {
      return context.threads() * sequence_bytes(engine, longest);
    });
  }
  if (context.batch_invariant()) return tiled_forward_workspace(context, call.q.dtype, longest);
  const std::int64_t decode = paged_decode_workspace(call);
  if (is_paged_decode(call.tokens)) return decode;
  return std::max(decode, tiled_forward_workspace(context, call.q.dtype, longest));
}

void paged_append(CpuContext& context, const PagedAppend& call) {
  PRIMUS_CHECK(PagedAppend::kId, call.around.absent());  // because is_taken() returns false for such calls
  const PagedSequences& sequences = call.sequences;
  const auto* starts = context.data<const std::int32_t>(sequences.query_starts);
  const auto* lengths = context.data<const std::int32_t>(sequences.key_lengths);
  const auto* table = context.data<const std::int32_t>(sequences.block_table);
  const std::int64_t size = size_of(call.rows.dtype), page_size = sequences.page_size;
  const auto copy = [&](const Tensor& rows, const Tensor& pages, std::int64_t row, std::int64_t slot,
                        std::int64_t cols, std::int64_t to_stride) {
    std::memcpy(context.data<std::byte>(pages) + slot * to_stride * size,
                context.data<const std::byte>(rows) + row * call.stride * size,
                static_cast<std::size_t>(cols * size));
  };
  for (std::int64_t b = 0; b < sequences.batch(); ++b) {
    for (std::int64_t row = starts[b]; row < starts[b + 1]; ++row) {
      const std::int64_t position = lengths[b] - starts[b + 1] + row;
      const std::int64_t page = table[b * sequences.blocks() + position / page_size];
      const std::int64_t slot = page * page_size + position % page_size;
      copy(call.rows, call.pages, row, slot, call.cols, call.to_stride);
      if (call.more_cols > 0)
        copy(call.more_rows, call.more_pages, row, slot, call.more_cols, call.more_to_stride);
    }
  }
}

}  // namespace primus::turbo::PRIMUS_CPU_ISA
