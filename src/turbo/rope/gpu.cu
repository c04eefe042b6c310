#include "turbo/gpu/loops.h"
#include "turbo/gpu/register.h"
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

void rope(Context& context, const Rope& a) {
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

void register_rope(KernelTable& table) { table.add<Rope, Context, &rope>(); }

}  // namespace primus::turbo::PRIMUS_GPU
