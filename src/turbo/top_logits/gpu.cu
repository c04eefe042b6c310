// First each block finds the top-k logits of a part of a row. Then one block per row merges the results of
// the parts.
#include "turbo/gpu/reduce.h"
#include "turbo/gpu/register.h"
#include "turbo/top_logits/top_logits.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

// A logit and its id as one number. Larger numbers come first in the result; 0 is less than the number of
// every logit.
using Ranked = std::uint64_t;

PRIMUS_DEVICE Ranked ranked(float value, std::int64_t id) {
  // Adding 0 turns -0 into 0, so that the id determines the order of -0 and 0.
  const auto bits = std::bit_cast<std::uint32_t>(value + 0.0F);
  const std::uint32_t order = bits >> 31U ? ~bits : bits | 0x80000000U;
  return static_cast<Ranked>(order) << 32U | (0xffffffffU - static_cast<std::uint32_t>(id));
}
PRIMUS_DEVICE float value_of(Ranked x) {
  const auto order = static_cast<std::uint32_t>(x >> 32U);
  return std::bit_cast<float>(order >> 31U ? order & 0x7fffffffU : ~order);
}
PRIMUS_DEVICE std::int32_t id_of(Ranked x) {
  return static_cast<std::int32_t>(0xffffffffU - static_cast<std::uint32_t>(x));
}
// Represents NaN and +infinity. kUnordered precedes every other number, so the first result tells whether a
// row has a NaN or +infinity.
constexpr Ranked kUnordered = ~Ranked{0};

struct Larger {
  PRIMUS_DEVICE Ranked operator()(Ranked a, Ranked b) const { return a > b ? a : b; }
};

constexpr int kOfThread = 8;
constexpr int kThreadsOfPart = 256;
constexpr std::int64_t kPart = kOfThread * kThreadsOfPart;

// Finds the k largest of the numbers of all threads, and calls write(i, number i) for them in descending
// order.
template <class Write>
PRIMUS_DEVICE void largest(Ranked (&mine)[kOfThread], std::int64_t k, Write write) {
  for (std::int64_t i = 0; i < k; ++i) {
    Ranked best = 0;
    PRIMUS_UNROLL
    for (const Ranked x : mine) best = Larger{}(best, x);
    best = block_reduce<kThreadsOfPart>(best, Larger{});
    if (thread() == 0) write(i, best);
    // All ids are different, so only one thread has this number and removes it. Several threads may have
    // kUnordered. They do not remove kUnordered, so every later iteration finds kUnordered again.
    if (best == kUnordered) continue;
    PRIMUS_UNROLL
    for (Ranked& x : mine) x = x == best ? 0 : x;
  }
}

template <class T>
struct TopOfParts {
  static constexpr int kThreads = kThreadsOfPart;
  using StartsEarly = void;
  const T* logits;
  Ranked* found;  // [rows, parts, k]
  std::int64_t width, vocab, parts, k;

  PRIMUS_DEVICE void operator()() const {
    let_next_begin();
    wait_for_previous();
    const std::int64_t row = block() / parts, first = block() % parts * kPart;
    Ranked mine[kOfThread];
    PRIMUS_UNROLL
    for (int i = 0; i < kOfThread; ++i) {
      const std::int64_t id = first + i * kThreads + thread();
      mine[i] = 0;
      if (id >= vocab) continue;
      const float value = to_float(logits[row * width + id]);
      mine[i] = value < infinity() ? ranked(value, id) : kUnordered;
    }
    Ranked* to = found + block() * k;
    largest(mine, k, [&](std::int64_t i, Ranked x) { to[i] = x; });
  }
};

struct TopOfRows {
  static constexpr int kThreads = kThreadsOfPart;
  using StartsEarly = void;
  const Ranked* found;
  float* values;
  std::int32_t* ids;
  std::int64_t count, k;  // count: number of candidates per row

  PRIMUS_DEVICE void operator()() const {
    let_next_begin();
    wait_for_previous();
    const Ranked* from = found + block() * count;
    float* to_values = values + block() * k;
    std::int32_t* to_ids = ids + block() * k;
    Ranked last = kUnordered;
    bool ordered = true;
    for (std::int64_t i = 0; i < k; ++i) {
      Ranked best = 0;
      for (std::int64_t j = thread(); j < count; j += kThreads) {
        const Ranked x = from[j];
        if (i == 0 || x < last) best = Larger{}(best, x);
      }
      best = block_reduce<kThreads>(best, Larger{});
      if (i == 0) ordered = best != kUnordered && value_of(best) > -infinity();
      last = best;
      if (thread() != 0) continue;
      to_values[i] = value_of(best);
      to_ids[i] = ordered ? id_of(best) : -1;
    }
  }
};

std::int64_t parts_of(const TopLogits& a) { return blocks_for(a.vocab, kPart); }

std::int64_t workspace(Context&, const TopLogits& a) {
  return a.logits.rows() * parts_of(a) * a.ids.cols() * static_cast<std::int64_t>(sizeof(Ranked));
}

void top_logits(Context& context, const TopLogits& a) {
  const std::int64_t rows = a.logits.rows(), k = a.ids.cols(), parts = parts_of(a);
  auto* found = context.data<Ranked>(a.workspace);
  with_float_type(a.logits.dtype, [&](auto tag) {
    using T = decltype(tag);
    launch(context, rows * parts,
           TopOfParts<T>{context.data<T>(a.logits), found, a.logits.cols(), a.vocab, parts, k});
  });
  launch(context, rows,
         TopOfRows{found, context.data<float>(a.values), context.data<std::int32_t>(a.ids), parts * k, k});
}

}  // namespace

void register_top_logits(KernelTable& table) { table.add<TopLogits, Context, &top_logits, &workspace>(); }

}  // namespace primus::turbo::PRIMUS_GPU
