#include "simd_probe.h"

#include "turbo/cpu/simd.h"

namespace primus::turbo::PRIMUS_CPU_ISA {

void probe_exp(const float* x, float* y, std::int64_t n) {
  PRIMUS_SIMD()
  for (std::int64_t i = 0; i < n; ++i) y[i] = PRIMUS_CPU_ISA::exp(x[i]);
}

void probe_softmax_exp(const float* x, float* y, std::int64_t n) {
  PRIMUS_SIMD()
  for (std::int64_t i = 0; i < n; ++i) y[i] = softmax_exp(x[i]);
}

void probe_sigmoid(const float* x, float* y, std::int64_t n) {
  PRIMUS_SIMD()
  for (std::int64_t i = 0; i < n; ++i) y[i] = sigmoid(x[i]);
}

void probe_tanh(const float* x, float* y, std::int64_t n) {
  PRIMUS_SIMD()
  for (std::int64_t i = 0; i < n; ++i) y[i] = PRIMUS_CPU_ISA::tanh(x[i]);
}

void probe_to_bfloat16(const float* x, BFloat16* y, std::int64_t n) {
  PRIMUS_SIMD()
  for (std::int64_t i = 0; i < n; ++i) y[i] = from_float<BFloat16>(x[i]);
}

}  // namespace primus::turbo::PRIMUS_CPU_ISA
