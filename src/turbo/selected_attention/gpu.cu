// Uses the tiles of turbo/attention: rows are the heads of a query, and a block iterates over the keys of the
// query's list. Keys are gathered into shared memory once for all heads. A wide latent passes through shared
// memory in slices, and results are divided into column panels, which different blocks compute.
//
// A key's gradient is a sum over many queries. Queries are processed in slices, whose length depends only on
// the shape. For each query of a slice, the contributions to the gradients of its keys are written to the
// workspace, and a table stores their positions. Then the contributions to each key are added in query order.
#include "turbo/attention/gpu_tiles_backward.h"
#include "turbo/attention/gpu_tiles_forward.h"
#include "turbo/gpu/loops.h"
#include "turbo/gpu/register.h"
#include "turbo/selected_attention/selected_attention.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

// Rows of kv in list order, including empty list entries.
template <class T>
struct ListedRows {
  using Element = T;
  const T* data;
  std::int64_t stride, rows, cols;
  const std::int32_t* list;
  PRIMUS_DEVICE bool holds(std::int64_t place) const { return place < rows && list[place] >= 0; }
  PRIMUS_DEVICE const T* at(std::int64_t place) const { return data + list[place] * stride; }
};

// Common base of all kernels.
template <class T>
struct Selected {
  using Tiles = AttentionTiles<T>;
  static constexpr int kThreads = Tiles::kThreads, kSlots = Accumulator::kRows;
  SelectedAttentionShape s;
  const T *q, *kv;
  const std::int32_t* selected;

  Selected(Context& context, const SelectedAttentionShape& shape, const Tensor& queries, const Tensor& keys,
           const Tensor& lists)
      : s(shape),
        q(context.data<T>(queries)),
        kv(context.data<T>(keys)),
        selected(context.data<std::int32_t>(lists)) {}

  PRIMUS_DEVICE HeadRows<T> queries(std::int64_t token) const {
    return {q + token * s.heads * s.key_dim, s.key_dim, s.heads, s.key_dim};
  }
  PRIMUS_DEVICE ListedRows<T> keys(std::int64_t token) const {
    return {kv, s.key_dim, s.selected, s.key_dim, selected + token * s.selected};
  }
  PRIMUS_DEVICE ListedRows<T> values(std::int64_t token) const {
    return {kv, s.key_dim, s.selected, s.value_dim, selected + token * s.selected};
  }
  // Returns whether a tile of list entries has a key. All threads of the block must call this.
  PRIMUS_DEVICE static bool any(const ListedRows<T>& keys, std::int64_t first, int count) {
    std::int32_t found = 0;
    for (int c = thread(); c < count; c += kThreads) found |= keys.holds(first + c) ? 1 : 0;
    return block_reduce<kThreads>(found) != 0;
  }
};

template <class T>
struct Forward : Selected<T> {
  using Base = Selected<T>;
  using Base::s, Base::kSlots;
  using typename Base::Tiles;
  const T* sinks;  // may be null
  T* out;
  float* lse;  // may be null
  std::int64_t tiles, panels;

  PRIMUS_DEVICE void operator()() const {
    auto& m = *reinterpret_cast<typename Tiles::Memory*>(dynamic_shared());
    const std::int64_t panel = block() % panels, row = block() / panels % tiles * Tiles::kRows;
    const std::int64_t token = block() / panels / tiles;
    const auto queries = this->queries(token);
    const auto keys = this->keys(token), values = this->values(token);
    KeyRange seen[kSlots];
    float maximum[kSlots], total[kSlots];
    PRIMUS_UNROLL
    for (int slot = 0; slot < kSlots; ++slot) {
      seen[slot] = {0, s.selected};
      maximum[slot] = -infinity(), total[slot] = 0;
    }
    typename Tiles::Sums sums;
    Tiles::clear(sums);
    bool loaded = false;
    for (std::int64_t col = 0; col < s.selected; col += Tiles::kCols) {
      if (!Base::any(keys, col, Tiles::kCols)) continue;
      typename Tiles::Scores scores;
      Tiles::multiply_rows(m, scores, 0, queries, row, keys, col, loaded,
                           [&] { Tiles::fetch(m.wide, values, col, panel * Tiles::kWide); });
      PRIMUS_UNROLL
      for (int j = 0; j < Tiles::kCols / kTile; ++j) {
        PRIMUS_UNROLL
        for (int i = 0; i < kPerLane; ++i) {
          if (!keys.holds(col + j * kTile + Accumulator::col(i))) scores[j].at[i] = -infinity();
        }
      }
      ForwardTiles<T>::softmax(s.scale * kLog2E, scores, seen, col, maximum, total, sums);
      Tiles::add_weighted(m, sums, scores, panel * Tiles::kWide, s.value_dim);
    }
    float factor[kSlots];
    PRIMUS_UNROLL
    for (int slot = 0; slot < kSlots; ++slot) {
      const std::int64_t head = row + warp() * kTile + Accumulator::row_of_slot(slot);
      const float sink = sinks && head < s.heads ? to_float(sinks[head]) * kLog2E : -infinity();
      const float log_sum = ForwardTiles<T>::end_softmax(maximum[slot], total[slot], sink, factor[slot]);
      if (lse && panel == 0 && head < s.heads && Accumulator::col(0) == 0)
        lse[head * s.tokens + token] = log_sum;
    }
    Tiles::store(sums, out + token * s.heads * s.value_dim, s.value_dim, row, panel * Tiles::kWide, s.heads,
                 s.value_dim, factor);
  }
};

