// Each thread computes the scores of one query in its own buffer and selects keys by these scores. Therefore
// the complete score matrix is not stored.
#include <algorithm>

#include "turbo/cpu/register.h"
#include "turbo/cpu/simd.h"
#include "turbo/indexer/formula.h"
#include "turbo/indexer/indexer.h"

namespace primus::turbo::PRIMUS_CPU_ISA {
namespace {

// Computes the scores of a query for the `count` visible keys. at(j) is visible key j.
template <class T, class W, class Keys>
PRIMUS_INLINE void score(const T* q, const W* w, std::int64_t heads, std::int64_t dim, std::int64_t count,
                         Keys at, std::uint32_t* scores) {
  for (std::int64_t j = 0; j < count; ++j) {
    const T* const key = at(j);
    float sum = 0;
    for (std::int64_t h = 0; h < heads; ++h) {
      const T* const query = q + h * dim;
      const float product =
          sum_terms(dim, [=](std::int64_t i) { return to_float(query[i]) * to_float(key[i]); });
      sum = with_head(sum, to_float(w[h]), product);
    }
    scores[j] = key_of_score(sum);
  }
}

// Selects the keys with the top_k scores and stores their rows in ascending order. `copy` has room for
// `count` scores.
template <class Row>
void select(const std::uint32_t* scores, std::int64_t count, std::int64_t top_k, std::uint32_t* copy, Row row,
            std::int32_t* selected) {
  std::uint32_t minimum = 0;              // all scores above `minimum` are selected
  std::int64_t equal_to_minimum = count;  // number of scores equal to `minimum` that are selected
  if (count > top_k) {
    std::copy_n(scores, count, copy);
    std::nth_element(copy, copy + top_k - 1, copy + count,
                     [](std::uint32_t a, std::uint32_t b) { return a > b; });
    minimum = copy[top_k - 1];
    equal_to_minimum =
        top_k - std::count_if(scores, scores + count, [=](std::uint32_t s) { return s > minimum; });
  }
  std::int64_t taken = 0;
  for (std::int64_t j = 0; j < count; ++j) {
    if (scores[j] < minimum || (scores[j] == minimum && equal_to_minimum-- <= 0)) continue;
    selected[taken++] = static_cast<std::int32_t>(row(j));
  }
  std::fill(selected + taken, selected + top_k, -1);
}

// Calls body(query type, weight type).
template <class Body>
void with_types(const Tensor& q, const Tensor& w, Body body) {
  with_float_type(q.dtype, [&](auto tag) {
    if (w.dtype == q.dtype) return body(tag, tag);
    body(tag, float{});
  });
}

// Returns the bytes of all buffers. Each thread stores the scores of one query, and a copy of these scores.
std::int64_t buffers(const CpuContext& context, std::int64_t maximum) {
  return context.threads() * 2 * maximum * static_cast<std::int64_t>(sizeof(std::uint32_t));
}

std::int64_t select_workspace(CpuContext& context, const IndexerSelect& a) {
  return buffers(context, a.shape.seq_k);
}

void select_rows(CpuContext& context, const IndexerSelect& a) {
  const IndexerShape& s = a.shape;
  const auto* const first_row =
      a.first_row.absent() ? nullptr : context.data<const std::int32_t>(a.first_row);
  const auto* const end_row = a.end_row.absent() ? nullptr : context.data<const std::int32_t>(a.end_row);
  auto* const workspace = context.data<std::uint32_t>(a.workspace);
  auto* const selected = context.data<std::int32_t>(a.selected);
  with_types(a.q, a.w, [&]<class T, class W>(T, W) {
    const T* const q = context.data<const T>(a.q);
    const T* const k = context.data<const T>(a.k);
    const W* const w = context.data<const W>(a.w);
    context.pool().parallel_for(s.tokens(), 1, [&](std::int64_t t, std::int64_t, int thread) {
      const std::int64_t i = t % s.seq_q, base = t / s.seq_q * s.seq_k;
      const std::int64_t begin = std::clamp<std::int64_t>(first_row ? first_row[t] : 0, 0, s.seq_k);
      const std::int64_t end =
          std::clamp<std::int64_t>(end_row ? end_row[t] : (s.q_first + i + 1) / s.stride, begin, s.seq_k);
      std::uint32_t* const scores = workspace + thread * 2 * s.seq_k;
      const T* const keys = k + (base + begin) * s.head_dim;
      if (end - begin > s.top_k) {
        score(
            q + t * s.heads * s.head_dim, w + t * s.heads, s.heads, s.head_dim, end - begin,
            [=](std::int64_t j) { return keys + j * s.head_dim; }, scores);
      } else {
        std::fill_n(scores, end - begin, 0U);
      }
      select(
          scores, end - begin, s.top_k, scores + s.seq_k, [=](std::int64_t j) { return base + begin + j; },
          selected + t * s.top_k);
    });
  });
}

std::int64_t paged_workspace(CpuContext& context, const PagedIndexerSelect& a) {
  return buffers(context, a.sequences.capacity());
}

void select_of_pages(CpuContext& context, const PagedIndexerSelect& a) {
  const PagedSequences& sequences = a.sequences;
  const std::int64_t batch = sequences.batch(), maximum = sequences.capacity(), page = sequences.page_size;
  const auto* const starts = context.data<const std::int32_t>(sequences.query_starts);
  const auto* const lengths = context.data<const std::int32_t>(sequences.key_lengths);
  const auto* const table = context.data<const std::int32_t>(sequences.block_table);
  auto* const workspace = context.data<std::uint32_t>(a.workspace);
  auto* const selected = context.data<std::int32_t>(a.selected);
  with_types(a.q, a.w, [&]<class T, class W>(T, W) {
    const T* const q = context.data<const T>(a.q);
    const T* const pages = context.data<const T>(a.pages);
    const W* const w = context.data<const W>(a.w);
    context.pool().parallel_for(a.q.rows(), 1, [&](std::int64_t t, std::int64_t, int thread) {
      std::int32_t* const list = selected + t * a.top_k;
      if (t >= starts[batch]) {
        std::fill_n(list, a.top_k, -1);
        return;
      }
      const std::int64_t b = std::upper_bound(starts, starts + batch + 1, t) - starts - 1;
      const std::int64_t count = lengths[b] - starts[b + 1] + t + 1;
      const std::int32_t* const own = table + b * sequences.blocks();
      const auto row = [=](std::int64_t j) { return own[j / page] * page + j % page; };
      std::uint32_t* const scores = workspace + thread * 2 * maximum;
      if (count > a.top_k) {
        score(
            q + t * a.heads * a.head_dim, w + t * a.heads, a.heads, a.head_dim, count,
            [=](std::int64_t j) { return pages + row(j) * a.head_dim; }, scores);
      } else {
        std::fill_n(scores, count, 0U);
      }
      select(scores, count, a.top_k, scores + maximum, row, list);
    });
  });
}

}  // namespace

void register_indexer(KernelTable& table) {
  table.add<IndexerSelect, CpuContext, &select_rows, &select_workspace>();
  table.add<PagedIndexerSelect, CpuContext, &select_of_pages, &paged_workspace>();
}

}  // namespace primus::turbo::PRIMUS_CPU_ISA
