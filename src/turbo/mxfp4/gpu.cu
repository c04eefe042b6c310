// Both kernels are memory-bound. They read x once and write the rounded values once, in x's type.
#include "turbo/gpu/reduce.h"
#include "turbo/gpu/register.h"
#include "turbo/mxfp4/mxfp4.h"
#include "turbo/step_scalars.h"
#include "turbo/stochastic_rounding.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

PRIMUS_DEVICE std::uint32_t magnitude(float x) { return std::bit_cast<std::uint32_t>(x) & 0x7FFFFFFFU; }
PRIMUS_DEVICE std::uint32_t larger(std::uint32_t a, std::uint32_t b) { return a > b ? a : b; }

// Rounds the number at a row and a column.
template <bool kRandom>
struct Rounding {
  const std::int32_t* tokens;
  const double* scalars;
  std::uint64_t stream;
  std::int64_t width;
  int run_count;
  Mxfp4Random::Columns runs[Mxfp4Random::kMaxRuns];

  PRIMUS_DEVICE float operator()(float x, const MxScale& scale, std::int64_t row, std::int64_t column) const {
    if constexpr (kRandom) {
      std::int64_t element = tokens[row] * width + column + runs[0].whole;
      PRIMUS_UNROLL
      for (int run = 1; run < Mxfp4Random::kMaxRuns; ++run) {
        if (run < run_count && runs[run].begin <= column)
          element = tokens[row] * width + column - runs[run].begin + runs[run].whole;
      }
      const double step = scalars[static_cast<std::size_t>(StepScalar::kStep)];
      const RoundingBits bits(stream, static_cast<std::uint64_t>(step));
      return e2m1_at_random(x * scale.inverse, bits.of(element)) * scale.scale;
    } else {
      return e2m1_nearest(x * scale.inverse) * scale.scale;
    }
  }
};

// A thread has kCount adjacent numbers, so a few lanes process one MXFP4 block together.
template <class T, int kCount, bool kRandom>
struct RoundRows {
  static constexpr int kThreads = 256, kLanes = static_cast<int>(kMxBlock) / kCount;
  const T* x;
  T* out;
  std::int64_t rows, cols, across;  // across: number of blocks in a row
  Rounding<kRandom> rounding;

  PRIMUS_DEVICE void operator()() const {
    const std::int64_t item = block() * kThreads + thread(), of_block = item / kLanes;
    const std::int64_t row = of_block / across;
    const std::int64_t column = of_block % across * kMxBlock + item % kLanes * kCount;
    const bool here = row < rows && column < cols;
    float values[kCount] = {};
    if (here) load<kCount>(x + row * cols + column, values);
    std::uint32_t largest = 0;
    PRIMUS_UNROLL
    for (int i = 0; i < kCount; ++i) largest = larger(largest, magnitude(values[i]));
    PRIMUS_UNROLL
    for (int mask = kLanes / 2; mask > 0; mask /= 2) largest = larger(largest, from_lane_xor(largest, mask));
    if (!here) return;
    const MxScale scale = mx_scale(largest);
    PRIMUS_UNROLL
    for (int i = 0; i < kCount; ++i) values[i] = rounding(values[i], scale, row, column + i);
    store<kCount>(out + row * cols + column, values);
  }
};

// A thread processes one column of a strip of 32 rows.
template <class T, bool kTiles, bool kRandom>
struct RoundStrips {
  static constexpr int kThreads = 256, kRows = static_cast<int>(kMxBlock);
  const T* x;
  T* out;
  const std::int32_t *offsets, *picks;  // may be null
  std::int64_t groups, of_matrix, cols, across;
  bool hadamard;
  Rounding<kRandom> rounding;

  PRIMUS_DEVICE void transform(float (&values)[kRows], std::int64_t rows) const {
    constexpr int kLength = static_cast<int>(kMxHadamard);
    PRIMUS_UNROLL
    for (int first = 0; first < kRows; first += kLength) {
      if (first + kLength > rows) return;
      PRIMUS_UNROLL
      for (int apart = 1; apart < kLength; apart *= 2) {
        PRIMUS_UNROLL
        for (int r = 0; r < kLength; ++r) {
          if (r & apart) continue;
          const float a = values[first + r], b = values[first + r + apart];
          values[first + r] = a + b;
          values[first + r + apart] = a - b;
        }
      }
      PRIMUS_UNROLL
      for (int r = 0; r < kLength; ++r) values[first + r] *= 0.25F;
    }
  }

