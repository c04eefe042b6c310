#include <algorithm>
#include <type_traits>

#include "turbo/cpu/register.h"
#include "turbo/cpu/simd.h"
#include "turbo/swiglu/swiglu.h"

namespace primus::turbo::PRIMUS_CPU_ISA {
namespace {

struct Gradient {
  float gate, up;
};

struct Silu {
  PRIMUS_INLINE float forward(float g, float u) const { return g * sigmoid(g) * u; }
  // silu'(g) = s * (1 + g * (1 - s)) with s = sigmoid(g). Recomputing the sigmoid is cheaper than storing it.
  PRIMUS_INLINE Gradient backward(float g, float u, float d) const {
    const float s = sigmoid(g);
    return {d * u * (s * (1.0F + g * (1.0F - s))), d * (g * s)};
  }
};

// gelu(g) * up. With s = sigmoid(2 u), u = sqrt(2 / pi) * (g + c g^3), gelu is g * s, since
// (1 + tanh(u)) / 2 = sigmoid(2 u); its slope is s + g * s * (1 - s) * 2 u'.
struct GeluTanh {
  PRIMUS_INLINE float forward(float g, float u) const { return g * sigmoid(argument(g)) * u; }
  PRIMUS_INLINE Gradient backward(float g, float u, float d) const {
    const float s = sigmoid(argument(g));
    const float slope = kTwice * multiply_add(3 * kCubic * g, g, 1.0F);
    return {d * u * (s * (1.0F + g * (1.0F - s) * slope)), d * (g * s)};
  }

 private:
  static constexpr float kTwice = 1.59576912160573081F, kCubic = 0.044715F;  // 2 * sqrt(2 / pi)
  PRIMUS_INLINE static float argument(float g) { return kTwice * g * multiply_add(kCubic * g, g, 1.0F); }
};

struct ClampedSilu {
  float limit, alpha, shift;

  PRIMUS_INLINE float forward(float gate, float up) const {
    const float g = gate > limit ? limit : gate;
    return (clamped(up) + shift) * (g * sigmoid(alpha * g));
  }
  PRIMUS_INLINE Gradient backward(float gate, float up, float d) const {
    const float g = gate > limit ? limit : gate;
    const float s = sigmoid(alpha * g);
    const float d_gate = d * (clamped(up) + shift) * (s * (1.0F + alpha * g * (1.0F - s)));
    const bool held = up > limit || up < -limit;
    return {gate > limit ? 0.0F : d_gate, held ? 0.0F : d * (g * s)};
  }

 private:
  PRIMUS_INLINE float clamped(float up) const { return up > limit ? limit : up < -limit ? -limit : up; }
};

// The activation times a weight, or of weighted arguments. The third gradient is that of the weight.
template <bool kWeighInput>
struct WeightedSilu {
  float weight;
  struct Gradients {
    float gate, up, weight;
  };

  PRIMUS_INLINE float forward(float g, float u) const {
    return kWeighInput ? Silu{}.forward(weight * g, weight * u) : weight * Silu{}.forward(g, u);
  }
  PRIMUS_INLINE Gradients backward(float g, float u, float d) const {
    if constexpr (kWeighInput) {
      const Gradient of = Silu{}.backward(weight * g, weight * u, d);
      return {weight * of.gate, weight * of.up, of.gate * g + of.up * u};
    } else {
      const Gradient of = Silu{}.backward(g, u, d);
      return {weight * of.gate, weight * of.up, of.up * u};
    }
  }
};

// activation_of(row) returns the row's activation.
template <class Activations>
PRIMUS_INLINE void run_forward(CpuContext& context, const Tensor& gate_up, const Tensor& to,
                               const Activations activation_of) {
  with_float_type(to.dtype, [&](auto tag) {
    using T = decltype(tag);
    const std::int64_t ffn = to.cols();
    parallel_ranges(context, to.rows(), 3 * ffn * sizeof(T), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const T* gate = context.data<T>(gate_up) + row * 2 * ffn;
        const T* up = gate + ffn;
        T* out = context.data<T>(to) + row * ffn;
        const auto activation = activation_of(row);
        PRIMUS_SIMD()
        for (std::int64_t i = 0; i < ffn; ++i)
          out[i] = from_float<T>(activation.forward(to_float(gate[i]), to_float(up[i])));
      }
    });
  });
}

template <class Activation>
PRIMUS_INLINE void run_backward(CpuContext& context, const Tensor& gate_up, const Tensor& d_from,
                                const Tensor& d_gate_up, const Activation activation) {
  with_float_type(d_from.dtype, [&](auto tag) {
    using T = decltype(tag);
    const std::int64_t ffn = d_from.cols();
    parallel_ranges(context, d_from.rows(), 5 * ffn * sizeof(T), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const T* gate = context.data<T>(gate_up) + row * 2 * ffn;
        const T* up = gate + ffn;
        const T* d_out = context.data<T>(d_from) + row * ffn;
        T* d_gate = context.data<T>(d_gate_up) + row * 2 * ffn;
        T* d_up = d_gate + ffn;
        PRIMUS_SIMD()
        for (std::int64_t i = 0; i < ffn; ++i) {
          const Gradient d = activation.backward(to_float(gate[i]), to_float(up[i]), to_float(d_out[i]));
          d_gate[i] = from_float<T>(d.gate);
          d_up[i] = from_float<T>(d.up);
        }
      }
    });
  });
}

// Calls body(activation) with the gate's activation.
template <class Body>
PRIMUS_INLINE void with_gate(GluGate gate, Body&& body) {
  if (gate == GluGate::kGeluTanh) {
    body(GeluTanh{});
  } else {
    body(Silu{});
  }
}

void forward(CpuContext& context, const SwigluForward& a) {
  with_gate(a.gate, [&](auto activation) {
    run_forward(context, a.gate_up, a.out, [=](std::int64_t) { return activation; });
  });
}

void backward(CpuContext& context, const SwigluBackward& a) {
  with_gate(a.gate,
            [&](auto activation) { run_backward(context, a.gate_up, a.d_out, a.d_gate_up, activation); });
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
    run_forward(context, a.gate_up, a.out, [=](std::int64_t row) {
      return WeightedSilu<weigh_input>{row < owned ? weights[slots[row]] : 0.0F};
    });
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
      parallel_ranges(
          context, a.d_out.rows(), 5 * ffn * sizeof(T), [&](std::int64_t begin, std::int64_t end) {
            for (std::int64_t row = begin; row < end; ++row) {
              const T* gate = context.data<T>(a.gate_up) + row * 2 * ffn;
              const T* d_out = context.data<T>(a.d_out) + row * ffn;
              T* d_gate = context.data<T>(a.d_gate_up) + row * 2 * ffn;
              if (row >= owned) {
                std::fill(d_gate, d_gate + 2 * ffn, T{});
                continue;
              }
              const WeightedSilu<weigh_input> activation{weights[slots[row]]};
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
  run_forward(context, a.gate_up, a.out, [&](std::int64_t) {
    return ClampedSilu{a.limit, a.alpha, a.shift};
  });
}

void clamped_backward(CpuContext& context, const ClampedSwigluBackward& a) {
  run_backward(context, a.gate_up, a.d_out, a.d_gate_up, ClampedSilu{a.limit, a.alpha, a.shift});
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
