// fp8 products on GPUs: our kernels quantize, and the vendor's library multiplies (linear/gpu_blas.h). The
// emulator has no library and multiplies codes as fp32 numbers.
#include <cmath>

#include "turbo/fp8_linear/fp8_fnuz.h"
#include "turbo/fp8_linear/fp8_linear.h"
#include "turbo/gpu/fp8_codes.h"
#include "turbo/gpu/gemm_tile.h"
#include "turbo/gpu/loops.h"
#include "turbo/gpu/reduce.h"
#include "turbo/gpu/register.h"
#include "turbo/linear/gpu_blas.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

// ---- The largest magnitude ----------------------------------------------------------------------

// Returns the larger of two magnitudes, given as bits. Bits are in the order of magnitudes; infinity and then
// NaN follow the largest number.
struct Larger {
  PRIMUS_DEVICE std::uint32_t operator()(std::uint32_t a, std::uint32_t b) const { return a > b ? a : b; }
};

// parts[block] = the bits of the largest magnitude among the elements of x that the block reads.
template <class T>
struct LargestParts {
  static constexpr int kThreads = 256, kCount = kVector<T>;
  const T* x;
  std::uint32_t* parts;
  std::int64_t packs, run;  // number of packs of kCount elements in x, and per block

  PRIMUS_DEVICE void operator()() const {
    const std::int64_t begin = block() * run, end = smaller(begin + run, packs);
    std::uint32_t largest = 0;
    PRIMUS_UNROLL_BY(4)
    for (std::int64_t i = begin + thread(); i < end; i += kThreads) {
      float values[kCount];
      load<kCount>(x + i * kCount, values);
      PRIMUS_UNROLL
      for (int k = 0; k < kCount; ++k)
        largest = Larger{}(largest, std::bit_cast<std::uint32_t>(values[k]) & 0x7FFFFFFFU);
    }
    largest = block_reduce<kThreads>(largest, Larger{});
    if (thread() == 0) parts[block()] = largest;
  }
};

// Computes the scales from the largest magnitudes of all blocks. Runs in one block.
struct ScalesOfParts {
  static constexpr int kThreads = 256;
  const std::uint32_t* parts;
  float* scales;
  std::int64_t count;
  float largest_code;

  PRIMUS_DEVICE void operator()() const {
    std::uint32_t largest = 0;
    for (std::int64_t i = thread(); i < count; i += kThreads) largest = Larger{}(largest, parts[i]);
    largest = block_reduce<kThreads>(largest, Larger{});
    if (thread() != 0) return;
    const Fp8Scales result = fp8_scales(largest, largest_code);
    scales[0] = result.inverse, scales[1] = result.scale;
  }
};

// ---- Codes --------------------------------------------------------------------------------------

constexpr int kLine = 16;  // number of codes in 16 bytes

// Converts four codes in OCP's format to codes that the GPU's products read.
template <class Code>
PRIMUS_DEVICE std::uint32_t codes_for_products(std::uint32_t codes) {
#if defined(__gfx940__) || defined(__gfx941__) || defined(__gfx942__)
  constexpr std::uint32_t kTop = Code::kDType == DType::kF8E4M3 ? 0x7EU : 0x7BU;
  std::uint32_t all = 0;
  PRIMUS_UNROLL
  for (unsigned i = 0; i < 4; ++i) all |= fnuz_code(codes >> 8U * i & 0xFFU, kTop) << 8U * i;
  return all;
#else
  return codes;
#endif
}

// A block quantizes a tile of 64 x 64. A thread quantizes 16 elements of a row and writes the codes. Then the
// thread reads 16 codes of a column from shared memory and writes these codes transposed. Extents are
// multiples of 16. If kKnown is set, the kernel uses the given scales, and infinities become NaN. In this
// case, the kernel computes the largest magnitude in the same pass.
template <class T, class Code, bool kKnown>
struct QuantizeTiles {
  static constexpr int kSide = 64, kThreads = kSide * kSide / kLine;
  const T* x;
  Code *codes, *transposed;  // either may be null
  const float* scales;
  std::int32_t* largest;  // may be null; used only if kKnown
  std::int64_t rows, cols;

  // Padding of each row puts adjacent rows in different banks.
  struct alignas(16) Tile {
    std::uint8_t at[kSide][kSide + 4];
  };

