#include "turbo/gpu/reduce.h"
#include "turbo/gpu/register.h"
#include "turbo/swiglu/swiglu.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

struct Gradient {
  float gate, up;
};

struct Silu {
  PRIMUS_DEVICE float forward(float g, float u) const { return g * sigmoid(g) * u; }
  // silu'(g) = s * (1 + g * (1 - s)) with s = sigmoid(g).
  PRIMUS_DEVICE Gradient backward(float g, float u, float d) const {
    const float s = sigmoid(g);
    return {d * u * (s * (1.0F + g * (1.0F - s))), d * (g * s)};
  }
};

// gelu(g) * up. With s = sigmoid(2 u), u = sqrt(2 / pi) * (g + c g^3), gelu is g * s, since
// (1 + tanh(u)) / 2 = sigmoid(2 u); its slope is s + g * s * (1 - s) * 2 u'.
struct GeluTanh {
  static constexpr float kTwice = 1.59576912160573081F, kCubic = 0.044715F;  // 2 * sqrt(2 / pi)

  PRIMUS_DEVICE static float argument(float g) { return kTwice * g * multiply_add(kCubic * g, g, 1.0F); }
  PRIMUS_DEVICE float forward(float g, float u) const { return g * sigmoid(argument(g)) * u; }
  PRIMUS_DEVICE Gradient backward(float g, float u, float d) const {
    const float s = sigmoid(argument(g));
    const float slope = kTwice * multiply_add(3 * kCubic * g, g, 1.0F);
    return {d * u * (s * (1.0F + g * (1.0F - s) * slope)), d * (g * s)};
  }
};

struct ClampedSilu {
  float limit, alpha, shift;

  PRIMUS_DEVICE float clamped(float up) const { return up > limit ? limit : up < -limit ? -limit : up; }
  PRIMUS_DEVICE float forward(float gate, float up) const {
    const float g = gate > limit ? limit : gate;
    return (clamped(up) + shift) * (g * sigmoid(alpha * g));
  }
  PRIMUS_DEVICE Gradient backward(float gate, float up, float d) const {
    const float g = gate > limit ? limit : gate;
    const float s = sigmoid(alpha * g);
    const float d_gate = d * (clamped(up) + shift) * (s * (1.0F + alpha * g * (1.0F - s)));
    const bool held = up > limit || up < -limit;
    return {gate > limit ? 0.0F : d_gate, held ? 0.0F : d * (g * s)};
  }
};

// ---- Without weights --------------------------------------------------------------------------------

template <class T, int kCount, class Activation>
struct ForwardBody {
  const T* gate_up;
  T* out;
  std::int64_t ffn;
  Activation activation;

  PRIMUS_DEVICE void operator()(std::int64_t row, std::int64_t i) const {
    float g[kCount], u[kCount];
    load<kCount>(gate_up + row * 2 * ffn + i, g);
    load<kCount>(gate_up + row * 2 * ffn + ffn + i, u);
    PRIMUS_UNROLL
    for (int k = 0; k < kCount; ++k) g[k] = activation.forward(g[k], u[k]);
    store<kCount>(out + row * ffn + i, g);
  }
};

template <class T, int kCount, class Activation>
struct BackwardBody {
  const T *gate_up, *d_out;
  T* d_gate_up;
  std::int64_t ffn;
  Activation activation;

  PRIMUS_DEVICE void operator()(std::int64_t row, std::int64_t i) const {
    const std::int64_t gate = row * 2 * ffn + i, up = gate + ffn;
    float g[kCount], u[kCount], d[kCount];
    load<kCount>(gate_up + gate, g);
    load<kCount>(gate_up + up, u);
    load<kCount>(d_out + row * ffn + i, d);
    PRIMUS_UNROLL
    for (int k = 0; k < kCount; ++k) {
      const Gradient of = activation.backward(g[k], u[k], d[k]);
      g[k] = of.gate;
      u[k] = of.up;
    }
    store<kCount>(d_gate_up + gate, g);
    store<kCount>(d_gate_up + up, u);
  }
};

