#include "turbo/gpu/loops.h"
#include "turbo/gpu/reduce.h"
#include "turbo/gpu/register.h"
#include "turbo/rms_norm/formula.h"
#include "turbo/rope/formula.h"
#include "turbo/rope/rope.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

// A thread rotates kCount adjacent pairs. kCount is 1 if pairs are interleaved.
template <class T, int kCount>
struct TurnPairs {
  const T* x;
  T* y;
  const std::int32_t* positions;
  const float* table;
  std::int64_t width, heads, head_dim, half, begin, step, apart;
  float sign;

  PRIMUS_DEVICE void operator()(std::int64_t row, std::int64_t i) const {
    const std::int64_t head = i / half, pair = i % half;
    const std::int64_t at = row * width + head * head_dim + begin + pair * step;
    const float* cosines = table + positions[row] * 2 * half + pair;
    float x0[kCount], x1[kCount];
    load<kCount>(x + at, x0);
    load<kCount>(x + at + apart, x1);
    PRIMUS_UNROLL
    for (int k = 0; k < kCount; ++k) {
      const RotatedPair turned(x0[k], x1[k], cosines[k], cosines[half + k] * sign);
      x0[k] = turned.first;
      x1[k] = turned.second;
    }
    store<kCount>(y + at, x0);
    store<kCount>(y + at + apart, x1);
  }
};

// Copies the columns that are not rotated: some columns of rotated heads, and all columns after these heads.
template <class T>
struct CopyRest {
  const T* x;
  T* y;
  std::int64_t width, rotated, head_dim, begin, end;

  PRIMUS_DEVICE void operator()(std::int64_t row, std::int64_t column) const {
    const std::int64_t in_head = column % head_dim;
    if (column < rotated && in_head >= begin && in_head < end) return;
    y[row * width + column] = x[row * width + column];
  }
};

// A warp norms and rotates one head of one token. The columns after these heads count as one more head of the
// row, which is copied. Lanes load and add the same columns as in head_norm/gpu.cu, so the bits are the same.
template <class T>
struct TurnNormedHeads {
  static constexpr int kThreads = 128, kWarps = kThreads / kWarp, kCount = 4, kMaxDim = 512;
  using StartsEarly = void;
  const T *x, *weight;
  T* y;
  const std::int32_t* positions;
  const float* table;
  std::uint32_t rows, heads, query_heads;
  int width, dim, half, begin, step, apart;
  float eps, offset, sign;

  struct Memory {
    struct Head {
      float normed[kMaxDim], weights[kMaxDim], table[kMaxDim];
    } of_warp[kWarps];
  };

  PRIMUS_DEVICE void operator()() const {
    let_next_begin();
    const std::uint32_t item =
        static_cast<std::uint32_t>(block()) * kWarps + static_cast<std::uint32_t>(warp());
    const std::uint32_t row = item / (heads + 1), head = item - row * (heads + 1);
    if (row >= rows) return wait_for_previous();
    const std::int64_t at = static_cast<std::int64_t>(row) * width + static_cast<std::int64_t>(head) * dim;
    if (head == heads) {
      wait_for_previous();
      const int rest = width - static_cast<int>(heads) * dim;
      for (int i = lane() * kCount; x != y && i < rest; i += kWarp * kCount) {
        float v[kCount];
        load<kCount>(x + at + i, v);
        store<kCount>(y + at + i, v);
      }
      return;
    }
    auto& [normed, weights, cosines] = shared<Memory>().of_warp[warp()];
    // Reads the position, table and weights now, because the previous kernel does not write them.
    const float* const of_position = table + static_cast<std::int64_t>(positions[row]) * 2 * half;
    const T* const of_heads = weight + (head < query_heads ? 0 : dim);
    for (int i = lane(); i < 2 * half; i += kWarp) cosines[i] = of_position[i];
    for (int i = lane(); i < dim; i += kWarp) weights[i] = to_float(of_heads[i]) + offset;
    wait_for_previous();
    float squares = 0;
    for (int i = lane() * kCount; i < dim; i += kWarp * kCount) {
      float v[kCount];
      load<kCount>(x + at + i, v);
      PRIMUS_UNROLL
      for (int k = 0; k < kCount; ++k) {
        normed[i + k] = v[k];
        squares = multiply_add(v[k], v[k], squares);
      }
    }
    const float scale = inverse_rms(warp_reduce(squares), dim, eps);
    warp_barrier();
    // Rounds the normed values, because the separate operators store them in type T.
    const auto normed_at = [&](int i) { return to_float(from_float<T>(normed[i] * scale * weights[i])); };
    for (int pair = lane(); pair < half; pair += kWarp) {
      const int first = begin + pair * step, second = first + apart;
      const RotatedPair turned(normed_at(first), normed_at(second), cosines[pair],
                               cosines[half + pair] * sign);
      y[at + first] = from_float<T>(turned.first);
      y[at + second] = from_float<T>(turned.second);
    }
    for (int i = lane(); i < dim; i += kWarp) {
      if (i < begin || i >= begin + 2 * half) y[at + i] = from_float<T>(normed_at(i));
    }
  }
};

