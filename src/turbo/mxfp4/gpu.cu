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

// Rounds strips of 32 rows down their columns. A thread processes kCount adjacent columns. If kCount exceeds
// 1, two lanes share a strip: each has 16 rows, because 32 rows need too many registers.
template <class T, int kCount, bool kTiles, bool kRandom>
struct RoundStrips {
  static constexpr int kThreads = 128, kRows = static_cast<int>(kMxBlock), kLanes = kCount > 1 ? 2 : 1;
  static constexpr int kOwn = kRows / kLanes, kAcross = 32 / kLanes;  // rows per thread; packs of 32 lanes
  static constexpr int kColumns = kThreads / kLanes * kCount;         // columns of a block
  static_assert(kOwn % kMxHadamard == 0);
  const T* x;
  T* out;
  const std::int32_t *offsets, *picks;  // may be null
  std::int64_t groups, of_matrix, cols, across;
  bool hadamard;
  Rounding<kRandom> rounding;

  // Transforms each complete group of rows; `rows`: number of rows of this thread.
  PRIMUS_DEVICE static void transform(float (&values)[kOwn][kCount], std::int64_t rows) {
    constexpr int kLength = static_cast<int>(kMxHadamard);
    PRIMUS_UNROLL
    for (int first = 0; first < kOwn; first += kLength) {
      if (first + kLength > rows) return;
      PRIMUS_UNROLL
      for (int c = 0; c < kCount; ++c) {
        PRIMUS_UNROLL
        for (int apart = 1; apart < kLength; apart *= 2) {
          PRIMUS_UNROLL
          for (int r = 0; r < kLength; ++r) {
            if (r & apart) continue;
            const float a = values[first + r][c], b = values[first + r + apart][c];
            values[first + r][c] = a + b;
            values[first + r + apart][c] = a - b;
          }
        }
        PRIMUS_UNROLL
        for (int r = 0; r < kLength; ++r) values[first + r][c] *= 0.25F;
      }
    }
  }

  // Finds the rows of a strip. The lanes of a warp look at different groups.
  PRIMUS_DEVICE void find_rows(std::int64_t strip, std::int64_t& begin, std::int64_t& end) const {
    begin = end = 0;
    if (!offsets) {
      const std::int64_t strips = (of_matrix + kRows - 1) / kRows, first = strip / strips * of_matrix;
      begin = first + strip % strips * kRows;
      end = smaller(begin + kRows, first + of_matrix);
      return;
    }
    std::int32_t before = 0;  // number of strips of earlier groups
    for (std::int64_t first = 0; first < groups; first += kWarp) {
      const std::int64_t g = first + lane();
      const std::int32_t from = g < groups ? offsets[g] : 0, to = g < groups ? offsets[g + 1] : 0;
      const std::int32_t count = (to - from + kRows - 1) / kRows;
      std::int32_t until = count;
      PRIMUS_UNROLL
      for (int distance = 1; distance < kWarp; distance *= 2) {
        const std::int32_t more = from_lane_before(until, distance);
        if (lane() >= distance) until += more;
      }
      const std::int64_t own = strip - before - (until - count);
      if (own >= 0 && own < count) {
        begin = from + own * kRows;
        end = smaller(begin + kRows, to);
      }
      before += warp_reduce(count);
    }
    // Only one lane found the strip, or none.
    const auto largest = [](std::int64_t a, std::int64_t b) { return PRIMUS_GPU::larger(a, b); };
    begin = warp_reduce(begin, largest);
    end = warp_reduce(end, largest);
  }

  PRIMUS_DEVICE void operator()() const {
    const int pack = thread() / 32 * kAcross + thread() % kAcross, half = thread() % 32 / kAcross;
    const std::int64_t column = block() % across * kColumns + pack * kCount;
    std::int64_t begin = 0, end = 0;
    find_rows(block() / across, begin, end);
    begin += half * kOwn;
    const bool here = column < cols;
    const int rows = here ? static_cast<int>(PRIMUS_GPU::larger(smaller(end - begin, kOwn), 0)) : 0;
    float values[kOwn][kCount] = {};
    if (picks) {
      PRIMUS_UNROLL
      for (int r = 0; r < kOwn; ++r) {
        if (r < rows) load<kCount>(x + picks[begin + r] * cols + column, values[r]);
      }
    } else {
      PRIMUS_UNROLL
      for (int r = 0; r < kOwn; ++r) {
        if (r < rows) load<kCount>(x + (begin + r) * cols + column, values[r]);
      }
    }
    if (hadamard) transform(values, rows);
    std::uint32_t largest[kCount] = {};
    PRIMUS_UNROLL
    for (int c = 0; c < kCount; ++c) {
      PRIMUS_UNROLL
      for (int r = 0; r < kOwn; ++r) largest[c] = larger(largest[c], magnitude(values[r][c]));
      if constexpr (kLanes > 1) largest[c] = larger(largest[c], from_lane_xor(largest[c], kAcross));
    }
    if constexpr (kTiles) {
      PRIMUS_UNROLL
      for (int c = 1; c < kCount; ++c) largest[0] = larger(largest[0], largest[c]);
      PRIMUS_UNROLL
      for (int mask = kRows / kCount / 2; mask > 0; mask /= 2)
        largest[0] = larger(largest[0], from_lane_xor(largest[0], mask));
      PRIMUS_UNROLL
      for (int c = 1; c < kCount; ++c) largest[c] = largest[0];
    }
    MxScale scales[kCount];
    PRIMUS_UNROLL
    for (int c = 0; c < kCount; ++c) scales[c] = mx_scale(largest[c]);
    PRIMUS_UNROLL
    for (int r = 0; r < kOwn; ++r) {
      if (r >= rows) break;
      PRIMUS_UNROLL
      for (int c = 0; c < kCount; ++c)
        values[r][c] = rounding(values[r][c], scales[c], begin + r, column + c);
      store<kCount>(out + (begin + r) * cols + column, values[r]);
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
  // Four columns per thread fill the registers.
  constexpr int kMany = 4;
  const auto with = [&](auto tiles) {
    with_flag(rows_of_vectors<T>(cols, x, out), [&](auto vectors) {
      using Strips = RoundStrips<T, vectors ? kMany : 1, tiles, kRandom>;
      const std::int64_t across = blocks_for(cols, Strips::kColumns);
      launch(context, strips * across,
             Strips{x, out, optional<std::int32_t>(context, call.offsets),
                    optional<std::int32_t>(context, call.picks), groups, of_matrix, cols, across,
                    call.hadamard, rounding});
    });
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
