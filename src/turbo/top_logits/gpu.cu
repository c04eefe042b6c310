// First each block finds the top-k logits of a part of a row. Then one block per row merges the results of
// the parts. A draw works in the same way: each block adds the weights of a part of a row, and then one block
// per row chooses a part, and an id of this part.
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

// ---- Draws --------------------------------------------------------------------------------------

// The weights of a part of a row. An id has the weight exp((logit - largest) / temperature), where `largest`
// is the largest logit of the part. It is +infinity if the part has a NaN or +infinity.
struct Weights {
  double sum;
  float largest;
};

// Returns exp((value - largest) / temperature); at temperature 0, 1 for the largest value and 0 for others.
PRIMUS_DEVICE float weight_of(float value, float largest, double temperature) {
  if (temperature == 0 || value == largest) return value == largest ? 1.0F : 0.0F;
  // A smaller divisor could be 0 in fp32.
  const auto divisor = static_cast<float>(temperature);
  return ::expf((value - largest) / ::fmaxf(divisor, 0x1p-126F));
}

// The logits of a part that a thread reads: kOfThread consecutive logits, -infinity after the vocabulary.
template <class T>
PRIMUS_DEVICE void read_part(const T* row, std::int64_t part, std::int64_t vocab, float (&to)[kOfThread]) {
  const std::int64_t first = part * kPart + thread() * kOfThread;
  PRIMUS_UNROLL
  for (int i = 0; i < kOfThread; ++i) to[i] = first + i < vocab ? to_float(row[first + i]) : -infinity();
}

template <class T>
struct WeightsOfParts {
  static constexpr int kThreads = kThreadsOfPart;
  using StartsEarly = void;
  const T* logits;
  const double* draws;
  Weights* weights;  // [rows, parts]
  std::int64_t width, vocab, parts;

  PRIMUS_DEVICE void operator()() const {
    let_next_begin();
    wait_for_previous();
    const std::int64_t row = block() / parts;
    float mine[kOfThread], largest = -infinity();
    read_part(logits + row * width, block() % parts, vocab, mine);
    PRIMUS_UNROLL
    for (const float value : mine) {
      // NaN does not compare as smaller, and fmaxf ignores NaN.
      largest = ::fmaxf(largest, value < infinity() ? value : infinity());
    }
    largest = block_reduce<kThreads>(largest, Maximum{});
    double sum = 0;
    if (largest > -infinity() && largest < infinity()) {
      PRIMUS_UNROLL
      for (const float value : mine)
        sum += static_cast<double>(weight_of(value, largest, draws[row * 2 + 1]));
    }
    sum = block_reduce<kThreads>(sum);
    if (thread() == 0) weights[block()] = {sum, largest};
  }
};

template <class T>
struct DrawOfRows {
  static constexpr int kThreads = kThreadsOfPart;
  static constexpr int kWarps = kThreads / kWarp;
  using StartsEarly = void;
  const T* logits;
  const double* draws;
  const Weights* weights;
  float* values;
  std::int32_t* ids;
  std::int64_t width, vocab, parts;

  struct Memory {
    double sums_of_warps[kWarps];
    std::int64_t index;
    double before;
  };
  // An index, and the sum of the weights before it.
  struct Picked {
    std::int64_t index;
    double before;
  };

