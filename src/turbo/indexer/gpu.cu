// There are two kernels for each slice of queries. The first computes scores on the tiles of turbo/attention,
// with a query's heads as rows. The second kernel finds the lowest score of each query's list by a radix
// search. The search determines this score byte by byte, from counts of scores with equal leading bytes. The
// kernel needs no sorting, and uses atomics only for counts.
#include "turbo/attention/gpu_paged.h"
#include "turbo/attention/gpu_tiles.h"
#include "turbo/gpu/register.h"
#include "turbo/indexer/formula.h"
#include "turbo/indexer/indexer.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

// Sums elements over the rows of a tile. All lanes that have elements of a column get the sum of the column.
PRIMUS_DEVICE float reduce_col(float value) {
  PRIMUS_UNROLL
  for (int mask = kWarp == 32 ? 4 : 16; mask < kWarp; mask *= 2) value += from_lane_xor(value, mask);
  return value;
}

// The keys that query `token` sees. There are `count` visible keys. Key j is row(j) of the operand.
template <class T>
struct RowsOfSequence {
  const T* k;
  const std::int32_t *first_row, *end_row;  // may be null
  IndexerShape s;

  struct Seen {
    HeadRows<T> keys;
    std::int64_t count, first;
    PRIMUS_DEVICE std::int64_t row(std::int64_t j) const { return first + j; }
  };
  PRIMUS_DEVICE Seen seen(std::int64_t token) const {
    const std::int64_t i = token % s.seq_q, base = token / s.seq_q * s.seq_k;
    const std::int64_t begin = larger(smaller(first_row ? first_row[token] : 0, s.seq_k), 0);
    const std::int64_t end = smaller(end_row ? end_row[token] : (s.q_first + i + 1) / s.stride, s.seq_k);
    const std::int64_t count = larger(end - begin, 0);
    return {{k + (base + begin) * s.head_dim, s.head_dim, count, s.head_dim}, count, base + begin};
  }
};

template <class T>
struct RowsOfPages {
  const T* k;
  Pages pages;
  std::int64_t head_dim;

  struct Seen {
    PagedRows<T> keys;
    std::int64_t count;
    PRIMUS_DEVICE std::int64_t row(std::int64_t j) const {
      const std::int64_t page = keys.table[j >> keys.page_bits];
      return (page << keys.page_bits) + (j & ((std::int64_t{1} << keys.page_bits) - 1));
    }
  };
  PRIMUS_DEVICE Seen seen(std::int64_t token) const {
    std::int64_t count = 0, sequence = 0;
    if (token < pages.starts[pages.batch]) {
      sequence = pages.sequence_of(token);
      count = pages.lengths[sequence] - pages.starts[sequence + 1] + token + 1;
    }
    return {{k, head_dim, count, head_dim, pages.table + sequence * pages.blocks, pages.page_bits}, count};
  }
};

// Each block computes the scores of one query for a range of the query's keys. Skips a query if the query's
// list can hold all visible keys.
template <class T, class W, class Source>
struct Scores {
  using Tiles = AttentionTiles<T>;
  static constexpr int kThreads = Tiles::kThreads, kTilesOfRun = 8;
  static constexpr std::int64_t kRun = std::int64_t{kTilesOfRun} * Tiles::kCols;
  Source source;
  const T* q;
  const W* w;
  std::uint32_t* scores;  // [queries of the slice, maximum]
  std::int64_t heads, head_dim, top_k, first, maximum, runs;

  struct Sums {
    float of_warp[Tiles::kWarps][Tiles::kCols];
  };

  PRIMUS_DEVICE void operator()() const {
    auto& m = *reinterpret_cast<typename Tiles::Memory*>(dynamic_shared());
    const std::int64_t of_slice = block() / runs, token = first + of_slice, begin = block() % runs * kRun;
    const auto seen = source.seen(token);
    if (seen.count <= top_k) return;
    Sums& sums = shared<Sums>();
    const HeadRows<T> queries{q + token * heads * head_dim, head_dim, heads, head_dim};
    const std::int64_t end = smaller(begin + kRun, seen.count);
    bool loaded = false;
    for (std::int64_t col = begin; col < end; col += Tiles::kCols) {
      float sum = 0;
      for (std::int64_t row = 0; row < heads; row += Tiles::kRows) {
        if (heads > Tiles::kRows) loaded = false;
        typename Tiles::Scores products;
        Tiles::multiply_rows(m, products, 0, queries, row, seen.keys, col, loaded, [] {});
        add_heads(sums, products, token, row);
        barrier();
        PRIMUS_UNROLL
        for (int v = 0; v < Tiles::kWarps; ++v) {
          if (thread() < Tiles::kCols) sum += sums.of_warp[v][thread()];
        }
      }
      const std::int64_t key = col + thread();
      if (thread() < Tiles::kCols && key < end) scores[of_slice * maximum + key] = key_of_score(sum);
    }
  }

