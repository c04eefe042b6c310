#include "turbo/gpu/loops.h"
#include "turbo/gpu/numbering.h"
#include "turbo/gpu/reduce.h"
#include "turbo/gpu/register.h"
#include "turbo/moe_permute/moe_permute.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

// ---- The plan: one block per expert -------------------------------------------------------------

// Sort keys of slots. An expert with more slots than its capacity keeps the slots with the largest keys. A
// key is larger if the weight is larger or, for equal weights, if the slot is earlier (by position, sequence,
// choice). No two slots have equal keys.
struct SlotKeys {
  const float* weights;  // may be null
  std::int64_t sequences, slots_per_sequence, top_k;

  PRIMUS_DEVICE std::uint64_t operator()(std::int64_t slot) const {
    const std::int64_t in_sequence = slot % slots_per_sequence;
    const std::int64_t place =
        (in_sequence / top_k * sequences + slot / slots_per_sequence) * top_k + in_sequence % top_k;
    // Weights are not negative, so their bits, as integers, have the same order as the weights. NaN also has
    // a defined position in this order.
    const std::uint64_t high = weights ? std::bit_cast<std::uint32_t>(weights[slot]) : 0;
    return high << 32 | static_cast<std::uint32_t>(~static_cast<std::uint32_t>(place));
  }
};

// Number of adjacent slots that a thread loads at once, so that the loads overlap.
constexpr int kSlotsTogether = 8;

// The slots that get a row in a plan.
struct Choices {
  const std::int32_t* experts;
  const std::int32_t* kept;  // may be null
  std::int64_t first;

  // Returns a bit mask for kSlotsTogether slots from `begin` on. A bit is set if the slot has a row of this
  // expert.
  PRIMUS_DEVICE std::uint32_t among(std::int64_t begin, std::int64_t count, std::int64_t expert) const {
    std::int32_t of_slot[kSlotsTogether];
    PRIMUS_UNROLL
    for (int i = 0; i < kSlotsTogether; ++i) of_slot[i] = begin + i < count ? experts[begin + i] : first - 1;
    std::uint32_t chosen = 0;
    PRIMUS_UNROLL
    for (int i = 0; i < kSlotsTogether; ++i) {
      if (of_slot[i] - first == expert && (!kept || kept[begin + i] >= 0)) chosen |= 1U << i;
    }
    return chosen;
  }
};

struct CountSlots {
  static constexpr int kThreads = 256;
  Choices choices;
  std::int32_t* offsets;   // offsets[e + 1] = number of slots that expert e keeps
  std::uint64_t* minimum;  // expert e keeps the slots with key >= minimum[e]
  SlotKeys keys;
  std::int64_t count, capacity;

  PRIMUS_DEVICE std::int64_t at_least(std::uint64_t key) const {
    std::int64_t found = 0;
    for (std::int64_t first = thread() * kSlotsTogether; first < count; first += kThreads * kSlotsTogether) {
      const std::uint32_t chosen = choices.among(first, count, block());
      PRIMUS_UNROLL
      for (int i = 0; i < kSlotsTogether; ++i) {
        if ((chosen >> i & 1U) != 0 && (key == 0 || keys(first + i) >= key)) ++found;
      }
    }
    return block_reduce<kThreads>(found);
  }

  PRIMUS_DEVICE void operator()() const {
    std::int64_t kept = at_least(0);
    std::uint64_t threshold = 0;
    if (capacity > 0 && kept > capacity) {
      // Finds the largest key k such that at least `capacity` slots have keys >= k, from the highest to the
      // lowest bit of k.
      for (int bit = 63; bit >= 0; --bit) {
        const std::uint64_t higher = threshold | std::uint64_t{1} << bit;
        if (at_least(higher) >= capacity) threshold = higher;
      }
      kept = capacity;
    }
    if (thread() == 0) {
      offsets[block() + 1] = static_cast<std::int32_t>(kept);
      minimum[block()] = threshold;
    }
  }
};

