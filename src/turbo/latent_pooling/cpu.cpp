// Processes ranges of columns whose values stay in registers and L1. The first pass over the slots of a block
// finds the largest gates, and the second pass computes the sums of the softmax.
#include <algorithm>
#include <cmath>

#include "turbo/cpu/reduce.h"
#include "turbo/cpu/register.h"
#include "turbo/latent_pooling/latent_pooling.h"

namespace primus::turbo::PRIMUS_CPU_ISA {
namespace {

constexpr std::int64_t kColumns = 256;

// The slots of a block, for a range of columns. Each slot has a value, a gate, and the bias of the gate.
template <class T>
struct Slots {
  PoolingShape s;
  const T* x;
  const float* bias;

  // Calls use(row, column of the value, column of the gate, row and column of the bias) for every slot.
  template <class Use>
  PRIMUS_INLINE void each(std::int64_t pooled, Use use) const {
    const std::int64_t sequence = pooled / s.blocks(), block = pooled % s.blocks();
    const std::int64_t first = sequence * s.sequence + block * s.ratio;
    if (s.overlap && block > 0) {
      for (std::int64_t r = 0; r < s.ratio; ++r) use(first - s.ratio + r, std::int64_t{0}, r);
    }
    const std::int64_t own = s.overlap ? s.dim : 0;
    for (std::int64_t r = 0; r < s.ratio; ++r) use(first + r, own, r);
  }
  const T* value(std::int64_t row, std::int64_t column) const { return x + row * s.width() + column; }
  const T* gate(std::int64_t row, std::int64_t column) const {
    return value(row, column) + s.parts() * s.dim;
  }
  const float* of_bias(std::int64_t r, std::int64_t column) const {
    return bias + r * s.parts() * s.dim + column;
  }

  // Computes the largest gates of a block's columns, the sums of their exponentials, and the pooled values.
  void pool(std::int64_t pooled, std::int64_t column, std::int64_t count, float* maximum, float* sum,
            float* out) const {
    std::fill_n(maximum, count, -INFINITY);
    each(pooled, [&](std::int64_t row, std::int64_t part, std::int64_t r) {
      const T* g = gate(row, part + column);
      const float* b = of_bias(r, part + column);
      PRIMUS_SIMD()
      for (std::int64_t i = 0; i < count; ++i) {
        const float score = to_float(g[i]) + b[i];
        maximum[i] = score > maximum[i] ? score : maximum[i];
      }
    });
    std::fill_n(sum, count, 0.0F);
    std::fill_n(out, count, 0.0F);
    each(pooled, [&](std::int64_t row, std::int64_t part, std::int64_t r) {
      const T *g = gate(row, part + column), *v = value(row, part + column);
      const float* b = of_bias(r, part + column);
      PRIMUS_SIMD()
      for (std::int64_t i = 0; i < count; ++i) {
        const float p = softmax_exp(to_float(g[i]) + b[i] - maximum[i]);
        sum[i] += p;
        out[i] = multiply_add(p, to_float(v[i]), out[i]);
      }
    });
    PRIMUS_SIMD()
    for (std::int64_t i = 0; i < count; ++i) out[i] /= sum[i];
  }
};

// Calls body(pooled, column, count) for all blocks and all ranges of columns.
template <class Body>
void for_each_run(CpuContext& context, const PoolingShape& s, std::int64_t bytes, Body body) {
  const std::int64_t runs = (s.dim + kColumns - 1) / kColumns;
  parallel_ranges(context, s.pooled() * runs, bytes, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t column = i % runs * kColumns;
      body(i / runs, column, std::min(kColumns, s.dim - column));
    }
  });
}

void forward(CpuContext& context, const LatentPooling& a) {
  with_float_type(a.x.dtype, [&](auto tag) {
    using T = decltype(tag);
    const PoolingShape& s = a.shape;
    const Slots<T> slots{s, context.data<const T>(a.x), context.data<const float>(a.bias)};
    T* const out = context.data<T>(a.out);
    for_each_run(context, s, s.ratio * kColumns * 16,
                 [&](std::int64_t pooled, std::int64_t column, std::int64_t count) {
                   float maximum[kColumns], sum[kColumns], of[kColumns];
                   slots.pool(pooled, column, count, maximum, sum, of);
                   for (std::int64_t i = 0; i < count; ++i)
                     out[pooled * s.dim + column + i] = from_float<T>(of[i]);
                 });
  });
}

