#include <algorithm>
#include <vector>

#include "turbo/cpu/register.h"
#include "turbo/cpu/simd.h"
#include "turbo/mxfp4/mxfp4.h"
#include "turbo/step_scalars.h"
#include "turbo/stochastic_rounding.h"

namespace primus::turbo::PRIMUS_CPU_ISA {
namespace {

constexpr std::int64_t kColumns = 64;  // columns that are processed at a time; a multiple of the block size

PRIMUS_INLINE std::uint32_t magnitude(float x) { return std::bit_cast<std::uint32_t>(x) & 0x7FFFFFFFU; }

// Rounds `count` numbers of a row from `column` on; each number has its own scale.
template <class T>
struct Rounding {
  const Mxfp4Random* random = nullptr;  // null: rounds to nearest
  const std::int32_t* tokens = nullptr;
  RoundingBits bits{0, 0};

  Rounding(const CpuContext& context, const RoundMxfp4& call) {
    if (call.random.absent()) return;
    random = &call.random;
    tokens = context.data<const std::int32_t>(random->tokens);
    const double step = context.data<const double>(random->scalars)[index(StepScalar::kStep)];
    bits = RoundingBits(random->stream, static_cast<std::uint64_t>(step));
  }

  void operator()(const float* x, const float* scale, const float* inverse, std::int64_t row,
                  std::int64_t column, std::int64_t count, T* out) const {
    if (!random) {
      PRIMUS_SIMD()
      for (std::int64_t i = 0; i < count; ++i)
        out[i] = from_float<T>(e2m1_nearest(x[i] * inverse[i]) * scale[i]);
      return;
    }
    const std::int64_t first = tokens[row] * random->width;
    int run = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t c = column + i;
      while (run + 1 < random->run_count && random->runs[run + 1].begin <= c) ++run;
      const std::int64_t whole = c - random->runs[run].begin + random->runs[run].whole;
      out[i] = from_float<T>(e2m1_at_random(x[i] * inverse[i], bits.of(first + whole)) * scale[i]);
    }
  }
};

template <class T>
void round_rows(CpuContext& context, const RoundMxfp4& call) {
  const T* x = context.data<const T>(call.x);
  T* const out = context.data<T>(call.out);
  const std::int64_t cols = call.x.cols();
  const Rounding<T> rounding(context, call);
  parallel_ranges(context, call.x.rows(), 2 * cols * static_cast<std::int64_t>(sizeof(T)),
                  [&](std::int64_t begin, std::int64_t end) {
                    float values[kMxBlock], scale[kMxBlock], inverse[kMxBlock];
                    for (std::int64_t row = begin; row < end; ++row) {
                      for (std::int64_t col = 0; col < cols; col += kMxBlock) {
                        const std::int64_t count = std::min(kMxBlock, cols - col), at = row * cols + col;
                        std::uint32_t largest = 0;
                        PRIMUS_SIMD(reduction(max : largest))
                        for (std::int64_t i = 0; i < count; ++i) {
                          values[i] = to_float(x[at + i]);
                          largest = std::max(largest, magnitude(values[i]));
                        }
                        const MxScale own = mx_scale(largest);
                        std::fill_n(scale, count, own.scale);
                        std::fill_n(inverse, count, own.inverse);
                        rounding(values, scale, inverse, row, col, count, out + at);
                      }
                    }
                  });
}

// Rows [begin, end), which share scales.
struct Strip {
  std::int64_t begin, end;
};

std::vector<Strip> strips_of(const CpuContext& context, const RoundMxfp4& call) {
  std::vector<Strip> strips;
  const auto cut = [&](std::int64_t begin, std::int64_t end) {
    for (; begin < end; begin += kMxBlock) strips.push_back({begin, std::min(begin + kMxBlock, end)});
  };
  if (!call.offsets.absent()) {
    const auto* offsets = context.data<const std::int32_t>(call.offsets);
    for (std::int64_t g = 0; g + 1 < call.offsets.elements(); ++g) cut(offsets[g], offsets[g + 1]);
    return strips;
  }
  const std::int64_t rows = call.x.rows(), of_matrix = call.x.shape.rank() == 3 ? call.x.shape[1] : rows;
  for (std::int64_t row = 0; row < rows; row += of_matrix) cut(row, row + of_matrix);
  return strips;
}

// Multiplies each group of 16 consecutive rows by H/4.
void transform(float (*values)[kColumns], std::int64_t rows, std::int64_t count) {
  for (std::int64_t first = 0; first + kMxHadamard <= rows; first += kMxHadamard) {
    for (std::int64_t apart = 1; apart < kMxHadamard; apart *= 2) {
      for (std::int64_t r = 0; r < kMxHadamard; ++r) {
        if (r & apart) continue;
        float *const a = values[first + r], *const b = values[first + r + apart];
        PRIMUS_SIMD()
        for (std::int64_t c = 0; c < count; ++c) {
          const float sum = a[c] + b[c], difference = a[c] - b[c];
          a[c] = sum, b[c] = difference;
        }
      }
    }
    for (std::int64_t r = 0; r < kMxHadamard; ++r)
      for (std::int64_t c = 0; c < count; ++c) values[first + r][c] *= 0.25F;
  }
}

template <class T>
void round_strips(CpuContext& context, const RoundMxfp4& call) {
  const T* x = context.data<const T>(call.x);
  T* const out = context.data<T>(call.out);
  const auto* picks = call.picks.absent() ? nullptr : context.data<const std::int32_t>(call.picks);
  const std::int64_t cols = call.x.cols(), across = (cols + kColumns - 1) / kColumns;
  const std::vector<Strip> strips = strips_of(context, call);
  const Rounding<T> rounding(context, call);
  const auto piece = [&](const Strip& strip, std::int64_t col) {
    float values[kMxBlock][kColumns], scale[kColumns], inverse[kColumns];
    const std::int64_t rows = strip.end - strip.begin, count = std::min(kColumns, cols - col);
    for (std::int64_t r = 0; r < rows; ++r) {
      const std::int64_t row = strip.begin + r;
      const T* const from = x + (picks ? picks[row] : row) * cols + col;
      PRIMUS_SIMD()
      for (std::int64_t c = 0; c < count; ++c) values[r][c] = to_float(from[c]);
    }
    if (call.hadamard) transform(values, rows, count);
    std::uint32_t largest[kColumns] = {};
    for (std::int64_t r = 0; r < rows; ++r) {
      PRIMUS_SIMD()
      for (std::int64_t c = 0; c < count; ++c) largest[c] = std::max(largest[c], magnitude(values[r][c]));
    }
    if (call.blocks == RoundMxfp4::Blocks::kTiles) {
      for (std::int64_t c = 0; c < count; c += kMxBlock) {
        const std::int64_t end = std::min(c + kMxBlock, count);
        const std::uint32_t of_tile = *std::max_element(largest + c, largest + end);
        std::fill(largest + c, largest + end, of_tile);
      }
    }
    for (std::int64_t c = 0; c < count; ++c) {
      const MxScale own = mx_scale(largest[c]);
      scale[c] = own.scale, inverse[c] = own.inverse;
    }
    for (std::int64_t r = 0; r < rows; ++r)
      rounding(values[r], scale, inverse, strip.begin + r, col, count, out + (strip.begin + r) * cols + col);
  };
  context.pool().parallel_for(static_cast<std::int64_t>(strips.size()) * across, 8,
                              [&](std::int64_t begin, std::int64_t end, int) {
                                for (std::int64_t i = begin; i < end; ++i)
                                  piece(strips[static_cast<std::size_t>(i / across)], i % across * kColumns);
                              });
}

void round(CpuContext& context, const RoundMxfp4& call) {
  with_float_type(call.x.dtype, [&](auto tag) {
    using T = decltype(tag);
    call.blocks == RoundMxfp4::Blocks::kRows ? round_rows<T>(context, call) : round_strips<T>(context, call);
  });
}

}  // namespace

void register_mxfp4(KernelTable& table) { table.add<RoundMxfp4, CpuContext, &round>(); }

}  // namespace primus::turbo::PRIMUS_CPU_ISA
