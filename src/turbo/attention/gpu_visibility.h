// Computes which keys each query sees, on GPUs.
#pragma once

#include "turbo/attention/attention.h"
#include "turbo/gpu/values.h"

namespace primus::turbo::PRIMUS_GPU {

// Keys [begin, end).
struct KeyRange {
  std::int64_t begin, end;
};

// The range of keys that each query of one sequence sees. Both ends are non-decreasing from one query to the
// next.
struct Visibility {
  std::int64_t seq_q, seq_k, q_first, k_first, window, chunk;
  bool causal;
  const std::int32_t* first_key;  // first visible key of each query, for all sequences; or null

  Visibility(const AttentionShape& s, const std::int32_t* documents)
      : seq_q(s.seq_q),
        seq_k(s.seq_k),
        q_first(s.q_first),
        k_first(s.k_first),
        window(s.window),
        chunk(s.chunk),
        causal(s.causal),
        first_key(documents) {}

  // Returns the keys that query i < seq_q of the sequence sees, as indices of the call's keys.
  PRIMUS_DEVICE KeyRange keys(std::int64_t sequence, std::int64_t i) const {
    const std::int64_t position = q_first + i;
    KeyRange seen{0, causal ? position + 1 : k_first + seq_k};
    if (chunk > 0) {
      seen.begin = position / chunk * chunk;
      seen.end = smaller(seen.end, seen.begin + chunk);
    }
    if (window > 0) seen.begin = larger(seen.begin, position - window + 1);
    if (first_key) seen.begin = larger(seen.begin, smaller(first_key[sequence * seq_q + i], position));
    return {inside(seen.begin - k_first), inside(seen.end - k_first)};
  }

  // Returns the first key of the document of query i < seq_q, as an index of the call's keys.
  PRIMUS_DEVICE int document(std::int64_t sequence, std::int64_t i) const {
    if (!first_key) return static_cast<int>(inside(-k_first));
    return static_cast<int>(inside(smaller(first_key[sequence * seq_q + i], q_first + i) - k_first));
  }

  // These two functions search the queries of a sequence. They return the first query whose range of keys
  // ends after `key`, and the first query whose range begins after `key`.
  PRIMUS_DEVICE std::int64_t first_to_end_behind(std::int64_t sequence, std::int64_t key) const {
    std::int64_t low = 0, high = seq_q;
    while (low < high) {
      const std::int64_t middle = (low + high) / 2;
      if (keys(sequence, middle).end > key) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return low;
  }
  PRIMUS_DEVICE std::int64_t first_to_begin_behind(std::int64_t sequence, std::int64_t key) const {
    std::int64_t low = 0, high = seq_q;
    while (low < high) {
      const std::int64_t middle = (low + high) / 2;
      if (keys(sequence, middle).begin > key) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return low;
  }
  PRIMUS_DEVICE std::int64_t inside(std::int64_t key) const { return larger(smaller(key, seq_k), 0); }
};

}  // namespace primus::turbo::PRIMUS_GPU