void forward(Context& context, const SelectedAttentionForward& a) {
  with_float_type(a.q.dtype, [&](auto tag) {
    using T = decltype(tag);
    using Tiles = AttentionTiles<T>;
    const SelectedAttentionShape& s = a.shape;
    const std::int64_t tiles = blocks_for(s.heads, Tiles::kRows),
                       panels = blocks_for(s.value_dim, Tiles::kWide);
    launch(context, s.tokens * tiles * panels,
           Forward<T>{{context, s, a.q, a.kv, a.selected},
                      optional<T>(context, a.sinks),
                      context.data<T>(a.out),
                      optional<float>(context, a.lse),
                      tiles,
                      panels},
           sizeof(typename Tiles::Memory));
  });
}

// ---- Backward -----------------------------------------------------------------------------------

template <class T>
struct Backward : Selected<T> {
  using Selected<T>::s;
  const T* d_out;
  const float *lse, *delta;

  PRIMUS_DEVICE HeadRows<T> d_outs(std::int64_t token) const {
    return {d_out + token * s.heads * s.value_dim, s.value_dim, s.heads, s.value_dim};
  }
  PRIMUS_DEVICE float log_sum(std::int64_t token, std::int64_t head) const {
    return head < s.heads ? lse[head * s.tokens + token] : 0.0F;
  }
  PRIMUS_DEVICE float delta_of(std::int64_t token, std::int64_t head) const {
    return head < s.heads ? delta[head * s.tokens + token] : 0.0F;
  }
  PRIMUS_DEVICE float weight(float score, float log_sum) const {
    return exp2_flushed(multiply_add(score, s.scale * kLog2E, -log_sum * kLog2E));
  }
};

// The rows of a block are the heads of a query. A block computes one column panel of their d_q.
template <class T>
struct BackwardQuery : Backward<T> {
  using Base = Backward<T>;
  using Base::s, Base::kSlots;
  using typename Base::Tiles;
  T* d_q;
  std::int64_t tiles, panels;

  PRIMUS_DEVICE void operator()() const {
    auto& m = *reinterpret_cast<typename Tiles::Memory*>(dynamic_shared());
    const std::int64_t panel = block() % panels, row = block() / panels % tiles * Tiles::kRows;
    const std::int64_t token = block() / panels / tiles;
    const auto queries = this->queries(token), d_outs = this->d_outs(token);
    const auto keys = this->keys(token), values = this->values(token);
    float log_sums[kSlots], deltas[kSlots], factor[kSlots];
    PRIMUS_UNROLL
    for (int slot = 0; slot < kSlots; ++slot) {
      const std::int64_t head = row + warp() * kTile + Accumulator::row_of_slot(slot);
      log_sums[slot] = this->log_sum(token, head), deltas[slot] = this->delta_of(token, head);
      factor[slot] = 1;
    }
    bool queries_loaded = false, d_outs_loaded = false;
    typename Tiles::Sums sums;
    Tiles::clear(sums);
    for (std::int64_t col = 0; col < s.selected; col += Tiles::kCols) {
      if (!Base::any(keys, col, Tiles::kCols)) continue;
      typename Tiles::Scores scores, d_weights;
      Tiles::multiply_rows(m, scores, 0, queries, row, keys, col, queries_loaded,
                           [&] { Tiles::fetch(m.wide, keys, col, panel * Tiles::kWide); });
      Tiles::multiply_rows(m, d_weights, 1, d_outs, row, values, col, d_outs_loaded, [] {});
      if (Tiles::kLefts == 1) queries_loaded = false;  // queries and d_out share one buffer
      PRIMUS_UNROLL
      for (int j = 0; j < Tiles::kCols / kTile; ++j) {
        PRIMUS_UNROLL
        for (int i = 0; i < kPerLane; ++i) {
          const int slot = Accumulator::slot(i);
          const float p = keys.holds(col + j * kTile + Accumulator::col(i))
                              ? this->weight(scores[j].at[i], log_sums[slot])
                              : 0.0F;
          scores[j].at[i] = p * (d_weights[j].at[i] - deltas[slot]) * s.scale;
        }
      }
      Tiles::add_weighted(m, sums, scores, panel * Tiles::kWide, s.key_dim);
    }
    Tiles::store(sums, d_q + token * s.heads * s.key_dim, s.key_dim, row, panel * Tiles::kWide, s.heads,
                 s.key_dim, factor);
  }
};