// Replaces the counts in offsets[e + 1] by the end of expert e's rows. Runs in one block, because there are
// few experts.
struct SumOffsets {
  static constexpr int kThreads = 256;
  std::int32_t* offsets;
  std::int64_t experts;

  PRIMUS_DEVICE void operator()() const {
    Numbering<kThreads>& numbering = shared<Numbering<kThreads>>();
    std::int32_t next = 0;
    for (std::int64_t begin = 0; begin < experts; begin += kThreads) {
      const std::int64_t e = begin + thread();
      const std::int32_t count = e < experts ? offsets[e + 1] : 0;
      const std::int32_t first = numbering(count, next);
      if (e < experts) offsets[e + 1] = first + count;
    }
    if (thread() == 0) offsets[0] = 0;
  }
};

struct NoRow {
  std::int32_t* rows;
  PRIMUS_DEVICE void operator()(std::int64_t slot) const { rows[slot] = -1; }
};

struct PlaceSlots {
  static constexpr int kThreads = 256;
  Choices choices;
  const std::int32_t* offsets;
  std::int32_t *rows, *slots, *tokens;
  const std::uint64_t* minimum;
  SlotKeys keys;
  std::int64_t count;

  PRIMUS_DEVICE void operator()() const {
    Numbering<kThreads>& numbering = shared<Numbering<kThreads>>();
    std::int32_t next = offsets[block()];
    const std::uint64_t threshold = minimum[block()];
    for (std::int64_t begin = 0; begin < count; begin += kThreads * kSlotsTogether) {
      const std::int64_t first = begin + thread() * kSlotsTogether;
      const std::uint32_t chosen = choices.among(first, count, block());
      std::uint32_t kept = 0;
      std::int32_t mine = 0;
      PRIMUS_UNROLL
      for (int i = 0; i < kSlotsTogether; ++i) {
        if ((chosen >> i & 1U) == 0 || (threshold != 0 && keys(first + i) < threshold)) continue;
        kept |= 1U << i;
        ++mine;
      }
      std::int32_t row = numbering(mine, next);
      PRIMUS_UNROLL
      for (int i = 0; i < kSlotsTogether; ++i) {
        const std::int64_t slot = first + i;
        if ((chosen >> i & 1U) == 0) continue;
        const bool keeps = (kept >> i & 1U) != 0;
        rows[slot] = keeps ? row : -1;
        if (!keeps) continue;
        slots[row] = static_cast<std::int32_t>(slot);
        tokens[row] = static_cast<std::int32_t>(slot / keys.top_k);
        ++row;
      }
    }
  }
};

// Computes a complete plan for few slots (as in decoding), without a capacity, in one block. A thread first
// processes one slot, and later one expert.
struct PlanFewSlots {
  static constexpr int kThreads = 512, kMaxSlots = kThreads, kWarps = kThreads / kWarp;
  static constexpr int kMaxExperts = 1024;
  using StartsEarly = void;
  Choices choices;
  std::int32_t *offsets, *rows, *slots, *tokens;
  std::int64_t count, experts, top_k;

  struct Memory {
    std::uint16_t of_warp[kWarps][kMaxExperts];  // number of slots per expert in each warp; later the sum of
                                                 // these numbers over earlier warps
    std::int32_t first_rows[kMaxExperts];
    Numbering<kThreads> numbering;
  };