  // Each thread has `count` consecutive weights. Returns the first index at which the sum of the weights
  // exceeds `target`, among weights above 0; the last such index if the sum stays below the target.
  template <class Weight>
  PRIMUS_DEVICE static Picked pick(std::int64_t count, const Weight& weight, double target) {
    Memory& memory = shared<Memory>();
    double own = 0;
    for (std::int64_t i = 0; i < count; ++i) own += weight(thread() * count + i);
    double upto = own;
    for (int distance = 1; distance < kWarp; distance *= 2) {
      const double before = from_lane_before(upto, distance);
      if (lane() >= distance) upto += before;
    }
    barrier();
    if (lane() == kWarp - 1) memory.sums_of_warps[warp()] = upto;
    barrier();
    double of_warps = 0;
    for (int w = 0; w < warp(); ++w) of_warps += memory.sums_of_warps[w];
    upto += of_warps;
    // The first thread whose sum exceeds the target; otherwise the last thread with a weight.
    constexpr Ranked kExceeds = Ranked{1} << 32U;
    const auto number = static_cast<Ranked>(thread());
    Ranked mine = 0;
    if (own > 0) mine = upto > target ? kExceeds + (kThreads - number) : number + 1;
    const Ranked best = block_reduce<kThreads>(mine, Larger{});
    if (best == mine && mine > 0) {
      double sum = upto - own;
      Picked picked{thread() * count, sum};
      for (std::int64_t i = 0; i < count; ++i) {
        const double w = weight(thread() * count + i);
        if (w <= 0) continue;
        picked = {thread() * count + i, sum};
        sum += w;
        if (sum > target) break;
      }
      memory.index = picked.index, memory.before = picked.before;
    }
    barrier();
    return {memory.index, memory.before};
  }

  PRIMUS_DEVICE void operator()() const {
    let_next_begin();
    wait_for_previous();
    const std::int64_t row = block();
    const Weights* of_row = weights + row * parts;
    const double number = draws[row * 2], temperature = draws[row * 2 + 1];
    float largest = -infinity();
    for (std::int64_t j = thread(); j < parts; j += kThreads) largest = ::fmaxf(largest, of_row[j].largest);
    largest = block_reduce<kThreads>(largest, Maximum{});
    if (!(largest > -infinity() && largest < infinity())) {
      if (thread() == 0) values[row] = 0, ids[row] = -1;
      return;
    }
    const auto of_part = [&](std::int64_t j) {
      if (j >= parts || of_row[j].sum == 0) return 0.0;
      return of_row[j].sum * static_cast<double>(weight_of(of_row[j].largest, largest, temperature));
    };
    double total = 0;
    for (std::int64_t j = thread(); j < parts; j += kThreads) total += of_part(j);
    total = block_reduce<kThreads>(total);
    const double target = temperature == 0 ? 0 : number * total;
    const Picked part = pick((parts + kThreads - 1) / kThreads, of_part, target);
    float mine[kOfThread];
    read_part(logits + row * width, part.index, vocab, mine);
    const float of_largest = of_row[part.index].largest;
    const auto scale = static_cast<double>(weight_of(of_largest, largest, temperature));
    const Picked id = pick(
        kOfThread,
        [&](std::int64_t i) {
          return scale * static_cast<double>(weight_of(mine[i % kOfThread], of_largest, temperature));
        },
        target - part.before);
    if (thread() != 0) return;
    ids[row] = static_cast<std::int32_t>(part.index * kPart + id.index);
    values[row] = to_float(logits[row * width + part.index * kPart + id.index]);
  }
};

std::int64_t parts_of(const TopLogits& a) { return blocks_for(a.vocab, kPart); }

void draw(Context& context, const TopLogits& a) {
  const std::int64_t rows = a.logits.rows(), width = a.logits.cols(), parts = parts_of(a);
  auto* weights = context.data<Weights>(a.workspace);
  const double* draws = context.data<double>(a.draws);
  with_float_type(a.logits.dtype, [&](auto tag) {
    using T = decltype(tag);
    const T* logits = context.data<T>(a.logits);
    launch(context, rows * parts, WeightsOfParts<T>{logits, draws, weights, width, a.vocab, parts});
    launch(context, rows,
           DrawOfRows<T>{logits, draws, weights, context.data<float>(a.values),
                         context.data<std::int32_t>(a.ids), width, a.vocab, parts});
  });
}

std::int64_t workspace(Context&, const TopLogits& a) {
  if (!a.draws.absent()) return a.logits.rows() * parts_of(a) * static_cast<std::int64_t>(sizeof(Weights));
  return a.logits.rows() * parts_of(a) * a.ids.cols() * static_cast<std::int64_t>(sizeof(Ranked));
}

void top_logits(Context& context, const TopLogits& a) {
  if (!a.draws.absent()) return draw(context, a);
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
