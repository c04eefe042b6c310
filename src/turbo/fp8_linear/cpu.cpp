// fp8 products on the CPU, which has no fp8 instructions. Codes are converted exactly to bf16 and multiplied
// as bf16 numbers. Only the result is scaled.
#include <algorithm>
#include <atomic>
#include <cmath>

#include "turbo/cpu/register.h"
#include "turbo/cpu/simd.h"
#include "turbo/fp8_linear/fp8_linear.h"
#include "turbo/gemm/gemm.h"

namespace primus::turbo::PRIMUS_CPU_ISA {
namespace {

// ---- Quantization -------------------------------------------------------------------------------

// Returns the bits of the largest magnitude of x[begin .. end). The order of the bits is the order of the
// magnitudes; infinity and then NaN follow the largest number.
template <class T>
std::uint32_t largest_magnitude(const T* x, std::int64_t begin, std::int64_t end) {
  std::uint32_t largest = 0;
  PRIMUS_SIMD(reduction(max : largest))
  for (std::int64_t i = begin; i < end; ++i)
    largest = std::max(largest, std::bit_cast<std::uint32_t>(to_float(x[i])) & 0x7FFFFFFFU);
  return largest;
}

// Computes the largest magnitude with all threads. The result does not depend on the order of the threads.
template <class T>
std::uint32_t largest_magnitude(const CpuContext& context, const T* x, std::int64_t n) {
  constexpr std::int64_t kSlices = 256, kSmallest = 32768;
  const std::int64_t grain = std::max((n + kSlices - 1) / kSlices, kSmallest);
  std::uint32_t parts[kSlices] = {};
  context.pool().parallel_for(n, grain, [&](std::int64_t begin, std::int64_t end, int) {
    parts[begin / grain] = largest_magnitude(x, begin, end);
  });
  return *std::max_element(parts, parts + kSlices);
}

// Quantizes a matrix tile by tile. The codes of a tile are then still in L1 when the transposed codes are
// written.
template <class T, class Code>
struct Quantizer {
  static constexpr std::int64_t kSide = 64;
  const T* x;
  Code *codes, *transposed;  // either may be null
  std::int64_t rows, cols;
  float scale;