  PRIMUS_DEVICE void operator()() const {
    const std::int64_t column = block() % across * kThreads + thread();
    std::int64_t strip = block() / across, begin = 0, end = 0;
    if (offsets) {
      for (std::int64_t g = 0; g < groups && begin == end; ++g) {
        const std::int64_t count = (offsets[g + 1] - offsets[g] + kRows - 1) / kRows;
        if (strip < count) {
          begin = offsets[g] + strip * kRows;
          end = smaller(begin + kRows, static_cast<std::int64_t>(offsets[g + 1]));
        }
        strip -= count;
      }
    } else {
      const std::int64_t strips = (of_matrix + kRows - 1) / kRows, first = strip / strips * of_matrix;
      begin = first + strip % strips * kRows;
      end = smaller(begin + kRows, first + of_matrix);
    }
    const bool here = column < cols;
    float values[kRows];
    PRIMUS_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const std::int64_t row = begin + r;
      values[r] = here && row < end ? to_float(x[(picks ? picks[row] : row) * cols + column]) : 0.0F;
    }
    if (hadamard) transform(values, end - begin);
    std::uint32_t largest = 0;
    PRIMUS_UNROLL
    for (int r = 0; r < kRows; ++r) largest = larger(largest, magnitude(values[r]));
    if constexpr (kTiles) {
      PRIMUS_UNROLL
      for (int mask = kRows / 2; mask > 0; mask /= 2) largest = larger(largest, from_lane_xor(largest, mask));
    }
    if (!here) return;
    const MxScale scale = mx_scale(largest);
    PRIMUS_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const std::int64_t row = begin + r;
      if (row < end) out[row * cols + column] = from_float<T>(rounding(values[r], scale, row, column));
    }
  }
};

template <class T, bool kRandom>
void round_as(Context& context, const RoundMxfp4& call) {
  const Mxfp4Random& random = call.random;
  Rounding<kRandom> rounding{};
  if constexpr (kRandom) {
    rounding.tokens = context.data<std::int32_t>(random.tokens);
    rounding.scalars = context.data<double>(random.scalars);
    rounding.stream = random.stream, rounding.width = random.width, rounding.run_count = random.run_count;
    for (int run = 0; run < random.run_count; ++run) rounding.runs[run] = random.runs[run];
  }
  const T* x = context.data<T>(call.x);
  T* const out = context.data<T>(call.out);
  const std::int64_t rows = call.x.rows(), cols = call.x.cols();
  if (call.blocks == RoundMxfp4::Blocks::kRows) {
    const std::int64_t across = blocks_for(cols, kMxBlock);
    return with_vector<T>(rows_of_vectors<T>(cols, x, out), [&](auto count) {
      using Rows = RoundRows<T, count, kRandom>;
      launch(context, blocks_for(rows * across * Rows::kLanes, Rows::kThreads),
             Rows{x, out, rows, cols, across, rounding});
    });
  }
  const bool grouped = !call.offsets.absent();
  const std::int64_t groups = grouped ? call.offsets.elements() - 1 : 0,
                     matrices = call.x.shape.rank() == 3 ? call.x.shape[0] : 1;
  const std::int64_t of_matrix = rows / matrices;
  // Counts one more strip per group, because each group may end with a partial strip.
  const std::int64_t strips =
      grouped ? call.out.rows() / kMxBlock + groups : matrices * blocks_for(of_matrix, kMxBlock);
  const auto with = [&](auto tiles) {
    using Strips = RoundStrips<T, tiles, kRandom>;
    const std::int64_t across = blocks_for(cols, Strips::kThreads);
    launch(context, strips * across,
           Strips{x, out, optional<std::int32_t>(context, call.offsets),
                  optional<std::int32_t>(context, call.picks), groups, of_matrix, cols, across, call.hadamard,
                  rounding});
  };
  if constexpr (!kRandom) {
    if (call.blocks == RoundMxfp4::Blocks::kTiles) return with(std::true_type{});
  }
  with(std::false_type{});
}

void round(Context& context, const RoundMxfp4& call) {
  with_float_type(call.x.dtype, [&](auto tag) {
    using T = decltype(tag);
    call.random.absent() ? round_as<T, false>(context, call) : round_as<T, true>(context, call);
  });
}

}  // namespace

void register_mxfp4(KernelTable& table) { table.add<RoundMxfp4, Context, &round>(); }

}  // namespace primus::turbo::PRIMUS_GPU
