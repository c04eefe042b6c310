#include "turbo/cpu/register.h"
#include "turbo/cpu/simd.h"
#include "turbo/soft_cap/formula.h"
#include "turbo/soft_cap/soft_cap.h"

namespace primus::turbo::PRIMUS_CPU_ISA {
namespace {

void forward(CpuContext& context, const SoftCap& a) {
  with_float_type(a.x.dtype, [&](auto tag) {
    using T = decltype(tag);
    const T* x = context.data<const T>(a.x);
    T* y = context.data<T>(a.y);
    const float cap = a.cap;
    parallel_ranges(context, a.x.elements(), 2 * sizeof(T), [=](std::int64_t begin, std::int64_t end) {
      PRIMUS_SIMD()
      for (std::int64_t i = begin; i < end; ++i) y[i] = from_float<T>(soft_cap(to_float(x[i]), cap));
    });
  });
}

void backward(CpuContext& context, const SoftCapBackward& a) {
  with_float_type(a.y.dtype, [&](auto tag) {
    using T = decltype(tag);
    const T* y = context.data<const T>(a.y);
    const T* d_y = context.data<const T>(a.d_y);
    T* d_x = context.data<T>(a.d_x);
    const float cap = a.cap;
    parallel_ranges(context, a.y.elements(), 3 * sizeof(T), [=](std::int64_t begin, std::int64_t end) {
      PRIMUS_SIMD()
      for (std::int64_t i = begin; i < end; ++i)
        d_x[i] = from_float<T>(to_float(d_y[i]) * soft_cap_slope(to_float(y[i]), cap));
    });
  });
}

}  // namespace

void register_soft_cap(KernelTable& table) {
  table.add<SoftCap, CpuContext, &forward>();
  table.add<SoftCapBackward, CpuContext, &backward>();
}

}  // namespace primus::turbo::PRIMUS_CPU_ISA
