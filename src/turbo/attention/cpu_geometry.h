// Functions that the CPU's attention kernels share: masks (the keys that a query sees), the addresses of a
// head's rows, and the layout of a workspace.
#pragma once

#include <algorithm>
#include <limits>

#include "turbo/attention/attention.h"
#include "turbo/cpu/simd.h"

namespace primus::turbo::PRIMUS_CPU_ISA {

constexpr std::int64_t kTile = 64;  // number of queries and number of keys per tile of scores

constexpr int kGroup = 16;  // number of lanes that element-wise code processes at once

constexpr std::int64_t tiles(std::int64_t n) { return (n + kTile - 1) / kTile; }
constexpr std::int64_t round_up(std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; }

// Divides a buffer into 64-byte aligned blocks. With a null buffer, only adds up the sizes: the same code
// computes the size of a workspace and its layout.
class Carver {
 public:
  explicit Carver(std::byte* base) : base_(base) {}
  template <class T>
  T* take(std::int64_t count) {
    T* piece = base_ ? reinterpret_cast<T*>(base_ + used_) : nullptr;
    used_ += round_up(count * static_cast<std::int64_t>(sizeof(T)), 64);
    return piece;
  }
  std::int64_t used() const { return used_; }

 private:
  std::byte* base_;
  std::int64_t used_ = 0;
};

// A row-strided tensor, and the addresses of one head's rows.
template <class T>
struct Operand {
  T* data;
  std::int64_t stride;         // stride between tokens, in elements
  std::int64_t width;          // columns of one head
  std::int64_t sequence_rows;  // rows between the starts of consecutive sequences
  T* at(std::int64_t sequence, std::int64_t head, std::int64_t row) const {
    return data + (sequence * sequence_rows + row) * stride + head * width;
  }
};

// Keys or values of a cache: the rows of a sequence are in pages, and the sequence's row of the table lists
// these pages.
template <class T>
struct PagedOperand {
  T* data;
  std::int64_t stride, width;  // as in Operand
  const std::int32_t* table;   // [sequences, blocks]
  std::int64_t blocks;
  int page_bits;  // log2 of the rows per page; a tile of keys never crosses a page boundary
  T* at(std::int64_t sequence, std::int64_t head, std::int64_t row) const {
    const std::int64_t page = table[sequence * blocks + (row >> page_bits)];
    return data + ((page << page_bits) + (row & ((std::int64_t{1} << page_bits) - 1))) * stride +
           head * width;
  }
};

struct Range {
  std::int64_t begin, end;
  std::int64_t size() const { return end - begin; }
};

// Consecutive queries of one sequence. `any`: the keys that at least one of the queries sees. `all`: the keys
// that all of the queries see.
struct Queries {
  std::int64_t begin, end;
  Range any, all;
  std::int64_t size() const { return end - begin; }
  std::int64_t first_key_tile() const { return any.begin / kTile; }
  std::int64_t end_key_tile() const { return tiles(any.end); }
};

// The range of keys that each query of one sequence sees. Both ends are non-decreasing from one query to the
// next.
class Visibility {
 public:
  // `first_key` is the array for all sequences, or null.
  Visibility(const AttentionShape& shape, const std::int32_t* first_key, std::int64_t sequence)
      : s(shape), first_key_(first_key ? first_key + sequence * shape.seq_q : nullptr) {}

  // Returns the keys that query i of the sequence sees, as indices of the call's keys.
  Range keys(std::int64_t i) const {
    const std::int64_t position = s.q_first + i;
    Range seen{0, s.causal ? position + 1 : s.k_first + s.seq_k};
    if (s.chunk > 0) {
      seen.begin = position / s.chunk * s.chunk;
      seen.end = std::min(seen.end, seen.begin + s.chunk);
    }
    if (s.window > 0) seen.begin = std::max(seen.begin, position - s.window + 1);
    // The last tile may extend beyond the last query.
    if (first_key_ && i < s.seq_q) {
      seen.begin = std::clamp<std::int64_t>(first_key_[i], seen.begin, position);
    }
    return {std::clamp<std::int64_t>(seen.begin - s.k_first, 0, s.seq_k),
            std::clamp<std::int64_t>(seen.end - s.k_first, 0, s.seq_k)};
  }