  PRIMUS_DEVICE void operator()() const {
    Memory& m = shared<Memory>();
    let_next_begin();
    wait_for_previous();
    const int slot = thread();
    std::int32_t own = -1;
    if (slot < count && (!choices.kept || choices.kept[slot] >= 0)) {
      const std::int64_t expert = choices.experts[slot] - choices.first;
      if (expert >= 0 && expert < experts) own = static_cast<std::int32_t>(expert);
    }
    for (int w = 0; w < kWarps; ++w) {
      for (std::int64_t e = thread(); e < experts; e += kThreads) m.of_warp[w][e] = 0;
    }
    barrier();
    // `same` counts the slots of this warp that have the same expert as this slot. `before` counts those of
    // these slots that precede this slot. The last of these slots stores the count.
    int same = 0, before = 0;
    PRIMUS_UNROLL
    for (int mask = 0; mask < kWarp; ++mask) {
      const bool equal = from_lane_xor(own, mask) == own;
      same += equal ? 1 : 0;
      before += equal && (lane() ^ mask) < lane() ? 1 : 0;
    }
    if (own >= 0 && before == same - 1) m.of_warp[warp()][own] = static_cast<std::uint16_t>(same);
    barrier();
    std::int32_t next = 0;
    for (std::int64_t begin = 0; begin < experts; begin += kThreads) {
      const std::int64_t expert = begin + thread();
      std::int32_t sum = 0;
      if (expert < experts) {
        PRIMUS_UNROLL
        for (int w = 0; w < kWarps; ++w) {
          const std::int32_t of_warp = m.of_warp[w][expert];
          m.of_warp[w][expert] = static_cast<std::uint16_t>(sum);
          sum += of_warp;
        }
      }
      const std::int32_t first = m.numbering(sum, next);
      if (expert >= experts) continue;
      m.first_rows[expert] = first;
      offsets[expert + 1] = first + sum;
    }
    if (thread() == 0) offsets[0] = 0;
    barrier();
    if (slot >= count) return;
    const std::int32_t row = own < 0 ? -1 : m.first_rows[own] + m.of_warp[warp()][own] + before;
    rows[slot] = row;
    if (row < 0) return;
    slots[row] = slot;
    tokens[row] = static_cast<std::int32_t>(slot / top_k);
  }
};

// Writes the two parts of a complete plan: `head` and `rest`. Thread i writes the values for index i of every
// list.
struct SplitPlan {
  const std::int32_t *offsets, *rows, *slots, *tokens;
  std::int32_t *head_offsets, *head_rows, *head_slots, *head_tokens;
  std::int32_t *rest_offsets, *rest_rows, *rest_slots, *rest_tokens;
  std::int64_t experts, slot_count, space;