  // Adds the contribution of the warp's 16 heads to the score of each key.
  PRIMUS_DEVICE void add_heads(Sums& sums, const typename Tiles::Scores& products, std::int64_t token,
                               std::int64_t row) const {
    float weight[Accumulator::kRows];
    PRIMUS_UNROLL
    for (int slot = 0; slot < Accumulator::kRows; ++slot) {
      const std::int64_t head = row + warp() * kTile + Accumulator::row_of_slot(slot);
      weight[slot] = head < heads ? to_float(w[token * heads + head]) : 0.0F;
    }
    PRIMUS_UNROLL
    for (int j = 0; j < Tiles::kCols / kTile; ++j) {
      // First adds a lane's elements of the same column, in row order.
      PRIMUS_UNROLL
      for (int i = 0; i < kPerLane; ++i) {
        if (Accumulator::slot(i) != 0) continue;
        float sum = 0;
        PRIMUS_UNROLL
        for (int other = 0; other < kPerLane; ++other) {
          if (Accumulator::col(other) != Accumulator::col(i)) continue;
          sum = with_head(sum, weight[Accumulator::slot(other)], products[j].at[other]);
        }
        sum = reduce_col(sum);
        if (Accumulator::row_of_slot(0) == 0) sums.of_warp[warp()][j * kTile + Accumulator::col(i)] = sum;
      }
    }
  }
};

// Writes the rows that each query selects: top_k entries, which end with -1 if the query sees fewer rows.
// Each block computes one query of the slice.
template <class Source>
struct Select {
  static constexpr int kThreads = 256, kDigits = 256;
  Source source;
  const std::uint32_t* scores;  // [queries of the slice, maximum]
  std::int32_t* selected;       // the list of the slice's first query
  std::int64_t top_k, first, maximum;

  struct Memory {
    std::int32_t counts[kDigits];
    std::int32_t above[kThreads], equal[kThreads];
  };

  PRIMUS_DEVICE void operator()() const {
    Memory& m = shared<Memory>();
    const std::uint32_t* const own = scores + block() * maximum;
    std::int32_t* const list = selected + block() * top_k;
    const auto seen = source.seen(first + block());
    std::int64_t taken = seen.count;
    if (seen.count <= top_k) {
      for (std::int64_t j = thread(); j < seen.count; j += kThreads)
        list[j] = static_cast<std::int32_t>(seen.row(j));
    } else {
      write(m, own, seen, list);
      taken = top_k;
    }
    for (std::int64_t j = taken + thread(); j < top_k; j += kThreads) list[j] = -1;
  }

  // Returns the lowest score of the list, and sets equal_to_minimum to the number of list entries with this
  // score.
  PRIMUS_DEVICE std::uint32_t minimum(Memory& m, const std::uint32_t* own, std::int64_t count,
                                      std::int32_t& equal_to_minimum) const {
    std::uint32_t found = 0, known = 0;  // bits of the lowest score, and the mask of known bits
    auto left = static_cast<std::int32_t>(top_k);
    for (int shift = 24; shift >= 0; shift -= 8) {
      barrier();
      for (int digit = thread(); digit < kDigits; digit += kThreads) m.counts[digit] = 0;
      barrier();
      for (std::int64_t j = thread(); j < count; j += kThreads) {
        if ((own[j] & known) == found) atomic_add(&m.counts[own[j] >> shift & 255U], 1);
      }
      barrier();
      int digit = kDigits - 1;
      for (; m.counts[digit] < left; --digit) left -= m.counts[digit];
      found |= static_cast<std::uint32_t>(digit) << shift;
      known |= std::uint32_t{255} << shift;
    }
    equal_to_minimum = left;
    return found;
  }