// The rows of a block are entries of a query's list. A block computes one column panel of the query's
// contribution to the gradients of these keys, both as keys and as values.
template <class T>
struct BackwardKeysOfQuery : Backward<T> {
  using Base = Backward<T>;
  using Base::s, Base::kSlots;
  using typename Base::Tiles;
  float* parts;  // [queries of the slice, list entries, key_dim]
  std::int64_t first, tiles, panels;

  PRIMUS_DEVICE void operator()() const {
    auto& m = *reinterpret_cast<typename Tiles::Memory*>(dynamic_shared());
    const std::int64_t panel = block() % panels, row = block() / panels % tiles * Tiles::kRows;
    const std::int64_t of_slice = block() / panels / tiles, token = first + of_slice;
    const auto queries = this->queries(token), d_outs = this->d_outs(token);
    const auto keys = this->keys(token), values = this->values(token);
    if (!Base::any(keys, row, Tiles::kRows)) return;
    const std::int64_t column = panel * Tiles::kWide;
    bool there[kSlots];
    float factor[kSlots];
    PRIMUS_UNROLL
    for (int slot = 0; slot < kSlots; ++slot) {
      there[slot] = keys.holds(row + warp() * kTile + Accumulator::row_of_slot(slot));
      factor[slot] = 1;
    }
    bool keys_loaded = false, values_loaded = false;
    typename Tiles::Sums sums;
    Tiles::clear(sums);
    for (std::int64_t col = 0; col < s.heads; col += Tiles::kCols) {
      typename Tiles::Scores weights, d_weights;
      Tiles::multiply_rows(m, weights, 0, keys, row, queries, col, keys_loaded, [&] {
        if (column < s.value_dim) Tiles::fetch(m.wide, d_outs, col, column);
      });
      PRIMUS_UNROLL
      for (int j = 0; j < Tiles::kCols / kTile; ++j) {
        PRIMUS_UNROLL
        for (int i = 0; i < kPerLane; ++i) {
          const std::int64_t head = col + j * kTile + Accumulator::col(i);
          weights[j].at[i] = there[Accumulator::slot(i)] && head < s.heads
                                 ? this->weight(weights[j].at[i], this->log_sum(token, head))
                                 : 0.0F;
        }
      }
      if (column < s.value_dim) Tiles::add_weighted(m, sums, weights, column, s.value_dim);
      Tiles::multiply_rows(m, d_weights, 1, values, row, d_outs, col, values_loaded,
                           [&] { Tiles::fetch(m.wide, queries, col, column); });
      if (Tiles::kLefts == 1) keys_loaded = false;  // keys and values share one buffer
      PRIMUS_UNROLL
      for (int j = 0; j < Tiles::kCols / kTile; ++j) {
        PRIMUS_UNROLL
        for (int i = 0; i < kPerLane; ++i) {
          const std::int64_t head = col + j * kTile + Accumulator::col(i);
          weights[j].at[i] *= (d_weights[j].at[i] - this->delta_of(token, head)) * s.scale;
        }
      }
      Tiles::add_weighted(m, sums, weights, column, s.key_dim);
    }
    Tiles::store(sums, parts + of_slice * s.selected * s.key_dim, s.key_dim, row, column, s.selected,
                 s.key_dim, factor);
  }
};

// Sets places[i][r] to the position of row r in the list of the slice's query i, or -1. There is one block
// per query.
struct Places {
  static constexpr int kThreads = 256;
  const std::int32_t* selected;  // the list of the slice's first query
  std::int32_t* places;
  std::int64_t rows, count;  // count: number of entries of a list

