#include <algorithm>
#include <bit>
#include <utility>

#include "turbo/cpu/register.h"
#include "turbo/cpu/simd.h"
#include "turbo/moe_permute/moe_permute.h"

namespace primus::turbo::PRIMUS_CPU_ISA {
namespace {

// Prefetches a row, because the hardware cannot predict the order in which a plan reads rows.
template <class T>
PRIMUS_INLINE void fetch_row(const T* row, std::int64_t elements) {
  constexpr auto kLine = static_cast<std::int64_t>(64 / sizeof(T));
  for (std::int64_t i = 0; i < elements; i += kLine) __builtin_prefetch(row + i);
}

// Selects the slots that an expert keeps if the expert has more slots than its capacity.
class Keeping {
 public:
  Keeping(const PlanRouting& a, const float* weights)
      : weights_(weights),
        sequences_(a.sequences),
        slots_(a.experts.elements() / a.sequences),
        top_k_(a.experts.shape[1]),
        capacity_(a.capacity) {}

  // Moves the slots that the expert keeps to the front of slots[0 .. count), in slot order.
  void operator()(std::int32_t* slots, std::int64_t count) const {
    if (!weights_ && sequences_ == 1) return;
    std::nth_element(slots, slots + capacity_, slots + count, [this](std::int32_t x, std::int32_t y) {
      return bits(x) != bits(y) ? bits(x) > bits(y) : place(x) < place(y);
    });
    std::sort(slots, slots + capacity_);
  }

 private:
  // Returns a weight as an integer. Weights are not negative, so their bits have the same order as the
  // weights. NaN also has a defined position in this order.
  std::uint32_t bits(std::int32_t slot) const {
    return weights_ ? std::bit_cast<std::uint32_t>(weights_[slot]) : 0;
  }
  // Returns the position of a slot in the order by position, then sequence, then choice.
  std::int64_t place(std::int32_t slot) const {
    const std::int64_t in_sequence = slot % slots_;
    return (in_sequence / top_k_ * sequences_ + slot / slots_) * top_k_ + in_sequence % top_k_;
  }