  template <class Seen>
  PRIMUS_DEVICE void write(Memory& m, const std::uint32_t* own, const Seen& seen, std::int32_t* list) const {
    std::int32_t equal_to_minimum = 0;
    const std::uint32_t bound = minimum(m, own, seen.count, equal_to_minimum);
    // For the prefix sums, each thread counts scores in its range of keys: the scores above the bound, and
    // the scores equal to the bound.
    const std::int64_t run = (seen.count + kThreads - 1) / kThreads;
    const std::int64_t begin = smaller(thread() * run, seen.count), end = smaller(begin + run, seen.count);
    std::int32_t above = 0, equal = 0;
    for (std::int64_t j = begin; j < end; ++j) above += own[j] > bound, equal += own[j] == bound;
    m.above[thread()] = above, m.equal[thread()] = equal;
    barrier();
    for (int distance = 1; distance < kThreads; distance *= 2) {
      const bool there = thread() >= distance;
      const std::int32_t more_above = there ? m.above[thread() - distance] : 0,
                         more_equal = there ? m.equal[thread() - distance] : 0;
      barrier();
      m.above[thread()] += more_above, m.equal[thread()] += more_equal;
      barrier();
    }
    above = m.above[thread()] - above, equal = m.equal[thread()] - equal;
    for (std::int64_t j = begin; j < end; ++j) {
      const bool higher = own[j] > bound, same = own[j] == bound;
      if (higher || (same && equal < equal_to_minimum))
        list[above + smaller(equal, equal_to_minimum)] = static_cast<std::int32_t>(seen.row(j));
      above += higher, equal += same;
    }
  }
};

// Returns the number of queries whose scores are in memory at a time.
std::int64_t slice(std::int64_t tokens, std::int64_t maximum) {
  return std::clamp<std::int64_t>((std::int64_t{32} << 20) / maximum, 1, tokens);
}
std::int64_t scores_bytes(std::int64_t tokens, std::int64_t maximum) {
  return slice(tokens, maximum) * maximum * static_cast<std::int64_t>(sizeof(std::uint32_t));
}

// `maximum` is the max. number of keys that a query may see.
template <class T, class Arguments, class Source>
void select(Context& context, const Arguments& a, const Source& source, std::int64_t heads,
            std::int64_t head_dim, std::int64_t top_k, std::int64_t maximum) {
  auto* const scores = context.data<std::uint32_t>(a.workspace);
  const std::int64_t tokens = a.q.rows(), queries = slice(tokens, maximum);
  const auto run = [&]<class W>(W) {
    using OfKeys = Scores<T, W, Source>;
    const std::int64_t runs = blocks_for(maximum, OfKeys::kRun);
    for (std::int64_t first = 0; first < tokens; first += queries) {
      const std::int64_t count = std::min(queries, tokens - first);
      if (maximum > top_k) {
        launch(context, count * runs,
               OfKeys{source, context.data<T>(a.q), context.data<W>(a.w), scores, heads, head_dim, top_k,
                      first, maximum, runs},
               sizeof(typename OfKeys::Tiles::Memory));
      }
      launch(context, count,
             Select<Source>{source, scores, context.data<std::int32_t>(a.selected) + first * top_k, top_k,
                            first, maximum});
    }
  };
  if (a.w.dtype == a.q.dtype) {
    run(T{});
  } else {
    run(float{});
  }
}

std::int64_t select_workspace(Context&, const IndexerSelect& a) {
  return scores_bytes(a.shape.tokens(), a.shape.seq_k);
}

void select_rows(Context& context, const IndexerSelect& a) {
  with_float_type(a.q.dtype, [&](auto tag) {
    using T = decltype(tag);
    const RowsOfSequence<T> source{context.data<T>(a.k), optional<std::int32_t>(context, a.first_row),
                                   optional<std::int32_t>(context, a.end_row), a.shape};
    select<T>(context, a, source, a.shape.heads, a.shape.head_dim, a.shape.top_k, a.shape.seq_k);
  });
}

std::int64_t paged_select_workspace(Context&, const PagedIndexerSelect& a) {
  return scores_bytes(a.q.rows(), a.sequences.capacity());
}

void select_of_pages(Context& context, const PagedIndexerSelect& a) {
  with_float_type(a.q.dtype, [&](auto tag) {
    using T = decltype(tag);
    const RowsOfPages<T> source{context.data<T>(a.pages), Pages(context, a.sequences), a.head_dim};
    select<T>(context, a, source, a.heads, a.head_dim, a.top_k, a.sequences.capacity());
  });
}

}  // namespace

void register_indexer(KernelTable& table) {
  table.add<IndexerSelect, Context, &select_rows, &select_workspace>();
  table.add<PagedIndexerSelect, Context, &select_of_pages, &paged_select_workspace>();
}

}  // namespace primus::turbo::PRIMUS_GPU
