// What forward and backward share on the CPU: which keys a query sees, and how rows of q, k, v become fp32
// tiles.
//
// Score tiles are kept transposed, [key][query]: a vector lane is a query, so maxima, sums and masks need no
// operation across lanes.
#pragma once

#include <algorithm>

#include "turbo/attention/attention.h"
#include "turbo/attention/cpu_products.h"
#include "turbo/cpu/simd.h"

namespace primus::turbo::PRIMUS_CPU_ISA {

constexpr std::int64_t kQueryTile = 64, kKeyTile = 64;
static_assert(kQueryTile % kLanes == 0);

constexpr std::int64_t tiles(std::int64_t n, std::int64_t tile) { return (n + tile - 1) / tile; }

// Hands out 64-byte aligned pieces of a buffer. Over a null buffer it only adds up, so that the size of a
// workspace and its use come from one piece of code.
class Carver {
 public:
  explicit Carver(std::byte* base) : base_(base) {}
  template <class T>
  T* take(std::int64_t count) {
    T* piece = base_ ? reinterpret_cast<T*>(base_ + used_) : nullptr;
    used_ += tiles(count * static_cast<std::int64_t>(sizeof(T)), 64) * 64;
    return piece;
  }
  std::int64_t used() const { return used_; }

 private:
  std::byte* base_;
  std::int64_t used_ = 0;
};

struct Range {
  std::int64_t begin, end;
};

// Keys visible to the query with index i of its sequence.
inline Range visible_keys(const AttentionShape& s, std::int64_t i) {
  const std::int64_t position = s.seq_k - s.seq_q + i;
  return {s.window > 0 ? std::max<std::int64_t>(0, position - s.window + 1) : 0,
          s.causal ? position + 1 : s.seq_k};
}

// A tile of queries [begin, end) of one sequence, and the keys that any of them (all of them) sees.
struct QueryTile {
  std::int64_t begin, end;
  Range any, all;
  std::int64_t size() const { return end - begin; }
};

inline QueryTile query_tile(const AttentionShape& s, std::int64_t index) {
  const std::int64_t begin = index * kQueryTile, end = std::min(begin + kQueryTile, s.seq_q);
  const Range first = visible_keys(s, begin), last = visible_keys(s, end - 1);
  return {begin, end, {first.begin, last.end}, {last.begin, first.end}};
}

// Key tiles are the same for every query tile: [index * kKeyTile, ...) cut at what the query tile sees.
inline Range key_tile(std::int64_t index, Range any) {
  return {index * kKeyTile, std::min((index + 1) * kKeyTile, any.end)};
}

// Sets the scores of invisible pairs: scores[key - keys.begin][query - queries.begin].
inline void mask_scores(const AttentionShape& s, const QueryTile& queries, Range keys, float masked,
                        float* scores) {
  if (keys.begin >= queries.all.begin && keys.end <= queries.all.end) return;
  std::int32_t first[kQueryTile], last[kQueryTile];  // relative to the tile's first key
  for (std::int64_t i = 0; i < kQueryTile; ++i) {
    const Range visible = visible_keys(s, queries.begin + i);
    first[i] = static_cast<std::int32_t>(std::clamp<std::int64_t>(visible.begin - keys.begin, 0, kKeyTile));
    last[i] = static_cast<std::int32_t>(std::clamp<std::int64_t>(visible.end - keys.begin, 0, kKeyTile));
  }
  for (std::int32_t j = 0; j < keys.end - keys.begin; ++j) {
    float* row = scores + j * kQueryTile;
    PRIMUS_SIMD()
    for (std::int64_t i = 0; i < kQueryTile; ++i) row[i] = (j >= first[i]) & (j < last[i]) ? row[i] : masked;
  }
}

// to[r][c] = from[r * stride + c] in fp32, zero for cols <= c < ld.
template <class T>
void load_rows(const T* from, std::int64_t stride, std::int64_t rows, std::int64_t cols, float* to,
               std::int64_t ld) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const T* source = from + r * stride;
    float* row = to + r * ld;
    PRIMUS_SIMD()
    for (std::int64_t c = 0; c < cols; ++c) row[c] = to_float(source[c]);
    for (std::int64_t c = cols; c < ld; ++c) row[c] = 0;
  }
}

// to[c][r] = from[r][c] of fp32 rows, zero for rows <= r < kQueryTile.
inline void transpose_queries(const float* from, std::int64_t ld, std::int64_t rows, std::int64_t cols,
                              float* to) {
  for (std::int64_t c = 0; c < cols; ++c) {
    float* row = to + c * kQueryTile;
    for (std::int64_t r = 0; r < rows; ++r) row[r] = from[r * ld + c];
    for (std::int64_t r = rows; r < kQueryTile; ++r) row[r] = 0;
  }
}

template <class T>
void store_rows(const float* from, std::int64_t ld, std::int64_t rows, std::int64_t cols, T* to,
                std::int64_t stride) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const float* row = from + r * ld;
    T* target = to + r * stride;
    PRIMUS_SIMD()
    for (std::int64_t c = 0; c < cols; ++c) target[c] = from_float<T>(row[c]);
  }
}

}  // namespace primus::turbo::PRIMUS_CPU_ISA