  // Returns the bits of the tile's largest magnitude.
  std::uint32_t tile(std::int64_t row, std::int64_t col) const {
    Code tile[kSide][kSide];
    const std::int64_t height = std::min(kSide, rows - row), width = std::min(kSide, cols - col);
    std::uint32_t largest = 0;
    for (std::int64_t r = 0; r < height; ++r) {
      const T* from = x + (row + r) * cols + col;
      Code* const to = tile[r];
      PRIMUS_SIMD(reduction(max : largest))
      for (std::int64_t c = 0; c < width; ++c) {
        const float value = to_float(from[c]);
        const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(value) & 0x7FFFFFFFU;
        largest = std::max(largest, magnitude);
        to[c] = Code::nearest(value * (magnitude < 0x7F800000U ? scale : std::bit_cast<float>(0x7FC00000U)));
      }
      if (codes) std::copy_n(to, width, codes + (row + r) * cols + col);
    }
    if (!transposed) return largest;
    for (std::int64_t c = 0; c < width; ++c) {
      Code* const to = transposed + (col + c) * rows + row;
      for (std::int64_t r = 0; r < height; ++r) to[r] = tile[r][c];
    }
    return largest;
  }
};

void quantize(CpuContext& context, const QuantizeFp8& call) {
  with_float_type(call.x.dtype, [&](auto tag) {
    using T = decltype(tag);
    with_fp8_type(call.codes.absent() ? call.transposed.dtype : call.codes.dtype, [&](auto code_tag) {
      using Code = decltype(code_tag);
      const T* x = context.data<T>(call.x);
      float* const scales = context.data<float>(call.scales);
      if (!call.known) {
        const Fp8Scales own = fp8_scales(largest_magnitude(context, x, call.x.elements()), Code::largest());
        scales[0] = own.inverse, scales[1] = own.scale;
      }
      using Tiles = Quantizer<T, Code>;
      const Tiles tiles{x,
                        context.data<Code>(call.codes),
                        context.data<Code>(call.transposed),
                        call.x.rows(),
                        call.x.cols(),
                        scales[1]};
      const std::int64_t across = (tiles.cols + Tiles::kSide - 1) / Tiles::kSide;
      const std::int64_t down = (tiles.rows + Tiles::kSide - 1) / Tiles::kSide;
      std::atomic<std::uint32_t> largest = 0;
      context.pool().parallel_for(across * down, 8, [&](std::int64_t begin, std::int64_t end, int) {
        std::uint32_t of_run = 0;
        for (std::int64_t i = begin; i < end; ++i)
          of_run = std::max(of_run, tiles.tile(i / across * Tiles::kSide, i % across * Tiles::kSide));
        std::uint32_t before = largest.load(std::memory_order_relaxed);
        while (before < of_run && !largest.compare_exchange_weak(before, of_run)) {
        }
      });
      if (call.largest.absent()) return;
      auto& recorded = *context.data<std::int32_t>(call.largest);
      recorded = std::max(recorded, static_cast<std::int32_t>(largest.load()));
    });
  });
}

void update_scales(CpuContext& context, const UpdateFp8Scales& call) {
  constexpr std::uint32_t kInfinity = 0x7F800000U;
  const auto bits = [](float x) { return std::bit_cast<std::uint32_t>(x) & 0x7FFFFFFFU; };
  if (bits(*context.data<float>(call.norm)) >= kInfinity) return;
  const auto* largest = context.data<std::int32_t>(call.largest);
  float *history = context.data<float>(call.history), *scales = context.data<float>(call.scales);
  const std::int64_t steps = call.history.cols();
  const float headroom = std::ldexp(1.0F, -call.margin);
  const float top = Fp8E4M3::largest() * headroom,
              gradients_top =
                  (call.gradients == DType::kF8E5M2 ? Fp8E5M2::largest() : Fp8E4M3::largest()) * headroom;
  for (std::int64_t i = 0; i < call.largest.elements();
       ++i, history += steps, scales += UpdateFp8Scales::kPlace) {
    std::copy_backward(history, history + steps - 1, history + steps);
    auto decides = static_cast<std::uint32_t>(largest[i]);
    history[0] = std::bit_cast<float>(decides);
    for (std::int64_t s = 1; !call.most_recent && s < steps; ++s)
      decides = std::max(decides, bits(history[s]));
    const bool gradient = i % UpdateFp8Scales::kTensors == UpdateFp8Scales::kTensors - 1;
    const Fp8Scales next = delayed_fp8_scales(decides, gradient ? gradients_top : top, scales[1]);
    scales[0] = next.inverse, scales[1] = next.scale;
  }
}

// ---- Products -----------------------------------------------------------------------------------

// Byte offsets in the workspace, which holds a in bf16, then b in bf16, the sums, and the workspace of gemm.
// `all` is the total size.
struct Places {
  std::int64_t b, sums, rest, all;
};

GemmArgs gemm_args(const Fp8Gemm& call) {
  GemmArgs args;
  args.layout = GemmLayout::kNT;
  args.ab_dtype = DType::kBF16;
  args.c_dtype = DType::kF32;
  args.m = call.a.rows(), args.n = call.b.rows(), args.k = call.a.cols();
  args.lda = args.ldb = args.k, args.ldc = args.n;
  return args;
}

// Returns whether sums are written directly to the result: fp32 without accumulation.
bool in_place(const Fp8Gemm& call) { return call.c.dtype == DType::kF32 && !call.accumulate; }

Places places(const CpuContext& context, const Fp8Gemm& call) {
  const auto rounded = [](std::int64_t bytes) { return (bytes + 63) / 64 * 64; };  // rounds up to cache lines
  Places p{};
  p.b = rounded(call.a.elements() * size_of(DType::kBF16));
  p.sums = p.b + rounded(call.b.elements() * size_of(DType::kBF16));
  p.rest = p.sums + (in_place(call) ? 0 : rounded(call.c.elements() * size_of(DType::kF32)));
  p.all = p.rest + static_cast<std::int64_t>(cpu_gemm_workspace_bytes(gemm_args(call), context.threads()));
  return p;
}

void widen(const CpuContext& context, const Tensor& codes, BFloat16* out) {
  with_fp8_type(codes.dtype, [&](auto tag) {
    const auto* x = context.data<decltype(tag)>(codes);
    parallel_ranges(context, codes.elements(), 3, [=](std::int64_t begin, std::int64_t end) {
      PRIMUS_SIMD()
      for (std::int64_t i = begin; i < end; ++i) out[i] = from_float<BFloat16>(x[i].value());
    });
  });
}

void scale(const CpuContext& context, const Fp8Gemm& call, const float* sums) {
  const float factor = context.data<float>(call.a_scales)[0] * context.data<float>(call.b_scales)[0];
  with_float_type(call.c.dtype, [&](auto tag) {
    using C = decltype(tag);
    C* const c = context.data<C>(call.c);
    const bool accumulate = call.accumulate;
    parallel_ranges(context, call.c.elements(), 2 * sizeof(float) + sizeof(C),
                    [=](std::int64_t begin, std::int64_t end) {
                      if (accumulate) {
                        PRIMUS_SIMD()
                        for (std::int64_t i = begin; i < end; ++i)
                          c[i] = from_float<C>(to_float(c[i]) + sums[i] * factor);
                      } else {
                        PRIMUS_SIMD()
                        for (std::int64_t i = begin; i < end; ++i) c[i] = from_float<C>(sums[i] * factor);
                      }
                    });
  });
}

void multiply(CpuContext& context, const Fp8Gemm& call) {
  const Places at = places(context, call);
  auto* const workspace = context.data<std::byte>(call.workspace);
  auto *const a = reinterpret_cast<BFloat16*>(workspace), *const b =
                                                              reinterpret_cast<BFloat16*>(workspace + at.b);
  float* const sums =
      in_place(call) ? context.data<float>(call.c) : reinterpret_cast<float*>(workspace + at.sums);
  widen(context, call.a, a);
  widen(context, call.b, b);
  GemmArgs args = gemm_args(call);
  args.a = a, args.b = b, args.c = sums;
  args.workspace = workspace + at.rest;
  args.workspace_bytes = static_cast<std::size_t>(at.all - at.rest);
  cpu_gemm(context.pool(), args);
  scale(context, call, sums);
}

std::int64_t workspace(CpuContext& context, const Fp8Gemm& call) { return places(context, call).all; }

}  // namespace

void register_fp8_linear(KernelTable& table) {
  table.add<QuantizeFp8, CpuContext, &quantize>();
  table.add<UpdateFp8Scales, CpuContext, &update_scales>();
  table.add<Fp8Gemm, CpuContext, &multiply, &workspace>();
}

}  // namespace primus::turbo::PRIMUS_CPU_ISA
