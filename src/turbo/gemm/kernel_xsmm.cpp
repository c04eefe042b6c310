#include <libxsmm.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>
#include <optional>

#include "turbo/gemm/cpu_features.h"
#include "turbo/gemm/kernel.h"
#include "turbo/gemm/pack.h"
#include "turbo/gemm/tile_io.h"

// Replaces open() in libxsmm (see CMakeLists.txt). libxsmm opens only one file: a lock in /tmp that protects
// the output of its statistics. Any user may have created a file of that name. Without the lock, libxsmm
// prints no statistics.
extern "C" int primus_open_for_xsmm(const char* /*path*/, int /*flags*/, ...) {
  errno = EACCES;
  return -1;
}

// libxsmm works on column-major matrices and computes Cᵀ = Bᵀ · Aᵀ. The first operand of libxsmm is our
// packed B, whose nr columns are contiguous. The second operand is our packed A, whose rows are contiguous in
// k. C is always a contiguous tile, so that a few compiled kernels suffice for all shapes. Copying a tile
// takes 1 % of the time of computing it.

namespace primus::turbo::gemm {
namespace {

constexpr int kMr = 64, kNr = 64, kKb = 64;
// Kernels are compiled for 8, 16, ... rows. Tiles with few rows, as in generation or at the end of a matrix,
// then do not take the time of 64 rows.
constexpr int kRowStep = 8;

template <class Function>
using Functions = std::array<std::array<Function, 2>, kMr / kRowStep>;  // [rows / 8 - 1][accumulate]

template <class Function, class Dispatch>
std::optional<Functions<Function>> compile(Dispatch dispatch) {
  // If libxsmm cannot allocate its registry or code buffer, libxsmm reports no error and dereferences a null
  // pointer. Therefore this function first allocates the same amount of memory. If memory is short, this
  // allocation throws an exception.
  constexpr std::size_t kTaken = std::size_t{32} << 20;
  std::make_unique_for_overwrite<std::byte[]>(kTaken);
  libxsmm_init();
  libxsmm_registry_info registry;
  if (libxsmm_get_registry_info(&registry) != EXIT_SUCCESS) throw std::bad_alloc();
  Functions<Function> functions;
  for (int step = 0; step < kMr / kRowStep; ++step) {
    for (int accumulate = 0; accumulate < 2; ++accumulate) {
      const libxsmm_blasint ld_b = kNr, ld_a = kKb, ld_c = kNr;
      const float alpha = 1, beta = static_cast<float>(accumulate);
      Function& f = functions[static_cast<std::size_t>(step)][static_cast<std::size_t>(accumulate)];
      f = dispatch((step + 1) * kRowStep, &ld_b, &ld_a, &ld_c, &alpha, &beta);
      if (!f) return std::nullopt;  // no code generator for this CPU, or no executable memory
    }
  }
  return functions;
}

using FunctionF32 = libxsmm_smmfunction_reducebatch_strd;
using FunctionBf16 = libxsmm_bsmmfunction_reducebatch_strd;

const std::optional<Functions<FunctionF32>>& functions_f32() {
  static const auto functions = compile<FunctionF32>([](int rows, const auto*... rest) {
    const auto call = [&](const libxsmm_blasint* ld_b, const libxsmm_blasint* ld_a,
                          const libxsmm_blasint* ld_c, const float* alpha, const float* beta) {
      return libxsmm_smmdispatch_reducebatch_strd(kNr, rows, kKb, kNr * kKb * 4, kMr * kKb * 4, ld_b, ld_a,
                                                  ld_c, alpha, beta, nullptr, nullptr);
    };
    return call(rest...);
  });
  return functions;
}

const std::optional<Functions<FunctionBf16>>& functions_bf16() {
  static const auto functions = compile<FunctionBf16>([](int rows, const auto*... rest) {
    const auto call = [&](const libxsmm_blasint* ld_b, const libxsmm_blasint* ld_a,
                          const libxsmm_blasint* ld_c, const float* alpha, const float* beta) {
      return libxsmm_bsmmdispatch_reducebatch_strd(kNr, rows, kKb, kNr * kKb * 2, kMr * kKb * 2, ld_b, ld_a,
                                                   ld_c, alpha, beta, nullptr, nullptr);
    };
    return call(rest...);
  });
  return functions;
}

template <class Function>
Function pick(const Functions<Function>& functions, const TileCall& call) {
  const auto step = static_cast<std::size_t>((call.rows - 1) / kRowStep);
  return functions[step][call.c_in ? 1 : 0];
}

void run_f32(const TileCall& call) {
  static const Functions<FunctionF32>& functions = *functions_f32();
  const auto count = static_cast<unsigned long long>(call.blocks);
  pick(functions, call)(static_cast<const float*>(call.b), static_cast<const float*>(call.a), call.c_out,
                        &count);
}

void run_bf16(const TileCall& call) {
  static const Functions<FunctionBf16>& functions = *functions_bf16();
  const auto count = static_cast<unsigned long long>(call.blocks);
  pick(functions, call)(static_cast<const libxsmm_bfloat16*>(call.b),
                        static_cast<const libxsmm_bfloat16*>(call.a), call.c_out, &count);
}

Kernel make(DType packed, const OperandPackers& packers, const TileIoFunctions& io,
            void (*run)(const TileCall&)) {
  return {.mr = kMr,
          .nr = kNr,
          .kb = kKb,
          .max_panel = 512,
          .cache = {512 << 10, 256, 128 << 10, 384 << 10},
          .packed = packed,
          .run = run,
          .pack = packers,
          .io = io};
}

}  // namespace

const Kernel* xsmm_kernel(DType ab_dtype) {
  static const bool available = functions_f32().has_value();
  static const Kernel f32 = make(
      DType::kF32, cpu_features().avx512 ? f32_packers_64x64x64_avx512() : f32_packers_64x64x64(DType::kF32),
      tile_io(), run_f32);
  static const Kernel bf16 = make(DType::kF32, f32_packers_64x64x64(DType::kBF16), tile_io(), run_f32);
  if (!available) return nullptr;
  return ab_dtype == DType::kF32 ? &f32 : &bf16;
}

const Kernel* xsmm_bf16_kernel() {
  // On older AVX-512 CPUs, libxsmm emulates bf16. The emulation is slower than fp32.
  static const bool available = cpu_features().avx512_bf16 &&
                                libxsmm_get_target_archid() >= LIBXSMM_X86_AVX512_CPX &&
                                functions_bf16().has_value();
  static const Kernel kernel = make(DType::kBF16, bf16_packers_64x64x64(), tile_io_avx512_bf16(), run_bf16);
  return available ? &kernel : nullptr;
}

}  // namespace primus::turbo::gemm
