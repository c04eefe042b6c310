// Groups tokens with equal ids: sorts the positions of all tokens by id, and by position within an id. The
// radix sort processes 8 bits per pass. It is deterministic, and linear in the number of tokens.
#pragma once

#include <bit>
#include <utility>

#include "turbo/gpu/loops.h"

namespace primus::turbo::PRIMUS_GPU {

// The tokens for which a table has rows: [first, first + rows) of the vocabulary. Tokens are sorted by their
// row of the table, which is here called the id.
struct TokenRows {
  std::int64_t first, rows, vocabulary;
};

// An entry of the sorted list. Tokens without a row get the id `rows`.
struct TokenPlace {
  std::int32_t id, position;
};

namespace token_sort {

inline constexpr int kDigits = 256, kBits = 8;
inline constexpr std::int64_t kRun = 1024;  // tokens per block

PRIMUS_DEVICE int digit_of(TokenPlace place, int shift) { return (place.id >> shift) & (kDigits - 1); }

struct Prepare {
  const std::int32_t* tokens;
  TokenPlace* places;
  TokenRows table;
  Fault* fault;

  PRIMUS_DEVICE void operator()(std::int64_t i) const {
    const std::int32_t token = tokens[i];
    if (token < 0 || token >= table.vocabulary)
      report_fault(fault, Fault::Kind::kTokenOutsideVocabulary, token, table.vocabulary);
    const std::int64_t row = token - table.first;
    places[i] = {static_cast<std::int32_t>(row >= 0 && row < table.rows ? row : table.rows),
                 static_cast<std::int32_t>(i)};
  }
};

// counts[digit][block] = the number of the block's entries that have this digit.
struct Count {
  static constexpr int kThreads = kDigits;
  const TokenPlace* places;
  std::int32_t* counts;
  std::int64_t n;
  int shift;

  struct Shared {
    std::int32_t of_digit[kDigits];
  };

  PRIMUS_DEVICE void operator()() const {
    Shared& own = shared<Shared>();
    own.of_digit[thread()] = 0;
    barrier();
    const std::int64_t begin = block() * kRun, end = smaller(begin + kRun, n);
    for (std::int64_t i = begin + thread(); i < end; i += kThreads) {
      atomic_add(&own.of_digit[digit_of(places[i], shift)], 1);
    }
    barrier();
    counts[thread() * blocks() + block()] = own.of_digit[thread()];
  }
};

// Replaces counts by their exclusive prefix sums. A prefix sum is the offset of a block's entries with a
// digit. Runs in one block.
struct Sum {
  static constexpr int kThreads = kDigits;
  std::int32_t* counts;
  std::int64_t runs;

  struct Shared {
    std::int32_t sums[2][kDigits];
  };

  PRIMUS_DEVICE void operator()() const {
    Shared& both = shared<Shared>();
    std::int32_t* const own = counts + thread() * runs;
    std::int32_t total = 0;
    for (std::int64_t run = 0; run < runs; ++run) total += own[run];
    both.sums[0][thread()] = total;
    int now = 0;
    for (int distance = 1; distance < kDigits; distance *= 2) {
      barrier();
      const std::int32_t before = thread() >= distance ? both.sums[now][thread() - distance] : 0;
      both.sums[1 - now][thread()] = both.sums[now][thread()] + before;
      now = 1 - now;
    }
    barrier();
    std::int32_t sum = both.sums[now][thread()] - total;
    for (std::int64_t run = 0; run < runs; ++run) {
      const std::int32_t count = own[run];
      own[run] = sum;
      sum += count;
    }
  }
};

// Moves the entries of each block to the offsets of their digits. Entries with equal digits keep their order.
struct Move {
  static constexpr int kThreads = kDigits;
  const TokenPlace* from;
  TokenPlace* to;
  const std::int32_t* counts;
  std::int64_t n;
  int shift;

  struct Shared {
    std::int32_t next[kDigits];
    int digits[kThreads];  // digits of the entries that the block moves at a time
  };

  PRIMUS_DEVICE void operator()() const {
    Shared& own = shared<Shared>();
    own.next[thread()] = counts[thread() * blocks() + block()];
    const std::int64_t begin = block() * kRun, end = smaller(begin + kRun, n);
    for (std::int64_t first = begin; first < end; first += kThreads) {
      const std::int64_t i = first + thread();
      const TokenPlace place = i < end ? from[i] : TokenPlace{};
      const int digit = i < end ? digit_of(place, shift) : -1;
      own.digits[thread()] = digit;
      barrier();
      if (digit >= 0) {
        int before = 0;
        for (int other = 0; other < thread(); ++other) before += own.digits[other] == digit ? 1 : 0;
        to[own.next[digit] + before] = place;
      }
      barrier();
      if (digit >= 0) atomic_add(&own.next[digit], 1);
      barrier();
    }
  }
};

}  // namespace token_sort

// Returns the bytes of workspace for sorting `n` tokens.
inline std::int64_t token_sort_workspace(std::int64_t n) {
  using namespace token_sort;
  return 2 * n * static_cast<std::int64_t>(sizeof(TokenPlace)) +
         kDigits * blocks_for(n, kRun) * static_cast<std::int64_t>(sizeof(std::int32_t));
}

// Sorts the tokens and returns the sorted list, which is in the workspace.
inline const TokenPlace* sort_tokens(Context& context, const std::int32_t* tokens, std::int64_t n,
                                     const TokenRows& table, std::byte* workspace) {
  using namespace token_sort;
  auto* from = reinterpret_cast<TokenPlace*>(workspace);
  auto* to = from + n;
  auto* const counts = reinterpret_cast<std::int32_t*>(to + n);
  const std::int64_t runs = blocks_for(n, kRun);
  for_each(context, n, Prepare{tokens, from, table, faults(context)});
  const int bits = std::bit_width(static_cast<std::uint64_t>(table.rows));
  for (int shift = 0; shift < bits; shift += kBits) {
    launch(context, runs, Count{from, counts, n, shift});
    launch(context, runs == 0 ? 0 : 1, Sum{counts, runs});
    launch(context, runs, Move{from, to, counts, n, shift});
    std::swap(from, to);
  }
  return from;
}

}  // namespace primus::turbo::PRIMUS_GPU
