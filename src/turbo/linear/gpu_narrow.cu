#include <algorithm>

#include "turbo/gpu/mma.h"
#include "turbo/gpu/register.h"
#include "turbo/linear/gpu_narrow.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

constexpr std::int64_t kMaxRows = 128, kMaxOut = 64, kMinTerms = 1024, kMaxPieces = 64;
constexpr int kLine = 8;  // number of elements per load of a thread

// Computes pieces of the sums of up to 64 rows of x. kOut is the number of rows of W, rounded up to tiles.
template <int kOut>
struct NarrowPieces {
  static constexpr int kThreads = 128;
  using StartsEarly = void;
  static constexpr int kRows = 64, kStep = 128, kWarps = kThreads / kWarp, kAcross = kOut / kTile;
  // Padding of 8 elements puts eight adjacent rows into different banks.
  static constexpr int kLineStep = kStep + 8;

  const BFloat16 *x, *w;
  float* pieces;  // [pieces, rows, kOut]
  std::int64_t rows, out, in, count, steps;

  struct Memory {
    BFloat16 x[kRows * kLineStep], w[kOut * kLineStep];
  };

  // Loads some rows of an operand: lines of 8 elements, 0 outside the operand.
  template <int kCount>
  struct Lines {
    static constexpr int kOfThread = kCount * kStep / kLine / kThreads;
    Bytes16 lines[kOfThread];
    PRIMUS_DEVICE void fetch(const BFloat16* from, std::int64_t row, std::int64_t all_rows, std::int64_t col,
                             std::int64_t all_cols) {
      PRIMUS_UNROLL
      for (int i = 0; i < kOfThread; ++i) {
        const int line = thread() + i * kThreads;
        const std::int64_t r = row + line / (kStep / kLine), at = col + line % (kStep / kLine) * kLine;
        lines[i] = r < all_rows && at < all_cols ? load_line(from + r * all_cols + at) : Bytes16{};
      }
    }
    PRIMUS_DEVICE void put(BFloat16* to) const {
      PRIMUS_UNROLL
      for (int i = 0; i < kOfThread; ++i) {
        const int line = thread() + i * kThreads;
        *reinterpret_cast<Bytes16*>(to + line / (kStep / kLine) * kLineStep +
                                    line % (kStep / kLine) * kLine) = lines[i];
      }
    }
  };

  PRIMUS_DEVICE void operator()() const {
    let_next_begin();
    const std::int64_t piece = block() % count, row = block() / count * kRows;
    const std::int64_t begin = piece * steps * kStep, end = smaller(begin + steps * kStep, in);
    Memory& memory = shared<Memory>();
    Lines<kRows> of_x;
    Lines<kOut> of_w;
    of_w.fetch(w, 0, out, begin, end > begin ? in : 0);  // W does not depend on the previous kernel
    wait_for_previous();
    of_x.fetch(x, row, rows, begin, in);
    constexpr int kTiles = kRows / kTile / kWarps;  // tiles of rows per warp
    Accumulator sums[kTiles][kAcross];
    PRIMUS_UNROLL
    for (int i = 0; i < kTiles; ++i) {
      PRIMUS_UNROLL
      for (int j = 0; j < kAcross; ++j) sums[i][j].clear();
    }
    for (std::int64_t at = begin; at < end; at += kStep) {
      barrier();  // all threads have read the operands of the previous step
      of_x.put(memory.x);
      of_w.put(memory.w);
      barrier();
      if (at + kStep < end) {
        of_x.fetch(x, row, rows, at + kStep, in);
        of_w.fetch(w, 0, out, at + kStep, in);
      }
      PRIMUS_UNROLL
      for (int d = 0; d < kStep; d += kTile) {
        Operand<BFloat16> right[kAcross];
        PRIMUS_UNROLL
        for (int j = 0; j < kAcross; ++j)
          right[j] = load_right<false>(memory.w + j * kTile * kLineStep + d, kLineStep);
        PRIMUS_UNROLL
        for (int i = 0; i < kTiles; ++i) {
          const int first = (warp() + i * kWarps) * kTile;
          const Operand<BFloat16> left = load_left<false>(memory.x + first * kLineStep + d, kLineStep);
          PRIMUS_UNROLL
          for (int j = 0; j < kAcross; ++j) multiply(sums[i][j], left, right[j]);
        }
      }
    }
    PRIMUS_UNROLL
    for (int i = 0; i < kTiles; ++i) {
      PRIMUS_UNROLL
      for (int j = 0; j < kAcross; ++j) {
        PRIMUS_UNROLL
        for (int k = 0; k < kPerLane; ++k) {
          const std::int64_t r = row + (warp() + i * kWarps) * kTile + Accumulator::row(k);
          if (r < rows)
            pieces[(piece * rows + r) * kOut + j * kTile + Accumulator::col(k)] = sums[i][j].at[k];
        }
      }
    }
  }
};

