// Master weights in GPU kernels, in each storage form (turbo/master_weights.h).
#pragma once

#include <cstdint>

#include "turbo/gpu/values.h"
#include "turbo/master_weights.h"

namespace primus::turbo::PRIMUS_GPU {

// Reads and writes master weights. The storage form is the same for all threads of a launch, so branches do
// not diverge.
struct Masters {
  float* param;             // null if masters are split
  BFloat16* working;        // may be null
  std::int16_t* remainder;  // null if masters are not split

  template <int kCount>
  PRIMUS_DEVICE void get(std::int64_t i, float (&to)[kCount]) const {
    if (!remainder) return load<kCount>(param + i, to);
    const auto high = *reinterpret_cast<const Pack<BFloat16, kCount>*>(working + i);
    const auto low = *reinterpret_cast<const Pack<std::int16_t, kCount>*>(remainder + i);
    PRIMUS_UNROLL
    for (int k = 0; k < kCount; ++k) to[k] = joined_master(high.at[k], low.at[k]);
  }

  template <int kCount>
  PRIMUS_DEVICE void put(std::int64_t i, const float (&from)[kCount]) const {
    if (remainder) {
      Pack<std::int16_t, kCount> low;
      PRIMUS_UNROLL
      for (int k = 0; k < kCount; ++k) low.at[k] = param_remainder(from[k]);
      *reinterpret_cast<Pack<std::int16_t, kCount>*>(remainder + i) = low;
    } else {
      store<kCount>(param + i, from);
    }
    if (!working) return;
    Pack<BFloat16, kCount> high;
    PRIMUS_UNROLL
    for (int k = 0; k < kCount; ++k) high.at[k] = working_value(from[k]);
    *reinterpret_cast<Pack<BFloat16, kCount>*>(working + i) = high;
  }
};

// Returns the master weights of a kernel's arguments.
template <class Arguments>
Masters masters_of(const Context& context, const Arguments& a) {
  return {optional<float>(context, a.param), optional<BFloat16>(context, a.working),
          optional<std::int16_t>(context, a.remainder)};
}

// Returns whether these n masters and the vectors used with them can be read several elements at a time.
template <class... Pointers>
bool masters_of_vectors(std::int64_t n, const Masters& masters, const Pointers*... pointers) {
  return rows_of_vectors<float>(n, masters.param, masters.working, masters.remainder, pointers...);
}

}  // namespace primus::turbo::PRIMUS_GPU
