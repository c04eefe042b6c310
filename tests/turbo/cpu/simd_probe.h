// Gives tests access to the inline functions of simd.h as compiled for each instruction set.
#pragma once

#include <cstdint>

#include "tensor/bfloat16.h"

// clang-format off
#define PRIMUS_PROBES(isa)                                                  \
  namespace primus::turbo::isa {                                            \
  void probe_exp(const float* x, float* y, std::int64_t n);                 \
  void probe_softmax_exp(const float* x, float* y, std::int64_t n);         \
  void probe_sigmoid(const float* x, float* y, std::int64_t n);             \
  void probe_tanh(const float* x, float* y, std::int64_t n);                \
  void probe_to_bfloat16(const float* x, BFloat16* y, std::int64_t n);      \
  }
PRIMUS_PROBES(isa_v2)
PRIMUS_PROBES(isa_v3)
PRIMUS_PROBES(isa_v4)
#undef PRIMUS_PROBES
// clang-format on
