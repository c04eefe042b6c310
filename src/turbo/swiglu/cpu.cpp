#include <algorithm>
#include <type_traits>

#include "turbo/cpu/glu.h"
#include "turbo/cpu/register.h"
#include "turbo/cpu/simd.h"
#include "turbo/swiglu/formula.h"
#include "turbo/swiglu/swiglu.h"

namespace primus::turbo::PRIMUS_CPU_ISA {
namespace {

void forward(CpuContext& context, const SwigluForward& a) {
  with_glu_gate(a.gate, [&](auto activation) {
    glu_forward(context, a.gate_up, a.out, [=](std::int64_t) { return activation; });
  });
}

void backward(CpuContext& context, const SwigluBackward& a) {
  with_glu_gate(a.gate,
                [&](auto activation) { glu_backward(context, a.gate_up, a.d_out, a.d_gate_up, activation); });
}

// Calls body(weigh_input) with a compile-time constant.
template <class Body>
PRIMUS_INLINE void with_flag(bool flag, Body&& body) {
  if (flag) {
    body(std::true_type{});
  } else {
    body(std::false_type{});
  }
}

void weighted_forward(CpuContext& context, const WeightedSwigluForward& a) {
  const auto* weights = context.data<float>(a.weights);
  const auto* slots = context.data<std::int32_t>(a.slots);
  const std::int64_t owned = context.data<std::int32_t>(a.offsets)[a.offsets.elements() - 1];
  with_flag(a.weigh_input, [&](auto weigh_input) {
    glu_forward(context, a.gate_up, a.out.slice(0, owned),
                [=](std::int64_t row) { return WeightedSiluGlu<weigh_input>{weights[slots[row]]}; });
  });
}

void weighted_backward(CpuContext& context, const WeightedSwigluBackward& a) {
  const auto* weights = context.data<float>(a.weights);
  const auto* slots = context.data<std::int32_t>(a.slots);
  const std::int64_t owned = context.data<std::int32_t>(a.offsets)[a.offsets.elements() - 1];
  float* const d_weights = a.d_weights.absent() ? nullptr : context.data<float>(a.d_weights);
  const std::int64_t slot_count = a.d_weights.elements();
  const float* previous = a.previous_weights.absent() ? nullptr : context.data<float>(a.previous_weights);
  if (d_weights && !previous) std::fill(d_weights, d_weights + slot_count, 0.0F);
  if (d_weights && previous && previous != d_weights) std::copy(previous, previous + slot_count, d_weights);
  with_float_type(a.d_out.dtype, [&](auto tag) {
    using T = decltype(tag);
    const std::int64_t ffn = a.d_out.cols();
    with_flag(a.weigh_input, [&](auto weigh_input) {
      parallel_ranges(context, owned, 5 * ffn * sizeof(T), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t row = begin; row < end; ++row) {
          const T* gate = context.data<T>(a.gate_up) + row * 2 * ffn;
          const T* d_out = context.data<T>(a.d_out) + row * ffn;
          T* d_gate = context.data<T>(a.d_gate_up) + row * 2 * ffn;
          const WeightedSiluGlu<weigh_input> activation{weights[slots[row]]};
          float sum = 0;
          PRIMUS_SIMD(reduction(+ : sum))
          for (std::int64_t i = 0; i < ffn; ++i) {
            const auto d =
                activation.backward(to_float(gate[i]), to_float(gate[ffn + i]), to_float(d_out[i]));
            d_gate[i] = from_float<T>(d.gate);
            d_gate[ffn + i] = from_float<T>(d.up);
            sum += d.weight;
          }
          if (d_weights) d_weights[slots[row]] += sum;
        }
      });
    });
  });
}

void clamped_forward(CpuContext& context, const ClampedSwigluForward& a) {
  glu_forward(context, a.gate_up, a.out, [&](std::int64_t) {
    return ClampedSiluGlu{a.limit, a.alpha, a.shift};
  });
}

void clamped_backward(CpuContext& context, const ClampedSwigluBackward& a) {
  glu_backward(context, a.gate_up, a.d_out, a.d_gate_up, ClampedSiluGlu{a.limit, a.alpha, a.shift});
}

}  // namespace

void register_swiglu(KernelTable& table) {
  table.add<SwigluForward, CpuContext, &forward>();
  table.add<SwigluBackward, CpuContext, &backward>();
  table.add<WeightedSwigluForward, CpuContext, &weighted_forward>();
  table.add<WeightedSwigluBackward, CpuContext, &weighted_backward>();
  table.add<ClampedSwigluForward, CpuContext, &clamped_forward>();
  table.add<ClampedSwigluBackward, CpuContext, &clamped_backward>();
}

}  // namespace primus::turbo::PRIMUS_CPU_ISA
