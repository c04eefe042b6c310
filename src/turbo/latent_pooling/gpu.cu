// One thread computes one column of one output row, so adjacent threads read adjacent columns of the rows
// that are pooled.
#include "turbo/gpu/loops.h"
#include "turbo/gpu/reduce.h"
#include "turbo/gpu/register.h"
#include "turbo/latent_pooling/latent_pooling.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

template <class T>
struct Slots {
  PoolingShape s;
  const T* x;
  const float* bias;
  std::int64_t blocks, gates, width;

  // Slots of block `pooled` are numbered from first_slot(); with overlap, negative slots are in the preceding
  // block.
  PRIMUS_DEVICE std::int64_t first_slot(std::int64_t pooled) const {
    return s.overlap && pooled % blocks > 0 ? -s.ratio : 0;
  }
  PRIMUS_DEVICE std::int64_t row(std::int64_t pooled, std::int64_t slot) const {
    return pooled / blocks * s.sequence + pooled % blocks * s.ratio + slot;
  }
  // Returns the column of the slot's value, which is also the column of the slot's bias. The gate is `gates`
  // columns to the right.
  PRIMUS_DEVICE std::int64_t column(std::int64_t slot, std::int64_t c) const {
    return s.overlap && slot >= 0 ? s.dim + c : c;
  }
  PRIMUS_DEVICE float score(std::int64_t pooled, std::int64_t slot, std::int64_t c) const {
    const std::int64_t at = column(slot, c), r = slot < 0 ? slot + s.ratio : slot;
    return to_float(x[row(pooled, slot) * width + gates + at]) + bias[r * gates + at];
  }
  PRIMUS_DEVICE float value(std::int64_t pooled, std::int64_t slot, std::int64_t c) const {
    return to_float(x[row(pooled, slot) * width + column(slot, c)]);
  }
  PRIMUS_DEVICE float pool(std::int64_t pooled, std::int64_t c, float& maximum, float& sum) const {
    maximum = -infinity();
    for (std::int64_t slot = first_slot(pooled); slot < s.ratio; ++slot)
      maximum = ::fmaxf(maximum, score(pooled, slot, c));
    float out = 0;
    sum = 0;
    for (std::int64_t slot = first_slot(pooled); slot < s.ratio; ++slot) {
      const float p = ::expf(score(pooled, slot, c) - maximum);
      sum += p;
      out = multiply_add(p, value(pooled, slot, c), out);
    }
    return out / sum;
  }
};

template <class T, class Call>
Slots<T> slots_of(Context& context, const Call& a) {
  const PoolingShape& s = a.shape;
  return {s, context.data<T>(a.x), context.data<float>(a.bias), s.blocks(), s.parts() * s.dim, s.width()};
}

template <class T>
struct Forward {
  Slots<T> slots;
  T* out;
  PRIMUS_DEVICE void operator()(std::int64_t i) const {
    float maximum, sum;
    out[i] = from_float<T>(slots.pool(i / slots.s.dim, i % slots.s.dim, maximum, sum));
  }
};

void forward(Context& context, const LatentPooling& a) {
  with_float_type(a.x.dtype, [&](auto tag) {
    using T = decltype(tag);
    for_each(context, a.out.elements(), Forward<T>{slots_of<T>(context, a), context.data<T>(a.out)});
  });
}

// Sets d_x to zero where no block reads x: in rows after the last block and, with overlap, for the first
// value and gate of the last block's rows.
template <class T>
struct Clear {
  Slots<T> slots;
  T* d_x;
  PRIMUS_DEVICE void operator()(std::int64_t i) const {
    const PoolingShape& s = slots.s;
    const std::int64_t block = i / slots.width % s.sequence / s.ratio, c = i % slots.width % slots.gates;
    if (block >= slots.blocks || (s.overlap && block + 1 == slots.blocks && c < s.dim))
      d_x[i] = from_float<T>(0.0F);
  }
};

template <class T>
struct Backward {
  Slots<T> slots;
  const T* d_out;
  T* d_x;
  PRIMUS_DEVICE void operator()(std::int64_t i) const {
    const std::int64_t pooled = i / slots.s.dim, c = i % slots.s.dim;
    float maximum, sum;
    const float out = slots.pool(pooled, c, maximum, sum), d = to_float(d_out[i]) / sum;
    for (std::int64_t slot = slots.first_slot(pooled); slot < slots.s.ratio; ++slot) {
      const float of = ::expf(slots.score(pooled, slot, c) - maximum) * d;
      T* const to = d_x + slots.row(pooled, slot) * slots.width + slots.column(slot, c);
      to[0] = from_float<T>(of);
      to[slots.gates] = from_float<T>(of * (slots.value(pooled, slot, c) - out));
    }
  }
};

// d_bias is a sum of d_x: each gate affects only one block, so d_x has its complete gradient.
template <class T>
struct BiasTerm {
  static constexpr int kCount = 1;
  Slots<T> slots;
  const T* d_x;
  PRIMUS_DEVICE void operator()(std::int64_t pooled, std::int64_t i, float (&value)[kCount]) const {
    const std::int64_t row = slots.row(pooled, i / slots.gates);
    value[0] = to_float(d_x[row * slots.width + slots.gates + i % slots.gates]);
  }
};

std::int64_t backward_workspace(Context&, const LatentPoolingBackward& a) {
  return row_sum_workspace(a.shape.pooled(), a.d_bias.elements());
}

void backward(Context& context, const LatentPoolingBackward& a) {
  with_float_type(a.x.dtype, [&](auto tag) {
    using T = decltype(tag);
    const Slots<T> slots = slots_of<T>(context, a);
    T* d_x = context.data<T>(a.d_x);
    for_each(context, a.d_x.elements(), Clear<T>{slots, d_x});
    for_each(context, a.d_out.elements(), Backward<T>{slots, context.data<T>(a.d_out), d_x});
    row_sum(context, a.shape.pooled(), a.d_bias.elements(), context.data<float>(a.workspace), a.d_bias, false,
            BiasTerm<T>{slots, d_x});
  });
}

struct Select {
  const std::int32_t* chosen;  // may be null
  std::int32_t* selected;
  std::int64_t sequence, window, ratio, blocks, places, tokens;

  PRIMUS_DEVICE void operator()(std::int64_t i) const {
    const std::int64_t token = i / places, place = i % places, position = token % sequence;
    if (place < window) {
      selected[i] = place <= position ? static_cast<std::int32_t>(token - place) : -1;
      return;
    }
    const std::int64_t block = place - window, seen = ratio > 0 ? (position + 1) / ratio : 0;
    std::int64_t row = block < seen ? token / sequence * blocks + block : -1;
    if (chosen) row = chosen[token * (places - window) + block];
    selected[i] = row < 0 ? -1 : static_cast<std::int32_t>(tokens + row);
  }
};

void window_and_pooled(Context& context, const WindowAndPooled& a) {
  for_each(context, a.selected.elements(),
           Select{optional<std::int32_t>(context, a.chosen), context.data<std::int32_t>(a.selected),
                  a.sequence, a.window, a.ratio, a.blocks(), a.selected.cols(), a.batch * a.sequence});
}

}  // namespace

void register_latent_pooling(KernelTable& table) {
  table.add<LatentPooling, Context, &forward>();
  table.add<LatentPoolingBackward, Context, &backward, &backward_workspace>();
  table.add<WindowAndPooled, Context, &window_and_pooled>();
}

}  // namespace primus::turbo::PRIMUS_GPU