  const float* weights_;
  std::int64_t sequences_, slots_, top_k_, capacity_;  // slots_: number of slots per sequence
};

// Writes the two parts of a complete plan: `head` and `rest`.
void split_plan(const CpuContext& context, const PlanRouting& a) {
  const RoutingPlan plan = a.parts_of(a.plan), head = a.parts_of(a.head), rest = a.parts_of(a.rest);
  const auto list = [&](const Tensor& tensor) { return context.data<std::int32_t>(tensor); };
  const std::int32_t* offsets = list(plan.offsets);
  const std::int64_t space = head.slots.elements();
  std::int32_t cut = 0;
  for (std::int64_t e = 1; e <= a.expert_count && offsets[e] <= space; ++e) cut = offsets[e];
  for (std::int64_t e = 0; e <= a.expert_count; ++e) {
    list(head.offsets)[e] = std::min(offsets[e], cut);
    list(rest.offsets)[e] = std::max(offsets[e], cut) - cut;
  }
  for (std::int64_t slot = 0; slot < a.experts.elements(); ++slot) {
    const std::int32_t row = list(plan.rows)[slot];
    list(head.rows)[slot] = row < cut ? row : -1;
    list(rest.rows)[slot] = row < cut ? -1 : row - cut;
  }
  const std::int32_t end = offsets[a.expert_count];
  std::copy_n(list(plan.slots), cut, list(head.slots));
  std::copy_n(list(plan.tokens), cut, list(head.tokens));
  std::copy(list(plan.slots) + cut, list(plan.slots) + end, list(rest.slots));
  std::copy(list(plan.tokens) + cut, list(plan.tokens) + end, list(rest.tokens));
}

// Sorts by counting, on one thread. One thread is fast enough, because it reads only four bytes per slot,
// while the products read entire rows.
void plan_routing(CpuContext& context, const PlanRouting& a) {
  const std::int64_t count = a.experts.elements(), experts = a.expert_count;
  const RoutingPlan plan(a.plan, experts, a.experts.shape[0], a.experts.shape[1]);
  const auto* expert_of = context.data<std::int32_t>(a.experts);
  const float* weights = a.weights.absent() ? nullptr : context.data<float>(a.weights);
  const std::int32_t* kept_before = a.kept.absent() ? nullptr : context.data<std::int32_t>(a.kept);
  auto* offsets = context.data<std::int32_t>(plan.offsets);
  auto* rows = context.data<std::int32_t>(plan.rows);
  auto* slots = context.data<std::int32_t>(plan.slots);
  auto* tokens = context.data<std::int32_t>(plan.tokens);
  const auto top_k = static_cast<std::int32_t>(a.experts.shape[1]);

  // Returns the slot's expert as an index into this plan, or -1.
  const auto own = [=, first = a.first](std::int64_t slot) -> std::int64_t {
    const std::int64_t expert = expert_of[slot] - first;
    return expert >= 0 && expert < experts && (!kept_before || kept_before[slot] >= 0) ? expert : -1;
  };
  // offsets[e + 1] is first the number of slots of expert e. Then it is the next free row of expert e: it
  // starts at the first row of expert e and ends after the last row.
  std::fill(offsets, offsets + experts + 1, 0);
  for (std::int64_t slot = 0; slot < count; ++slot) {
    if (const std::int64_t expert = own(slot); expert >= 0) ++offsets[expert + 1];
  }
  std::int32_t begin = 0;
  for (std::int64_t e = 0; e < experts; ++e) begin += std::exchange(offsets[e + 1], begin);
  assert(begin <= plan.slots.elements());
  for (std::int64_t slot = 0; slot < count; ++slot) {
    if (const std::int64_t expert = own(slot); expert >= 0)
      slots[offsets[expert + 1]++] = static_cast<std::int32_t>(slot);
  }

  if (a.capacity > 0) {
    const Keeping keep(a, weights);
    std::int64_t from = 0;
    for (std::int64_t e = 0; e < experts; ++e) {
      const std::int64_t end = offsets[e + 1];
      std::int64_t kept = end - from;
      if (kept > a.capacity) {
        keep(slots + from, kept);
        kept = a.capacity;
      }
      std::copy(slots + from, slots + from + kept, slots + offsets[e]);
      offsets[e + 1] = static_cast<std::int32_t>(offsets[e] + kept);
      from = end;
    }
  }
  if (a.capacity > 0 || a.partial()) std::fill(rows, rows + count, -1);
  for (std::int32_t row = 0; row < offsets[experts]; ++row) {
    rows[slots[row]] = row;
    tokens[row] = slots[row] / top_k;
  }
  if (!a.head.absent()) split_plan(context, a);
}

// Runs on one thread, as plan_routing() does.
void plan_dispatch(CpuContext& context, const PlanDispatch& a) {
  const std::int64_t tokens = a.tokens(), top_k = a.experts.shape[1], rows = a.held_rows();
  const auto* experts = context.data<std::int32_t>(a.experts);
  const std::int32_t* kept = a.kept.absent() ? nullptr : context.data<std::int32_t>(a.kept);
  const std::int32_t* held = a.held.absent() ? nullptr : context.data<std::int32_t>(a.held);
  const DispatchPlan plan = a.parts();
  const auto list = [&](const Tensor& tensor) { return context.data<std::int32_t>(tensor); };
  // Returns whether one of the ranks of `peer` has the slot's expert.
  const auto chosen = [&](std::int64_t slot, std::int64_t peer) {
    const std::int64_t of_expert = experts[slot] / a.experts_of_rank * a.ranks_of_expert;
    const std::int64_t of_peer = a.first + peer * a.span;
    return (!kept || kept[slot] >= 0) && of_expert < of_peer + a.span &&
           of_peer < of_expert + a.ranks_of_expert;
  };
  const auto goes_to = [&](std::int64_t token, std::int64_t peer) {
    bool any = false;
    for (std::int64_t k = 0; k < top_k; ++k) any = any || chosen(token * top_k + k, peer);
    return any;
  };
  for (std::int64_t peer = 0; peer < a.ranks; ++peer) {
    const std::int64_t first = peer * a.maximum;
    std::int64_t out = first, in = first;
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::int64_t token = held ? held[row] : row;
      const bool sends = token >= 0 && goes_to(a.rank * tokens + token, peer);
      list(plan.parts)[row * a.ranks + peer] = sends ? static_cast<std::int32_t>(out) : -1;
      if (sends) list(plan.sent)[out++] = static_cast<std::int32_t>(row);
    }
    for (std::int64_t t = 0; t < tokens; ++t) {
      const std::int64_t other = peer * tokens + t;
      const bool receives = goes_to(other, a.rank);
      list(plan.places)[other] = receives ? static_cast<std::int32_t>(in) : -1;
      if (!receives) continue;
      for (std::int64_t k = 0; k < top_k; ++k) {
        const std::int64_t slot = other * top_k + k;
        list(plan.choices)[in * top_k + k] = chosen(slot, a.rank) ? experts[slot] : -1;
      }
      list(plan.sources)[in++] = static_cast<std::int32_t>(other);
    }
    assert(out <= first + a.maximum && in <= first + a.maximum);
    list(plan.sends)[peer] = static_cast<std::int32_t>(out - first);
    list(plan.receives)[peer] = static_cast<std::int32_t>(in - first);
    std::fill(list(plan.sent) + out, list(plan.sent) + first + a.maximum, -1);
    std::fill(list(plan.sources) + in, list(plan.sources) + first + a.maximum, -1);
    std::fill(list(plan.choices) + in * top_k, list(plan.choices) + (first + a.maximum) * top_k, -1);
  }
}

void gather_rows(CpuContext& context, const GatherRows& a) {
  with_float_type(a.x.dtype, [&](auto tag) {
    using T = decltype(tag);
    const std::int64_t hidden = a.x.cols(), top_k = a.rows.shape[1];
    const std::int64_t used = context.data<std::int32_t>(a.offsets)[a.offsets.elements() - 1];
    const auto* slots = context.data<std::int32_t>(a.slots);
    const float* weights = context.data<float>(a.weights);
    parallel_ranges(context, used, 2 * hidden * sizeof(T), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        T* out = context.data<T>(a.out) + row * hidden;
        const auto row_of_x = [&](std::int64_t r) {
          return context.data<T>(a.x) + slots[r] / top_k * hidden;
        };
        const T* x = row_of_x(row);
        if (row + 1 < used) fetch_row(row_of_x(row + 1), hidden);
        const float w = weights[slots[row]];
        PRIMUS_SIMD()
        for (std::int64_t i = 0; i < hidden; ++i) out[i] = from_float<T>(w * to_float(x[i]));
      }
    });
  });
}

