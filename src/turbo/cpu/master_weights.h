// Master weights in the loops of CPU kernels, in each storage form (turbo/master_weights.h). Only for
// cpu*.cpp files.
#pragma once

#include <cstdint>

#include "turbo/cpu/simd.h"
#include "turbo/master_weights.h"

namespace primus::turbo::PRIMUS_CPU_ISA {

struct WideMasters {
  float* param;
  PRIMUS_INLINE float get(std::int64_t i) const { return param[i]; }
  PRIMUS_INLINE void put(std::int64_t i, float value) const { param[i] = value; }
};

struct RoundedMasters {
  float* param;
  BFloat16* working;
  PRIMUS_INLINE float get(std::int64_t i) const { return param[i]; }
  PRIMUS_INLINE void put(std::int64_t i, float value) const {
    param[i] = value;
    working[i] = working_value(value);
  }
};

struct SplitMasters {
  BFloat16* working;
  std::int16_t* remainder;
  PRIMUS_INLINE float get(std::int64_t i) const { return joined_master(working[i], remainder[i]); }
  PRIMUS_INLINE void put(std::int64_t i, float value) const {
    working[i] = working_value(value);
    remainder[i] = param_remainder(value);
  }
};

// Calls body(masters) with the master weights of a kernel's arguments. The loop needs no branch, because the
// storage form is known at compile time.
template <class Arguments, class Body>
void with_masters(const CpuContext& context, const Arguments& a, Body&& body) {
  if (!a.remainder.absent()) {
    body(SplitMasters{context.data<BFloat16>(a.working), context.data<std::int16_t>(a.remainder)});
  } else if (!a.working.absent()) {
    body(RoundedMasters{context.data<float>(a.param), context.data<BFloat16>(a.working)});
  } else {
    body(WideMasters{context.data<float>(a.param)});
  }
}

}  // namespace primus::turbo::PRIMUS_CPU_ISA
