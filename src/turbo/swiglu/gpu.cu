#include "turbo/gpu/glu.h"
#include "turbo/gpu/loops.h"
#include "turbo/gpu/reduce.h"
#include "turbo/gpu/register.h"
#include "turbo/swiglu/formula.h"
#include "turbo/swiglu/swiglu.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

// ---- Without weights --------------------------------------------------------------------------------

void forward(Context& context, const SwigluForward& a) {
  with_glu_gate(a.gate, [&](auto activation) { glu_forward(context, a.gate_up, a.out, activation); });
}
void backward(Context& context, const SwigluBackward& a) {
  with_glu_gate(a.gate,
                [&](auto activation) { glu_backward(context, a.gate_up, a.d_out, a.d_gate_up, activation); });
}
void clamped_forward(Context& context, const ClampedSwigluForward& a) {
  glu_forward(context, a.gate_up, a.out, ClampedSiluGlu{a.limit, a.alpha, a.shift});
}
void clamped_backward(Context& context, const ClampedSwigluBackward& a) {
  glu_backward(context, a.gate_up, a.d_out, a.d_gate_up, ClampedSiluGlu{a.limit, a.alpha, a.shift});
}

// ---- Weighted rows ------------------------------------------------------------------------------

template <class T, int kCount, bool kWeighInput>
struct WeightedForwardBody {
  const T* gate_up;
  const float* weights;
  const std::int32_t* slots;
  T* out;
  std::int64_t ffn;

  PRIMUS_DEVICE void operator()(std::int64_t row, std::int64_t i) const {
    const WeightedSiluGlu<kWeighInput> activation{weights[slots[row]]};
    float g[kCount], u[kCount];
    load<kCount>(gate_up + row * 2 * ffn + i, g);
    load<kCount>(gate_up + row * 2 * ffn + ffn + i, u);
    PRIMUS_UNROLL
    for (int k = 0; k < kCount; ++k) g[k] = activation.forward(g[k], u[k]);
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
        for_each_of_used_rows<count>(
            context, a.out.rows(), context.data<std::int32_t>(a.offsets) + a.offsets.elements() - 1, ffn,
            WeightedForwardBody<T, count, weigh_input>{from, context.data<float>(a.weights),
                                                       context.data<std::int32_t>(a.slots), to, ffn});
      });
    });
  });
}

// A warp processes one row at a time.
template <class T, int kCount, bool kWeighInput>
struct WeightedBackward {
  static constexpr int kThreads = 256;
  static constexpr int kWarps = kThreads / kWarp;
  const T *gate_up, *d_out;
  const float* weights;
  const std::int32_t *offsets, *slots;
  T* d_gate_up;
  float* d_weights;  // may be null
  std::int64_t ffn, experts;

  PRIMUS_DEVICE void operator()() const {
    const std::int64_t used = offsets[experts];
    for (std::int64_t row = block() * kWarps + warp(); row < used; row += blocks() * kWarps) one_row(row);
  }

  PRIMUS_DEVICE void one_row(std::int64_t row) const {
    const T* gate = gate_up + row * 2 * ffn;
    T* d_gate = d_gate_up + row * 2 * ffn;
    const WeightedSiluGlu<kWeighInput> activation{weights[slots[row]]};
    float sum = 0;
    for (std::int64_t i = lane() * kCount; i < ffn; i += kWarp * kCount) {
      float g[kCount], u[kCount], d[kCount];
      load<kCount>(gate + i, g);
      load<kCount>(gate + ffn + i, u);
      load<kCount>(d_out + row * ffn + i, d);
      PRIMUS_UNROLL
      for (int k = 0; k < kCount; ++k) {
        const auto of = activation.backward(g[k], u[k], d[k]);
        sum += of.weight;
        g[k] = of.gate;
        u[k] = of.up;
      }
      store<kCount>(d_gate + i, g);
      store<kCount>(d_gate + ffn + i, u);
    }
    sum = warp_reduce(sum);
    if (d_weights && lane() == 0) d_weights[slots[row]] += sum;  // no race, because each slot has one row
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
        constexpr std::int64_t kBlocksPerProcessor = 32;  // further rows are processed by the same blocks
        launch(context,
               std::min(blocks_for(rows, Kernel::kWarps), kBlocksPerProcessor * multiprocessors(context)),
               Kernel{from, d, context.data<float>(a.weights), context.data<std::int32_t>(a.offsets),
                      context.data<std::int32_t>(a.slots), to, d_weights, ffn, a.offsets.elements() - 1});
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