template <class Activation>
void run_forward(Context& context, const Tensor& gate_up, const Tensor& out, const Activation& activation) {
  with_float_type(out.dtype, [&](auto tag) {
    using T = decltype(tag);
    const T* from = context.data<T>(gate_up);
    T* to = context.data<T>(out);
    with_vector<T>(rows_of_vectors<T>(out.cols(), from, to), [&](auto count) {
      for_each_of_rows<count>(context, out.rows(), out.cols(),
                              ForwardBody<T, count, Activation>{from, to, out.cols(), activation});
    });
  });
}

template <class Activation>
void run_backward(Context& context, const Tensor& gate_up, const Tensor& d_out, const Tensor& d_gate_up,
                  const Activation& activation) {
  with_float_type(d_out.dtype, [&](auto tag) {
    using T = decltype(tag);
    const T *from = context.data<T>(gate_up), *d = context.data<T>(d_out);
    T* to = context.data<T>(d_gate_up);
    with_vector<T>(rows_of_vectors<T>(d_out.cols(), from, d, to), [&](auto count) {
      for_each_of_rows<count>(context, d_out.rows(), d_out.cols(),
                              BackwardBody<T, count, Activation>{from, d, to, d_out.cols(), activation});
    });
  });
}

// Calls body(activation) with the gate's activation.
template <class Body>
void with_gate(GluGate gate, Body&& body) {
  if (gate == GluGate::kGeluTanh) {
    body(GeluTanh{});
  } else {
    body(Silu{});
  }
}

void forward(Context& context, const SwigluForward& a) {
  with_gate(a.gate, [&](auto activation) { run_forward(context, a.gate_up, a.out, activation); });
}
void backward(Context& context, const SwigluBackward& a) {
  with_gate(a.gate,
            [&](auto activation) { run_backward(context, a.gate_up, a.d_out, a.d_gate_up, activation); });
}
void clamped_forward(Context& context, const ClampedSwigluForward& a) {
  run_forward(context, a.gate_up, a.out, ClampedSilu{a.limit, a.alpha, a.shift});
}
void clamped_backward(Context& context, const ClampedSwigluBackward& a) {
  run_backward(context, a.gate_up, a.d_out, a.d_gate_up, ClampedSilu{a.limit, a.alpha, a.shift});
}

// ---- Weighted rows ------------------------------------------------------------------------------

template <class T, int kCount, bool kWeighInput>
struct WeightedForwardBody {
  const T* gate_up;
  const float* weights;
  const std::int32_t *offsets, *slots;
  T* out;
  std::int64_t ffn, experts;

  PRIMUS_DEVICE void operator()(std::int64_t row, std::int64_t i) const {
    const float weight = row < offsets[experts] ? weights[slots[row]] : 0.0F;
    float g[kCount], u[kCount];
    load<kCount>(gate_up + row * 2 * ffn + i, g);
    load<kCount>(gate_up + row * 2 * ffn + ffn + i, u);
    PRIMUS_UNROLL
    for (int k = 0; k < kCount; ++k) {
      g[k] = kWeighInput ? Silu{}.forward(weight * g[k], weight * u[k]) : weight * Silu{}.forward(g[k], u[k]);
    }
    store<kCount>(out + row * ffn + i, g);
  }
};

void weighted_forward(Context& context, const WeightedSwigluForward& a) {
  with_float_type(a.out.dtype, [&](auto tag) {
    using T = decltype(tag);
    const T* from = context.data<T>(a.gate_up);
    T* to = context.data<T>(a.out);
    const std::int64_t ffn = a.out.cols();
    with_flag(a.weigh_input, [&](auto weigh_input) {
      with_vector<T>(rows_of_vectors<T>(ffn, from, to), [&](auto count) {
        for_each_of_rows<count>(
            context, a.out.rows(), ffn,
            WeightedForwardBody<T, count, weigh_input>{
                from, context.data<float>(a.weights), context.data<std::int32_t>(a.offsets),
                context.data<std::int32_t>(a.slots), to, ffn, a.offsets.elements() - 1});
      });
    });
  });
}