void combine_rows(CpuContext& context, const CombineRows& a) {
  constexpr std::int64_t kColumns = 256;
  with_float_type(a.x.dtype, [&](auto tag) {
    using T = decltype(tag);
    const std::int64_t hidden = a.x.cols(), top_k = a.rows.shape[1];
    const float* weights = a.weights.absent() ? nullptr : context.data<float>(a.weights);
    const T* previous = a.previous.absent() ? nullptr : context.data<T>(a.previous);
    const T* more = a.more.absent() ? nullptr : context.data<T>(a.more);
    const std::int32_t* more_rows = more ? context.data<std::int32_t>(a.more_rows) : nullptr;
    const auto row_of = [&](std::int64_t slot) -> const T* {
      const std::int32_t row = context.data<std::int32_t>(a.rows)[slot];
      if (row >= 0) return context.data<T>(a.x) + row * hidden;
      return more && more_rows[slot] >= 0 ? more + more_rows[slot] * hidden : nullptr;
    };
    const std::int64_t bytes = (top_k + 2) * hidden * static_cast<std::int64_t>(sizeof(T));
    parallel_ranges(context, a.out.rows(), bytes, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t token = begin; token < end; ++token) {
        if (token + 1 < end) {
          for (std::int64_t k = 0; k < top_k; ++k)
            if (const T* row = row_of((token + 1) * top_k + k)) fetch_row(row, hidden);
        }
        for (std::int64_t column = 0; column < hidden; column += kColumns) {
          const std::int64_t width = std::min(kColumns, hidden - column), at = token * hidden + column;
          float sum[kColumns] = {};
          if (previous) {
            for (std::int64_t i = 0; i < width; ++i) sum[i] = to_float(previous[at + i]);
          }
          for (std::int64_t k = 0; k < top_k; ++k) {
            const T* row = row_of(token * top_k + k);
            if (!row) continue;
            const float w = weights ? weights[token * top_k + k] : 1.0F;
            const T* x = row + column;
            PRIMUS_SIMD()
            for (std::int64_t i = 0; i < width; ++i) sum[i] = multiply_add(w, to_float(x[i]), sum[i]);
          }
          T* out = context.data<T>(a.out) + at;
          PRIMUS_SIMD()
          for (std::int64_t i = 0; i < width; ++i) out[i] = from_float<T>(sum[i]);
        }
      }
    });
  });
}

void row_dots(CpuContext& context, const RowDots& a) {
  with_float_type(a.by_token.dtype, [&](auto tag) {
    using T = decltype(tag);
    const std::int64_t hidden = a.by_token.cols(), top_k = a.rows.shape[1];
    const float* previous = a.previous.absent() ? nullptr : context.data<float>(a.previous);
    const auto* rows = context.data<std::int32_t>(a.rows);
    float* out = context.data<float>(a.out);
    const std::int64_t bytes = 2 * hidden * static_cast<std::int64_t>(sizeof(T));
    parallel_ranges(context, a.rows.elements(), bytes, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t slot = begin; slot < end; ++slot) {
        float sum = previous ? previous[slot] : 0.0F;
        if (slot + 2 < end && rows[slot + 2] >= 0)
          fetch_row(context.data<T>(a.by_row) + rows[slot + 2] * hidden, hidden);
        if (rows[slot] >= 0) {
          const T* x = context.data<T>(a.by_token) + slot / top_k * hidden;
          const T* y = context.data<T>(a.by_row) + rows[slot] * hidden;
          sum += sum_terms(hidden, [&](std::int64_t i) { return to_float(x[i]) * to_float(y[i]); });
        }
        out[slot] = sum;
      }
    });
  });
}

}  // namespace

void register_moe_permute(KernelTable& table) {
  table.add<PlanRouting, CpuContext, &plan_routing>();
  table.add<PlanDispatch, CpuContext, &plan_dispatch>();
  table.add<GatherRows, CpuContext, &gather_rows>();
  table.add<CombineRows, CpuContext, &combine_rows>();
  table.add<RowDots, CpuContext, &row_dots>();
}

}  // namespace primus::turbo::PRIMUS_CPU_ISA