  Queries between(std::int64_t begin, std::int64_t end) const {
    const Range first = keys(begin), last = keys(end - 1);
    return {begin, end, {first.begin, last.end}, {last.begin, first.end}};
  }
  Queries tile(std::int64_t index) const {
    return between(index * kTile, std::min((index + 1) * kTile, s.seq_q));
  }

 private:
  const AttentionShape& s;
  const std::int32_t* first_key_;
};

// The part of a score tile that is computed: queries `lanes` and keys `keys`, relative to the tile's corner.
// Both ranges begin and end at multiples of the block sizes of the matrix products (`block` and `key_block`
// of for_each_strip()). `masked`: some pairs of the strip are masked or out of range.
struct Strip {
  Range lanes, keys;
  bool masked;
};

// Calls body(strip) for the visible parts of (queries, key tile). If no pair is masked, the only strip is the
// complete tile. Otherwise each strip has `block` queries, and only the keys that these queries see.
template <class Body>
void for_each_strip(const Visibility& visibility, const Queries& queries, std::int64_t key_tile,
                    std::int64_t block, std::int64_t key_block, Body body) {
  const std::int64_t first_key = key_tile * kTile;
  const auto strip = [&](Range lanes, const Queries& part) -> Strip {
    const Range seen{std::clamp<std::int64_t>(part.any.begin - first_key, 0, kTile),
                     std::clamp<std::int64_t>(part.any.end - first_key, 0, kTile)};
    const Range keys{seen.begin / key_block * key_block, round_up(seen.end, key_block)};
    return {lanes, keys, keys.begin < part.all.begin - first_key || keys.end > part.all.end - first_key};
  };
  const Strip whole = strip({0, round_up(queries.size(), block)}, queries);
  if (whole.keys.size() <= 0) return;
  if (!whole.masked) return body(whole);
  for (std::int64_t lane = 0; lane < queries.size(); lane += block) {
    const std::int64_t end = std::min(lane + block, queries.size());
    const Strip part =
        strip({lane, lane + block}, visibility.between(queries.begin + lane, queries.begin + end));
    if (part.keys.size() > 0) body(part);
  }
}

// With a soft cap, replaces the products of a strip by tanh(scale * product / cap). Without a cap, does
// nothing. The scores are the results times score_scale(). Call this function before masking.
inline void cap_scores(const AttentionShape& s, const Strip& strip, float* scores) {
  if (s.score_cap == 0) return;
  const float factor = s.scale / s.score_cap;
  for (std::int64_t key = strip.keys.begin; key < strip.keys.end; ++key) {
    float* row = scores + key * kTile;
    PRIMUS_SIMD()
    for (std::int64_t lane = strip.lanes.begin; lane < strip.lanes.end; ++lane)
      row[lane] = tanh(row[lane] * factor);
  }
}
// Returns the factor by which the scores are multiplied after cap_scores().
inline float score_scale(const AttentionShape& s) { return s.score_cap > 0 ? s.score_cap : s.scale; }

// Sets the scores of a strip's masked pairs to -infinity.
inline void mask_scores(const Visibility& visibility, const Queries& queries, std::int64_t key_tile,
                        const Strip& strip, float* scores) {
  if (!strip.masked) return;
  std::int32_t first[kTile], end[kTile];
  for (std::int64_t lane = strip.lanes.begin; lane < strip.lanes.end; ++lane) {
    const Range visible = visibility.keys(queries.begin + lane);
    first[lane] =
        static_cast<std::int32_t>(std::clamp<std::int64_t>(visible.begin - key_tile * kTile, 0, kTile));
    end[lane] = static_cast<std::int32_t>(std::clamp<std::int64_t>(visible.end - key_tile * kTile, 0, kTile));
  }
  for (std::int64_t key = strip.keys.begin; key < strip.keys.end; ++key) {
    const auto index = static_cast<std::int32_t>(key);
    float* row = scores + key * kTile;
    PRIMUS_SIMD()
    for (std::int64_t lane = strip.lanes.begin; lane < strip.lanes.end; ++lane) {
      row[lane] =
          (index >= first[lane]) & (index < end[lane]) ? row[lane] : -std::numeric_limits<float>::infinity();
    }
  }
}

}  // namespace primus::turbo::PRIMUS_CPU_ISA
