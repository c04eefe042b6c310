#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "turbo/cpu/register.h"
#include "turbo/cpu/simd.h"
#include "turbo/top_logits/top_logits.h"

namespace primus::turbo::PRIMUS_CPU_ISA {
namespace {

struct Candidate {
  float value;
  std::int32_t id;
};

// Returns the drawn id, or -1 if the row has no order.
template <class T>
std::int64_t drawn(const T* logits, std::int64_t vocab, double number, double temperature) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::int64_t best = 0;
  bool ordered = true;
  for (std::int64_t id = 0; id < vocab; ++id) {
    const float value = to_float(logits[id]);
    ordered = ordered && value < kInfinity;  // also false for NaN
    if (value > to_float(logits[best])) best = id;
  }
  const auto top = static_cast<double>(to_float(logits[best]));
  if (!ordered || std::isinf(top)) return -1;
  if (temperature == 0) return best;
  const auto weight = [&](std::int64_t id) {
    return std::exp((static_cast<double>(to_float(logits[id])) - top) / temperature);
  };
  double total = 0;
  for (std::int64_t id = 0; id < vocab; ++id) total += weight(id);
  const double target = number * total;
  double sum = 0;
  std::int64_t last = 0;
  for (std::int64_t id = 0; id < vocab; ++id) {
    const double own = weight(id);
    if (own <= 0) continue;
    last = id;
    sum += own;
    if (sum > target) break;
  }
  return last;  // because of rounding, the sum may stay just below the target
}

void draw(CpuContext& context, const TopLogits& a) {
  with_float_type(a.logits.dtype, [&](auto tag) {
    using T = decltype(tag);
    const std::int64_t width = a.logits.cols();
    // The exponential of an element takes about as long as reading 64 bytes.
    parallel_ranges(context, a.logits.rows(), width * 64, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const T* logits = context.data<const T>(a.logits) + row * width;
        const double* how = context.data<const double>(a.draws) + row * 2;
        const std::int64_t id = drawn(logits, a.vocab, how[0], how[1]);
        context.data<std::int32_t>(a.ids)[row] = static_cast<std::int32_t>(id);
        context.data<float>(a.values)[row] = id < 0 ? 0 : to_float(logits[id]);
      }
    });
  });
}

void top_logits(CpuContext& context, const TopLogits& a) {
  if (!a.draws.absent()) return draw(context, a);
  with_float_type(a.logits.dtype, [&](auto tag) {
    using T = decltype(tag);
    const std::int64_t k = a.ids.cols(), width = a.logits.cols();
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    parallel_ranges(context, a.logits.rows(), width * sizeof(T), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const T* logits = context.data<const T>(a.logits) + row * width;
        float* values = context.data<float>(a.values) + row * k;
        std::int32_t* ids = context.data<std::int32_t>(a.ids) + row * k;
        std::array<Candidate, TopLogits::kMax> best;  // sorted, best first
        std::int64_t found = 0;
        bool ordered = true;
        for (std::int64_t id = 0; id < a.vocab; ++id) {
          const float value = to_float(logits[id]);
          ordered = ordered && value < kInfinity;  // also false for NaN
          if (found == k && !(value > best[k - 1].value)) continue;
          std::int64_t place = found < k ? found++ : k - 1;
          for (; place > 0 && value > best[place - 1].value; --place) best[place] = best[place - 1];
          best[place] = {value, static_cast<std::int32_t>(id)};
        }
        ordered = ordered && best[0].value > -kInfinity;
        for (std::int64_t i = 0; i < k; ++i) {
          values[i] = best[i].value;
          ids[i] = ordered ? best[i].id : -1;
        }
      }
    });
  });
}

}  // namespace

void register_top_logits(KernelTable& table) { table.add<TopLogits, CpuContext, &top_logits>(); }

}  // namespace primus::turbo::PRIMUS_CPU_ISA