// Adds the pieces. Several threads share an element: each adds consecutive pieces, and the sums of the
// threads are added in their order.
template <class C>
struct NarrowSums {
  static constexpr int kThreads = 256;
  using StartsEarly = void;
  static constexpr int kShares = 4, kElements = kThreads / kShares;
  const float* pieces;
  C* y;
  std::int64_t elements, padded_out, out, count;  // elements: of a piece

  struct Memory {
    float sums[kShares][kElements];
  };

  PRIMUS_DEVICE void operator()() const {
    let_next_begin();
    wait_for_previous();
    Memory& memory = shared<Memory>();
    const int share = thread() / kElements, own = thread() % kElements;
    const std::int64_t i = block() * kElements + own, each = (count + kShares - 1) / kShares;
    const std::int64_t end = smaller((share + 1) * each, count);
    float sum = 0;
    if (i < elements) {
#if defined(__CUDACC__) || defined(__HIP__)
#pragma unroll 8
#endif
      for (std::int64_t piece = share * each; piece < end; ++piece) sum += pieces[piece * elements + i];
    }
    memory.sums[share][own] = sum;
    barrier();
    const std::int64_t row = i / padded_out, col = i % padded_out;
    if (share != 0 || i >= elements || col >= out) return;
    for (int s = 1; s < kShares; ++s) sum += memory.sums[s][own];
    y[row * out + col] = from_float<C>(sum);
  }
};

template <int kOut>
void multiply_pieces(Context& context, const Gemm& call) {
  using Pieces = NarrowPieces<kOut>;
  const std::int64_t rows = call.a.rows(), in = call.a.cols(), out = call.b.rows();
  const std::int64_t all = blocks_for(in, Pieces::kStep), steps = blocks_for(all, kMaxPieces);
  const std::int64_t count = blocks_for(all, steps), elements = rows * kOut;
  auto* pieces = partials<float>(context, count * elements);
  launch(context, count * blocks_for(rows, Pieces::kRows),
         Pieces{context.data<BFloat16>(call.a), context.data<BFloat16>(call.b), pieces, rows, out, in, count,
                steps});
  with_float_type(call.c.dtype, [&](auto tag) {
    using C = decltype(tag);
    launch(context, blocks_for(elements, NarrowSums<C>::kElements),
           NarrowSums<C>{pieces, context.data<C>(call.c), elements, kOut, out, count});
  });
}

}  // namespace

bool multiply_narrow(Context& context, const Gemm& call) {
  const auto suits = [](const Tensor& t) {
    return t.dtype == DType::kBF16 && t.elements() > 0 && t.cols() % kLine == 0 &&
           reinterpret_cast<std::uintptr_t>(t.data) % sizeof(Bytes16) == 0;
  };
  if (call.role != GemmRole::kForward || call.accumulate || call.a.rows() > kMaxRows ||
      call.b.rows() > kMaxOut || call.a.cols() < kMinTerms || !suits(call.a) || !suits(call.b) ||
      call.c.dtype == DType::kF16)
    return false;
#ifdef PRIMUS_GPU_VENDOR
  context.shared().count("products of few rows with few rows: own kernel");
#endif
  if (call.b.rows() <= kTile) {
    multiply_pieces<kTile>(context, call);
  } else if (call.b.rows() <= 2 * kTile) {
    multiply_pieces<2 * kTile>(context, call);
  } else {
    multiply_pieces<kMaxOut>(context, call);
  }
  return true;
}

}  // namespace primus::turbo::PRIMUS_GPU
