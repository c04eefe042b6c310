#include "turbo/gpu/loops.h"
#include "turbo/gpu/register.h"
#include "turbo/position_scale/formula.h"
#include "turbo/position_scale/position_scale.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

template <class T>
struct ScaleColumns {
  const T* x;
  T* y;
  const std::int32_t* positions;
  std::int64_t width, cols;
  float floor_scale, attn_scale;
  int first;

  PRIMUS_DEVICE void operator()(std::int64_t row, std::int64_t column) const {
    const std::int64_t at = row * width + column;
    if (column >= cols) {
      y[at] = x[at];
      return;
    }
    y[at] = from_float<T>(to_float(x[at]) * position_factor(positions[row] + first, floor_scale, attn_scale));
  }
};

void position_scale(Context& context, const PositionScale& a) {
  with_float_type(a.x.dtype, [&](auto tag) {
    using T = decltype(tag);
    const T* x = context.data<T>(a.x);
    T* y = context.data<T>(a.y);
    for_each_of_rows<1>(context, a.x.rows(), x == y ? a.cols : a.x.cols(),
                        ScaleColumns<T>{x, y, context.data<std::int32_t>(a.positions), a.x.cols(), a.cols,
                                        a.floor_scale, a.attn_scale, a.first});
  });
}

}  // namespace

void register_position_scale(KernelTable& table) { table.add<PositionScale, Context, &position_scale>(); }

}  // namespace primus::turbo::PRIMUS_GPU