std::int64_t backward_workspace(CpuContext&, const LatentPoolingBackward& a) {
  return row_sum_workspace(a.shape.pooled(), a.d_bias.elements());
}

void backward(CpuContext& context, const LatentPoolingBackward& a) {
  with_float_type(a.x.dtype, [&](auto tag) {
    using T = decltype(tag);
    const PoolingShape& s = a.shape;
    const Slots<T> slots{s, context.data<const T>(a.x), context.data<const float>(a.bias)};
    const T* const d_out = context.data<const T>(a.d_out);
    T* const d_x = context.data<T>(a.d_x);
    const std::int64_t gates = s.parts() * s.dim, width = s.width();
    // Sets d_x to zero where no block reads x: in rows after the last block and, with overlap, for the first
    // value and gate of the last block's rows.
    parallel_ranges(context, s.rows(), width * sizeof(T), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const std::int64_t block = row % s.sequence / s.ratio;
        T* const d = d_x + row * width;
        if (block >= s.blocks()) {
          std::fill_n(d, width, T{});
        } else if (s.overlap && block + 1 == s.blocks()) {
          std::fill_n(d, s.dim, T{});
          std::fill_n(d + gates, s.dim, T{});
        }
      }
    });
    for_each_run(context, s, s.ratio * kColumns * 32,
                 [&](std::int64_t pooled, std::int64_t column, std::int64_t count) {
                   float maximum[kColumns], sum[kColumns], out[kColumns], d[kColumns];
                   slots.pool(pooled, column, count, maximum, sum, out);
                   for (std::int64_t i = 0; i < count; ++i)
                     d[i] = to_float(d_out[pooled * s.dim + column + i]) / sum[i];
                   slots.each(pooled, [&](std::int64_t row, std::int64_t part, std::int64_t r) {
                     const T *g = slots.gate(row, part + column), *v = slots.value(row, part + column);
                     const float* b = slots.of_bias(r, part + column);
                     T* const d_v = d_x + row * width + part + column;
                     PRIMUS_SIMD()
                     for (std::int64_t i = 0; i < count; ++i) {
                       const float of = softmax_exp(to_float(g[i]) + b[i] - maximum[i]) * d[i];
                       d_v[i] = from_float<T>(of);
                       d_v[gates + i] = from_float<T>(of * (to_float(v[i]) - out[i]));
                     }
                   });
                 });
    // d_bias is a sum of d_x: each gate affects only one block, so d_x has its complete gradient.
    row_sum(context, s.pooled(), a.d_bias.elements(), context.data<float>(a.workspace), a.d_bias, false,
            [&](float* line, std::int64_t pooled) {
              const std::int64_t first = pooled / s.blocks() * s.sequence + pooled % s.blocks() * s.ratio;
              for (std::int64_t r = 0; r < s.ratio; ++r) {
                const T* const d = d_x + (first + r) * width + gates;
                for (std::int64_t i = 0; i < gates; ++i) line[r * gates + i] += to_float(d[i]);
              }
            });
  });
}

void window_and_pooled(CpuContext& context, const WindowAndPooled& a) {
  const std::int64_t places = a.selected.cols(), blocks = a.blocks(), tokens = a.batch * a.sequence;
  const auto* chosen = a.chosen.absent() ? nullptr : context.data<const std::int32_t>(a.chosen);
  auto* const selected = context.data<std::int32_t>(a.selected);
  parallel_ranges(context, tokens, places * 8, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t token = begin; token < end; ++token) {
      std::int32_t* const to = selected + token * places;
      const std::int64_t position = token % a.sequence;
      for (std::int64_t i = 0; i < a.window; ++i)
        to[i] = i <= position ? static_cast<std::int32_t>(token - i) : -1;
      const std::int64_t seen = a.ratio > 0 ? (position + 1) / a.ratio : 0;
      for (std::int64_t i = 0; i < places - a.window; ++i) {
        std::int64_t row = i < seen ? token / a.sequence * blocks + i : -1;
        if (chosen) row = chosen[token * (places - a.window) + i];
        to[a.window + i] = row < 0 ? -1 : static_cast<std::int32_t>(tokens + row);
      }
    }
  });
}

}  // namespace

void register_latent_pooling(KernelTable& table) {
  table.add<LatentPooling, CpuContext, &forward>();
  table.add<LatentPoolingBackward, CpuContext, &backward, &backward_workspace>();
  table.add<WindowAndPooled, CpuContext, &window_and_pooled>();
}

}  // namespace primus::turbo::PRIMUS_CPU_ISA