  // Returns the codes of kLine values. If kKnown, raises `magnitude` to the bits of their largest magnitude.
  PRIMUS_DEVICE static Bytes16 line_of(const T* from, float scale, std::uint32_t& magnitude) {
    constexpr int kCount = kVector<T>;
    float values[kLine];
    PRIMUS_UNROLL
    for (int i = 0; i < kLine; i += kCount) {
      float part[kCount];
      load_once<kCount>(from + i, part);
      PRIMUS_UNROLL
      for (int k = 0; k < kCount; ++k) {
        values[i + k] = part[k] * scale;
        if constexpr (kKnown) {
          const std::uint32_t bits = std::bit_cast<std::uint32_t>(part[k]) & 0x7FFFFFFFU;
          magnitude = Larger{}(magnitude, bits);
          if (bits >= 0x7F800000U) values[i + k] = std::bit_cast<float>(0x7FC00000U);
        }
      }
    }
    Bytes16 line;
    PRIMUS_UNROLL
    for (int w = 0; w < 4; ++w) {
      const float* v = values + 4 * w;
      line.word[w] =
          codes_for_products<Code>(two_codes<Code>(v[0], v[1]) | two_codes<Code>(v[2], v[3]) << 16U);
    }
    return line;
  }

  PRIMUS_DEVICE void operator()() const {
    constexpr int kLines = kSide / kLine;
    const std::int64_t across = (cols + kSide - 1) / kSide;
    const std::int64_t row = block() / across * kSide, col = block() % across * kSide;
    const int r = thread() / kLines, c = thread() % kLines * kLine;
    Tile& tile = shared<Tile>();
    std::uint32_t magnitude = 0;
    if (row + r < rows && col + c < cols) {
      const std::int64_t at = (row + r) * cols + col + c;
      const Bytes16 line = line_of(x + at, scales[1], magnitude);
      if (codes) *reinterpret_cast<Bytes16*>(codes + at) = line;
      PRIMUS_UNROLL
      for (int w = 0; w < 4; ++w) *reinterpret_cast<std::uint32_t*>(&tile.at[r][c + 4 * w]) = line.word[w];
    }
    if (kKnown && largest) {
      magnitude = block_reduce<kThreads>(magnitude, Larger{});
      // Most blocks find a larger stored value, and write nothing. The set of blocks that write may vary
      // between runs, but the result does not vary.
      const auto bits = static_cast<std::int32_t>(magnitude);
      if (thread() == 0 && bits > *static_cast<const volatile std::int32_t*>(largest))
        atomic_max(largest, bits);
    }
    if (!transposed) return;
    barrier();
    // Writes the transposed codes.
    if (col + r >= cols || row + c >= rows) return;
    Bytes16 line;
    PRIMUS_UNROLL
    for (int w = 0; w < 4; ++w) {
      std::uint32_t word = 0;
      PRIMUS_UNROLL
      for (int i = 0; i < 4; ++i)
        word |= static_cast<std::uint32_t>(tile.at[c + 4 * w + i][r]) << static_cast<unsigned>(8 * i);
      line.word[w] = word;
    }
    *reinterpret_cast<Bytes16*>(transposed + (col + r) * rows + row + c) = line;
  }
};

template <class T, class Code, bool kKnown>
void quantize_tiles(Context& context, const QuantizeFp8& call) {
  using Tiles = QuantizeTiles<T, Code, kKnown>;
  const std::int64_t rows = call.x.rows(), cols = call.x.cols();
  launch(context, blocks_for(rows, Tiles::kSide) * blocks_for(cols, Tiles::kSide),
         Tiles{context.data<T>(call.x), optional<Code>(context, call.codes),
               optional<Code>(context, call.transposed), context.data<float>(call.scales),
               optional<std::int32_t>(context, call.largest), rows, cols});
}

void quantize(Context& context, const QuantizeFp8& call) {
  with_float_type(call.x.dtype, [&](auto tag) {
    using T = decltype(tag);
    with_fp8_type(call.codes.absent() ? call.transposed.dtype : call.codes.dtype, [&](auto code_tag) {
      using Code = decltype(code_tag);
      if (call.known) return quantize_tiles<T, Code, true>(context, call);
      // Divides x into ranges of a few thousand elements, one per block, so that enough blocks keep a GPU
      // busy. The maximum does not depend on the division.
      constexpr std::int64_t kSmallest = 1024, kMax = 1024;
      const std::int64_t packs = call.x.elements() / kVector<T>;
      const std::int64_t run = std::max(blocks_for(packs, kMax), kSmallest), count = blocks_for(packs, run);
      auto* parts = partials<std::uint32_t>(context, count);
      launch(context, count, LargestParts<T>{context.data<T>(call.x), parts, packs, run});
      launch(context, 1, ScalesOfParts{parts, context.data<float>(call.scales), count, Code::largest()});
      quantize_tiles<T, Code, false>(context, call);
    });
  });
}

// ---- Scales of the next step --------------------------------------------------------------------

// Runs one block per tensor.
struct UpdateScales {
  static constexpr int kThreads = 256;
  const std::int32_t* largest;
  float *history, *scales;
  const float* norm;
  std::int64_t steps;
  float top, gradients_top;  // the largest codes, divided by 2^margin
  bool most_recent;

