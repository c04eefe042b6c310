#include "turbo/gpu/loops.h"
#include "turbo/gpu/register.h"
#include "turbo/soft_cap/formula.h"
#include "turbo/soft_cap/soft_cap.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

template <class T>
struct ForwardBody {
  const T* x;
  T* y;
  float cap;
  PRIMUS_DEVICE void operator()(std::int64_t i) const { y[i] = from_float<T>(soft_cap(to_float(x[i]), cap)); }
};

template <class T>
struct BackwardBody {
  const T *y, *d_y;
  T* d_x;
  float cap;
  PRIMUS_DEVICE void operator()(std::int64_t i) const {
    d_x[i] = from_float<T>(to_float(d_y[i]) * soft_cap_slope(to_float(y[i]), cap));
  }
};

void forward(Context& context, const SoftCap& a) {
  with_float_type(a.x.dtype, [&](auto tag) {
    using T = decltype(tag);
    for_each(context, a.x.elements(), ForwardBody<T>{context.data<T>(a.x), context.data<T>(a.y), a.cap});
  });
}

void backward(Context& context, const SoftCapBackward& a) {
  with_float_type(a.y.dtype, [&](auto tag) {
    using T = decltype(tag);
    for_each(context, a.y.elements(),
             BackwardBody<T>{context.data<T>(a.y), context.data<T>(a.d_y), context.data<T>(a.d_x), a.cap});
  });
}

}  // namespace

void register_soft_cap(KernelTable& table) {
  table.add<SoftCap, Context, &forward>();
  table.add<SoftCapBackward, Context, &backward>();
}

}  // namespace primus::turbo::PRIMUS_GPU
