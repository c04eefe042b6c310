// The base of every <operator>/formula.h. Such a file holds the arithmetic of one element, or of the scalars
// of one row. The operator's CPU and GPU kernels share this arithmetic, so that each formula is written once.
//
// A formula is compiled once per target, in the namespace of the target's kernels (PRIMUS_KERNELS). Include a
// formula.h only from cpu*.cpp, gpu*.cu and their private headers. A formula may call functions that every
// target has:
//
//   to_float, from_float, multiply_add, sigmoid   turbo/cpu/simd.h and turbo/gpu/values.h
//   exp, softmax_exp, tanh                        vectorised code on CPUs, the math library on GPUs
//   fast_root, fast_quotient                      exact on CPUs, approximate on NVIDIA GPUs
//   ::sqrtf, ::expf, ::log and so on              the math library on all targets
#pragma once

#include <cmath>

#ifdef PRIMUS_CPU_ISA
#include "turbo/cpu/simd.h"
#define PRIMUS_KERNELS PRIMUS_CPU_ISA
#define PRIMUS_FORMULA PRIMUS_INLINE
#else
#include "turbo/gpu/values.h"
#define PRIMUS_KERNELS PRIMUS_GPU
#define PRIMUS_FORMULA PRIMUS_DEVICE
#endif

namespace primus::turbo::PRIMUS_KERNELS {

#ifdef PRIMUS_CPU_ISA
PRIMUS_FORMULA float fast_root(float x) { return ::sqrtf(x); }
PRIMUS_FORMULA float fast_quotient(float x, float y) { return x / y; }
#else
PRIMUS_FORMULA float exp(float x) { return ::expf(x); }
PRIMUS_FORMULA float softmax_exp(float x) { return ::expf(x); }
PRIMUS_FORMULA float tanh(float x) { return ::tanhf(x); }
#endif

}  // namespace primus::turbo::PRIMUS_KERNELS