// One warp per row.
template <class T, int kCount, bool kWeighInput>
struct WeightedBackward {
  static constexpr int kThreads = 256;
  static constexpr int kWarps = kThreads / kWarp;
  const T *gate_up, *d_out;
  const float* weights;
  const std::int32_t *offsets, *slots;
  T* d_gate_up;
  float* d_weights;  // or null
  std::int64_t rows, ffn, experts;

  PRIMUS_DEVICE void operator()() const {
    const std::int64_t row = block() * kWarps + warp();
    if (row >= rows) return;
    const T* gate = gate_up + row * 2 * ffn;
    T* d_gate = d_gate_up + row * 2 * ffn;
    const bool owned = row < offsets[experts];
    const float weight = owned ? weights[slots[row]] : 0.0F;
    float sum = 0;
    for (std::int64_t i = lane() * kCount; i < ffn; i += kWarp * kCount) {
      float g[kCount] = {}, u[kCount] = {}, d[kCount];
      if (owned) {
        load<kCount>(gate + i, g);
        load<kCount>(gate + ffn + i, u);
        load<kCount>(d_out + row * ffn + i, d);
        PRIMUS_UNROLL
        for (int k = 0; k < kCount; ++k) {
          const Gradient of = kWeighInput ? Silu{}.backward(weight * g[k], weight * u[k], d[k])
                                          : Silu{}.backward(g[k], u[k], d[k]);
          sum += kWeighInput ? of.gate * g[k] + of.up * u[k] : of.up * u[k];
          g[k] = weight * of.gate;
          u[k] = weight * of.up;
        }
      }
      store<kCount>(d_gate + i, g);
      store<kCount>(d_gate + ffn + i, u);
    }
    sum = warp_reduce(sum);
    if (owned && d_weights && lane() == 0) d_weights[slots[row]] += sum;  // each slot has one row
  }
};

struct StartWeights {
  const float* previous;
  float* d_weights;
  PRIMUS_DEVICE void operator()(std::int64_t i) const { d_weights[i] = previous ? previous[i] : 0.0F; }
};

void weighted_backward(Context& context, const WeightedSwigluBackward& a) {
  float* d_weights = optional<float>(context, a.d_weights);
  const float* previous = optional<float>(context, a.previous_weights);
  if (d_weights && previous != d_weights) {
    for_each(context, a.d_weights.elements(), StartWeights{previous, d_weights});
  }
  with_float_type(a.d_out.dtype, [&](auto tag) {
    using T = decltype(tag);
    const T *from = context.data<T>(a.gate_up), *d = context.data<T>(a.d_out);
    T* to = context.data<T>(a.d_gate_up);
    const std::int64_t rows = a.d_out.rows(), ffn = a.d_out.cols();
    with_flag(a.weigh_input, [&](auto weigh_input) {
      with_vector<T>(rows_of_vectors<T>(ffn, from, d, to), [&](auto count) {
        using Kernel = WeightedBackward<T, count, weigh_input>;
        launch(
            context, blocks_for(rows, Kernel::kWarps),
            Kernel{from, d, context.data<float>(a.weights), context.data<std::int32_t>(a.offsets),
                   context.data<std::int32_t>(a.slots), to, d_weights, rows, ffn, a.offsets.elements() - 1});
      });
    });
  });
}

}  // namespace

void register_swiglu(KernelTable& table) {
  table.add<SwigluForward, Context, &forward>();
  table.add<SwigluBackward, Context, &backward>();
  table.add<WeightedSwigluForward, Context, &weighted_forward>();
  table.add<WeightedSwigluBackward, Context, &weighted_backward>();
  table.add<ClampedSwigluForward, Context, &clamped_forward>();
  table.add<ClampedSwigluBackward, Context, &clamped_backward>();
}

}  // namespace primus::turbo::PRIMUS_GPU