  PRIMUS_DEVICE void operator()(std::int64_t i) const {
    // Finds the end of the last expert that fits into `space`, by bisection, because offsets do not decrease.
    std::int64_t low = 0, high = experts;
    while (low < high) {
      const std::int64_t middle = (low + high + 1) / 2;
      if (offsets[middle] <= space) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    const std::int32_t cut = offsets[low];
    if (i <= experts) {
      head_offsets[i] = offsets[i] < cut ? offsets[i] : cut;
      rest_offsets[i] = offsets[i] < cut ? 0 : offsets[i] - cut;
    }
    if (i < slot_count) {
      const std::int32_t row = rows[i];
      head_rows[i] = row < cut ? row : -1;
      rest_rows[i] = row < cut ? -1 : row - cut;
    }
    if (i >= offsets[experts]) return;
    const bool first = i < cut;
    const std::int64_t to = first ? i : i - cut;
    (first ? head_slots : rest_slots)[to] = slots[i];
    (first ? head_tokens : rest_tokens)[to] = tokens[i];
  }
};

// Writes the two parts of a complete plan: `head` and `rest`.
void split_plan(Context& context, const PlanRouting& a) {
  const RoutingPlan plan = a.parts_of(a.plan), head = a.parts_of(a.head), rest = a.parts_of(a.rest);
  const auto list = [&](const Tensor& tensor) { return context.data<std::int32_t>(tensor); };
  const std::int64_t slot_count = a.experts.elements();
  for_each(
      context, std::max({slot_count, plan.slots.elements(), a.expert_count + 1}),
      SplitPlan{list(plan.offsets), list(plan.rows), list(plan.slots), list(plan.tokens), list(head.offsets),
                list(head.rows), list(head.slots), list(head.tokens), list(rest.offsets), list(rest.rows),
                list(rest.slots), list(rest.tokens), a.expert_count, slot_count, head.slots.elements()});
}

void make_plan(Context& context, const PlanRouting& a) {
  const RoutingPlan plan(a.plan, a.expert_count, a.experts.shape[0], a.experts.shape[1]);
  const std::int64_t count = a.experts.elements();
  const Choices choices{context.data<std::int32_t>(a.experts), optional<std::int32_t>(context, a.kept),
                        a.first};
  auto* const rows = context.data<std::int32_t>(plan.rows);
  auto* offsets = context.data<std::int32_t>(plan.offsets);
  if (a.capacity == 0 && count <= PlanFewSlots::kMaxSlots && a.expert_count <= PlanFewSlots::kMaxExperts) {
    return launch(
        context, 1,
        PlanFewSlots{choices, offsets, rows, context.data<std::int32_t>(plan.slots),
                     context.data<std::int32_t>(plan.tokens), count, a.expert_count, a.experts.shape[1]});
  }
  auto* minimum = partials<std::uint64_t>(context, a.expert_count);
  const SlotKeys keys{optional<float>(context, a.weights), a.sequences,
                      std::max<std::int64_t>(count / a.sequences, 1), a.experts.shape[1]};
  launch(context, a.expert_count, CountSlots{choices, offsets, minimum, keys, count, a.capacity});
  launch(context, 1, SumOffsets{offsets, a.expert_count});
  if (a.partial()) for_each(context, count, NoRow{rows});
  launch(context, a.expert_count,
         PlaceSlots{choices, offsets, rows, context.data<std::int32_t>(plan.slots),
                    context.data<std::int32_t>(plan.tokens), minimum, keys, count});
}

void plan_routing(Context& context, const PlanRouting& a) {
  make_plan(context, a);
  if (!a.head.absent()) split_plan(context, a);
}

// Each peer has two blocks: one block handles the rows sent to this peer, and the other block handles
// the rows received from this peer.
struct PlaceTokens {
  static constexpr int kThreads = 256;
  const std::int32_t* experts;
  const std::int32_t* kept;  // may be null
  const std::int32_t* held;  // may be null
  std::int32_t *sends, *receives, *sent, *parts, *sources, *places, *choices;
  std::int64_t tokens, rows, top_k, ranks, rank, maximum, experts_of_rank, ranks_of_expert, first_rank, span;

  // Returns whether one of the ranks of `peer` has the slot's expert.
  PRIMUS_DEVICE bool chosen(std::int64_t slot, std::int64_t peer) const {
    const std::int64_t of_expert = experts[slot] / experts_of_rank * ranks_of_expert;
    const std::int64_t of_peer = first_rank + peer * span;
    return (!kept || kept[slot] >= 0) && of_expert < of_peer + span && of_peer < of_expert + ranks_of_expert;
  }