  PRIMUS_DEVICE void operator()() const {
    std::int32_t* const own = places + block() * rows;
    for (std::int64_t row = thread(); row < rows; row += kThreads) own[row] = -1;
    barrier();
    for (std::int64_t place = thread(); place < count; place += kThreads) {
      const std::int32_t row = selected[block() * count + place];
      if (row >= 0) own[row] = static_cast<std::int32_t>(place);
    }
  }
};

// Sums the contributions of the slice's queries to each key.
template <class T>
struct AddParts {
  const float* parts;
  const std::int32_t* places;
  float* sums;  // [rows, key_dim]: sums of the previous slices
  T* d_kv;
  std::int64_t rows, count, selected, key_dim;  // count: number of queries of the slice
  bool first, last;

  PRIMUS_DEVICE void operator()(std::int64_t row, std::int64_t col) const {
    const std::int64_t at = row * key_dim + col;
    float sum = first ? 0.0F : sums[at];
    PRIMUS_UNROLL_BY(4)
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int32_t place = places[i * rows + row];
      if (place >= 0) sum += parts[(i * selected + place) * key_dim + col];
    }
    if (last) {
      d_kv[at] = from_float<T>(sum);
    } else {
      sums[at] = sum;
    }
  }
};

// The layout of the workspace. Sizes are in elements of 4 bytes.
struct Plan {
  // Max. number of elements for a slice of queries.
  static constexpr std::int64_t kSlice = std::int64_t{64} << 20;

  explicit Plan(const SelectedAttentionBackward& a) : Plan(a.shape, a.queries_at_once) {}
  Plan(const SelectedAttentionShape& s, std::int64_t at_once)
      : queries(std::clamp<std::int64_t>(at_once > 0 ? at_once : kSlice / (s.selected * s.key_dim + s.rows),
                                         1, s.tokens)),
        parts(s.heads * s.tokens),
        sums(parts + queries * s.selected * s.key_dim),
        places(sums + (queries < s.tokens ? s.rows * s.key_dim : 0)),
        all(places + queries * s.rows) {}
  std::int64_t queries;  // queries per slice
  std::int64_t parts, sums, places, all;
};

std::int64_t backward_workspace(Context&, const SelectedAttentionBackward& a) {
  return Plan(a).all * static_cast<std::int64_t>(sizeof(float));
}

void backward(Context& context, const SelectedAttentionBackward& a) {
  with_float_type(a.q.dtype, [&](auto tag) {
    using T = decltype(tag);
    using Tiles = AttentionTiles<T>;
    const SelectedAttentionShape& s = a.shape;
    const Plan plan(a);
    auto* const workspace = context.data<float>(a.workspace);
    float *const delta = workspace, *const parts = workspace + plan.parts,
                 *const sums = workspace + plan.sums;
    auto* const places = reinterpret_cast<std::int32_t*>(workspace + plan.places);
    const auto* const d_out = context.data<T>(a.d_out);
    launch(context, blocks_for(s.tokens * s.heads, Deltas<T>::kWarps),
           Deltas<T>{context.data<T>(a.out), d_out, delta, s.tokens, s.heads, s.value_dim, nullptr});
    const Backward<T> both{{context, s, a.q, a.kv, a.selected}, d_out, context.data<float>(a.lse), delta};
    const std::int64_t panels = blocks_for(s.key_dim, Tiles::kWide);
    const std::int64_t head_tiles = blocks_for(s.heads, Tiles::kRows),
                       place_tiles = blocks_for(s.selected, Tiles::kRows);
    launch(context, s.tokens * head_tiles * panels,
           BackwardQuery<T>{both, context.data<T>(a.d_q), head_tiles, panels},
           sizeof(typename Tiles::Memory));
    for (std::int64_t first = 0; first < s.tokens; first += plan.queries) {
      const std::int64_t count = std::min(plan.queries, s.tokens - first);
      launch(context, count,
             Places{context.data<std::int32_t>(a.selected) + first * s.selected, places, s.rows, s.selected});
      launch(context, count * place_tiles * panels,
             BackwardKeysOfQuery<T>{both, parts, first, place_tiles, panels}, sizeof(typename Tiles::Memory));
      for_each_of_rows<1>(context, s.rows, s.key_dim,
                          AddParts<T>{parts, places, sums, context.data<T>(a.d_kv), s.rows, count, s.selected,
                                      s.key_dim, first == 0, first + count == s.tokens});
    }
  });
}

}  // namespace

void register_selected_attention(KernelTable& table) {
  table.add<SelectedAttentionForward, Context, &forward>();
  table.add<SelectedAttentionBackward, Context, &backward, &backward_workspace>();
}

}  // namespace primus::turbo::PRIMUS_GPU