// Returns whether the kernel supports a call with a norm.
bool takes_norm(const Rope& a) {
  constexpr std::int64_t kMaxRows = 64;
  return a.x.rows() <= kMaxRows && a.head_dim <= TurnNormedHeads<float>::kMaxDim &&
         a.head_dim % TurnNormedHeads<float>::kCount == 0 && a.x.cols() % TurnNormedHeads<float>::kCount == 0;
}

std::int64_t workspace(Context&, const Rope& a) {
  return a.norm.absent() || takes_norm(a) ? 0 : Rope::kNotTaken;
}

void rope_normed(Context& context, const Rope& a) {
  if (!takes_norm(a)) throw std::logic_error("gpu: a rotation that is_taken() says no to");
  with_float_type(a.x.dtype, [&](auto tag) {
    using T = decltype(tag);
    using Kernel = TurnNormedHeads<T>;
    const auto half = static_cast<int>(a.rotary_dim / 2);
    launch(context, blocks_for(a.x.rows() * (a.heads + 1), Kernel::kWarps),
           Kernel{context.data<T>(a.x), context.data<T>(a.norm.weight), context.data<T>(a.y),
                  context.data<std::int32_t>(a.positions), context.data<float>(a.table),
                  static_cast<std::uint32_t>(a.x.rows()), static_cast<std::uint32_t>(a.heads),
                  static_cast<std::uint32_t>(a.norm.query_heads), static_cast<int>(a.x.cols()),
                  static_cast<int>(a.head_dim), half, static_cast<int>(a.rotary_begin), a.interleaved ? 2 : 1,
                  a.interleaved ? 1 : half, a.norm.eps, a.norm.offset, a.inverse ? -1.0F : 1.0F});
  });
}

void rope(Context& context, const Rope& a) {
  if (!a.norm.absent()) return rope_normed(context, a);
  with_float_type(a.x.dtype, [&](auto tag) {
    using T = decltype(tag);
    const std::int64_t rows = a.x.rows(), width = a.x.cols(), half = a.rotary_dim / 2;
    const T* x = context.data<T>(a.x);
    T* y = context.data<T>(a.y);
    if (half > 0) {
      const bool whole = !a.interleaved && rows_of_vectors<T>(width, x, y) && half % kVector<T> == 0 &&
                         a.head_dim % kVector<T> == 0 && a.rotary_begin % kVector<T> == 0;
      with_vector<T>(whole, [&](auto count) {
        for_each_of_rows<count>(
            context, rows, a.heads * half,
            TurnPairs<T, count>{x, y, context.data<std::int32_t>(a.positions), context.data<float>(a.table),
                                width, a.heads, a.head_dim, half, a.rotary_begin, a.interleaved ? 2 : 1,
                                a.interleaved ? 1 : half, a.inverse ? -1.0F : 1.0F});
      });
    }
    if (x == y) return;
    for_each_of_rows<1>(context, rows, width,
                        CopyRest<T>{x, y, width, a.heads * a.head_dim, a.head_dim, a.rotary_begin,
                                    a.rotary_begin + a.rotary_dim});
  });
}

}  // namespace

void register_rope(KernelTable& table) { table.add<Rope, Context, &rope, &workspace>(); }

}  // namespace primus::turbo::PRIMUS_GPU