  PRIMUS_DEVICE static std::uint32_t bits(float x) { return std::bit_cast<std::uint32_t>(x) & 0x7FFFFFFFU; }

  PRIMUS_DEVICE void operator()() const {
    if (bits(norm[0]) >= 0x7F800000U) return;
    float* const row = history + block() * steps;
    const auto newest = static_cast<std::uint32_t>(largest[block()]);
    std::uint32_t magnitude = newest;
    // Shifts the history by one step. The shift starts with the oldest entries, so that each entry is read
    // before it is overwritten.
    for (std::int64_t begin = (steps - 1) / kThreads * kThreads; begin >= 0; begin -= kThreads) {
      const std::int64_t i = begin + thread();
      const bool stays = i + 1 < steps;
      const float moved = stays ? row[i] : 0.0F;
      magnitude = Larger{}(magnitude, bits(moved));
      barrier();
      if (stays) row[i + 1] = moved;
      barrier();
    }
    magnitude = block_reduce<kThreads>(magnitude, Larger{});
    if (thread() != 0) return;
    row[0] = std::bit_cast<float>(newest);
    constexpr std::int64_t kTensors = UpdateFp8Scales::kTensors;
    float* const own = scales + UpdateFp8Scales::kPlace * block();
    const Fp8Scales next = delayed_fp8_scales(
        most_recent ? newest : magnitude, block() % kTensors == kTensors - 1 ? gradients_top : top, own[1]);
    own[0] = next.inverse, own[1] = next.scale;
  }
};

void update_scales(Context& context, const UpdateFp8Scales& call) {
  const float headroom = std::ldexp(1.0F, -call.margin);
  const float gradients = call.gradients == DType::kF8E5M2 ? Fp8E5M2::largest() : Fp8E4M3::largest();
  launch(context, call.largest.elements(),
         UpdateScales{context.data<std::int32_t>(call.largest), context.data<float>(call.history),
                      context.data<float>(call.scales), context.data<float>(call.norm), call.history.cols(),
                      Fp8E4M3::largest() * headroom, gradients * headroom, call.most_recent});
}

// ---- Products -----------------------------------------------------------------------------------

#ifdef PRIMUS_GPU_VENDOR

CodeProduct product_of(const Fp8Gemm& call) {
  return {.a = call.a,
          .b = call.b,
          .c = call.c,
          .a_scale = call.a_scales.data,
          .b_scale = call.b_scales.data,
          .accumulate = call.accumulate,
          .fast = call.fast,
          .spared = call.spared,
          .workspace = call.workspace};
}
void multiply_codes(Context& context, const Fp8Gemm& call) { multiply_by_library(context, product_of(call)); }
std::int64_t workspace(Context& context, const Fp8Gemm& call) {
  return library_workspace(context, product_of(call));
}

#else

template <class C>
struct ScaledBody {
  const float *sums, *a_scales, *b_scales;
  C* c;
  bool accumulate;

  PRIMUS_DEVICE void operator()(std::int64_t i) const {
    const float value = sums[i] * (a_scales[0] * b_scales[0]);
    c[i] = from_float<C>(accumulate ? to_float(c[i]) + value : value);
  }
};

void multiply_codes(Context& context, const Fp8Gemm& call) {
  auto* sums = context.data<float>(call.workspace);
  with_fp8_type(call.a.dtype, [&](auto a) {
    with_fp8_type(call.b.dtype, [&](auto b) {
      TileProduct<decltype(a), decltype(b), float> product{};
      product.m = call.a.rows(), product.n = call.b.rows(), product.k = call.a.cols();
      product.a = context.data<decltype(a)>(call.a);
      product.b = context.data<decltype(b)>(call.b);
      product.c = sums;
      product.a_row = product.b_row = product.k, product.a_col = product.b_col = 1;
      product.c_row = product.n;
      product.batches = 1;
      run_product(context, product);
    });
  });
  with_float_type(call.c.dtype, [&](auto tag) {
    using C = decltype(tag);
    for_each(context, call.c.elements(),
             ScaledBody<C>{sums, context.data<float>(call.a_scales), context.data<float>(call.b_scales),
                           context.data<C>(call.c), call.accumulate});
  });
}

std::int64_t workspace(Context&, const Fp8Gemm& call) { return call.c.elements() * size_of(DType::kF32); }

#endif

}  // namespace

void register_fp8_linear(KernelTable& table) {
  table.add<QuantizeFp8, Context, &quantize>();
  table.add<UpdateFp8Scales, Context, &update_scales>();
  table.add<Fp8Gemm, Context, &multiply_codes, &workspace>();
}

}  // namespace primus::turbo::PRIMUS_GPU