  PRIMUS_DEVICE void operator()() const {
    Numbering<kThreads>& numbering = shared<Numbering<kThreads>>();
    const bool out = block() < ranks;
    const std::int64_t peer = out ? block() : block() - ranks, first = peer * maximum;
    const std::int64_t from = out ? rank : peer, to = out ? peer : rank, count = out ? rows : tokens;
    auto next = static_cast<std::int32_t>(first);
    for (std::int64_t begin = 0; begin < count; begin += kThreads) {
      const std::int64_t i = begin + thread();
      std::int64_t token = -1;  // numbered over all peers
      if (i < count) token = out && held ? held[i] : i;
      if (token >= 0) token += from * tokens;
      bool goes = false;
      for (std::int64_t k = 0; token >= 0 && k < top_k; ++k) goes = goes || chosen(token * top_k + k, to);
      const std::int32_t row = numbering(goes ? 1 : 0, next);
      if (i >= count) continue;
      if (out) {
        parts[i * ranks + peer] = goes ? row : -1;
        if (goes) sent[row] = static_cast<std::int32_t>(i);
        continue;
      }
      places[token] = goes ? row : -1;
      if (!goes) continue;
      sources[row] = static_cast<std::int32_t>(token);
      for (std::int64_t k = 0; k < top_k; ++k) {
        const std::int64_t slot = token * top_k + k;
        choices[row * top_k + k] = chosen(slot, rank) ? experts[slot] : -1;
      }
    }
    if (thread() == 0) (out ? sends : receives)[peer] = next - static_cast<std::int32_t>(first);
    for (std::int64_t row = next + thread(); row < first + maximum; row += kThreads) {
      (out ? sent : sources)[row] = -1;
      for (std::int64_t k = 0; !out && k < top_k; ++k) choices[row * top_k + k] = -1;
    }
  }
};

void plan_dispatch(Context& context, const PlanDispatch& a) {
  const DispatchPlan plan = a.parts();
  const auto list = [&](const Tensor& tensor) { return context.data<std::int32_t>(tensor); };
  launch(context, 2 * a.ranks,
         PlaceTokens{list(a.experts),
                     optional<std::int32_t>(context, a.kept),
                     optional<std::int32_t>(context, a.held),
                     list(plan.sends),
                     list(plan.receives),
                     list(plan.sent),
                     list(plan.parts),
                     list(plan.sources),
                     list(plan.places),
                     list(plan.choices),
                     a.tokens(),
                     a.held_rows(),
                     a.experts.shape[1],
                     a.ranks,
                     a.rank,
                     a.maximum,
                     a.experts_of_rank,
                     a.ranks_of_expert,
                     a.first,
                     a.span});
}

// ---- Rows ---------------------------------------------------------------------------------------

template <class T, int kCount>
struct Gather {
  const T* x;
  const std::int32_t* slots;
  const float* weights;
  T* out;
  std::int64_t hidden, top_k;

  PRIMUS_DEVICE void operator()(std::int64_t row, std::int64_t i) const {
    const std::int32_t slot = slots[row];
    const float w = weights[slot];
    float v[kCount];
    load<kCount>(x + slot / top_k * hidden + i, v);
    PRIMUS_UNROLL
    for (int k = 0; k < kCount; ++k) v[k] *= w;
    store<kCount>(out + row * hidden + i, v);
  }
};

void gather_rows(Context& context, const GatherRows& a) {
  with_float_type(a.x.dtype, [&](auto tag) {
    using T = decltype(tag);
    const T* x = context.data<T>(a.x);
    T* out = context.data<T>(a.out);
    with_vector<T>(rows_of_vectors<T>(a.x.cols(), x, out), [&](auto count) {
      for_each_of_used_rows<count>(
          context, a.out.rows(), context.data<std::int32_t>(a.offsets) + a.offsets.elements() - 1, a.x.cols(),
          Gather<T, count>{x, context.data<std::int32_t>(a.slots), context.data<float>(a.weights), out,
                           a.x.cols(), a.rows.shape[1]});
    });
  });
}

// `kTwo`: the rows are in two tensors.
template <class T, int kCount, bool kTwo>
struct Combine {
  const T *x, *more;
  const std::int32_t *rows, *more_rows;
  const float* weights;  // may be null
  const T* previous;     // may be null
  T* out;
  std::int64_t hidden, top_k;

  PRIMUS_DEVICE void operator()(std::int64_t token, std::int64_t i) const {
    float sum[kCount] = {};
    if (previous) load<kCount>(previous + token * hidden + i, sum);
    // Loads several rows at once, and adds them in order.
    constexpr int kTogether = 4;
    const std::int64_t end = (token + 1) * top_k;
    for (std::int64_t choice = token * top_k; choice < end; choice += kTogether) {
      std::int64_t row[kTogether];
      bool in_more[kTogether];
      float w[kTogether], v[kTogether][kCount];
      PRIMUS_UNROLL
      for (int j = 0; j < kTogether; ++j) {
        const bool there = choice + j < end;
        row[j] = there ? rows[choice + j] : -1;
        in_more[j] = kTwo && there && row[j] < 0;
        w[j] = there && weights ? weights[choice + j] : 1.0F;
      }
      if constexpr (kTwo) {
        PRIMUS_UNROLL
        for (int j = 0; j < kTogether; ++j) {
          if (in_more[j]) row[j] = more_rows[choice + j];
        }
      }
      PRIMUS_UNROLL
      for (int j = 0; j < kTogether; ++j) {
        if (row[j] >= 0) load<kCount>((in_more[j] ? more : x) + row[j] * hidden + i, v[j]);
      }
      PRIMUS_UNROLL
      for (int j = 0; j < kTogether; ++j) {
        if (row[j] < 0) continue;
        PRIMUS_UNROLL
        for (int k = 0; k < kCount; ++k) sum[k] = multiply_add(w[j], v[j][k], sum[k]);
      }
    }
    store<kCount>(out + token * hidden + i, sum);
  }
};

void combine_rows(Context& context, const CombineRows& a) {
  with_float_type(a.x.dtype, [&](auto tag) {
    using T = decltype(tag);
    const T *x = context.data<T>(a.x), *previous = optional<T>(context, a.previous);
    const T* more = optional<T>(context, a.more);
    T* out = context.data<T>(a.out);
    with_vector<T>(rows_of_vectors<T>(a.x.cols(), x, more, previous, out), [&](auto count) {
      const auto run = [&]<bool kTwo>() {
        for_each_of_rows<count>(context, a.out.rows(), a.x.cols(),
                                Combine<T, count, kTwo>{x, more, context.data<std::int32_t>(a.rows),
                                                        optional<std::int32_t>(context, a.more_rows),
                                                        optional<float>(context, a.weights), previous, out,
                                                        a.x.cols(), a.rows.shape[1]});
      };
      if (more) {
        run.template operator()<true>();
      } else {
        run.template operator()<false>();
      }
    });
  });
}

// A warp processes one slot.
template <class T>
struct Dots {
  static constexpr int kThreads = 256;
  static constexpr int kWarps = kThreads / kWarp;
  const T *by_token, *by_row;
  const std::int32_t* rows;
  const float* previous;  // may be null
  float* out;
  std::int64_t slots, hidden, top_k;

  PRIMUS_DEVICE void operator()() const {
    const std::int64_t slot = block() * kWarps + warp();
    if (slot >= slots) return;
    const std::int64_t row = rows[slot];
    float sum = 0;
    if (row >= 0) {
      const T *x = by_token + slot / top_k * hidden, *y = by_row + row * hidden;
      for (std::int64_t i = lane(); i < hidden; i += kWarp) {
        sum = multiply_add(to_float(x[i]), to_float(y[i]), sum);
      }
    }
    sum = warp_reduce(sum);
    if (lane() == 0) out[slot] = (previous ? previous[slot] : 0.0F) + sum;
  }
};

void row_dots(Context& context, const RowDots& a) {
  with_float_type(a.by_token.dtype, [&](auto tag) {
    using T = decltype(tag);
    const std::int64_t slots = a.rows.elements();
    launch(context, blocks_for(slots, Dots<T>::kWarps),
           Dots<T>{context.data<T>(a.by_token), context.data<T>(a.by_row), context.data<std::int32_t>(a.rows),
                   optional<float>(context, a.previous), context.data<float>(a.out), slots, a.by_token.cols(),
                   a.rows.shape[1]});
  });
}

}  // namespace

void register_moe_permute(KernelTable& table) {
  table.add<PlanRouting, Context, &plan_routing>();
  table.add<PlanDispatch, Context, &plan_dispatch>();
  table.add<GatherRows, Context, &gather_rows>();
  table.add<CombineRows, Context, &combine_rows>();
  table.add<RowDots, Context, &row_dots>();
}

}  // namespace primus::turbo::PRIMUS_GPU
