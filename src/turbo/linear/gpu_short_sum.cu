#include "turbo/gpu/mma.h"
#include "turbo/linear/gpu_short_sum.h"

namespace primus::turbo::PRIMUS_GPU {
namespace {

constexpr int kLine = 8;  // number of elements per load of a thread

// C[m, n] += sum over k < kDepth of A(m, k) · B(n, k). B is "by depth" if each k has a contiguous line in
// memory. A block computes a tile of C. It reads C while it multiplies. The sums pass through shared memory,
// so that threads read and write 16 bytes of C at a time.
template <int kDepth, bool kRightByDepth>
struct ShortSums {
  static constexpr int kThreads = 256;
  using StartsEarly = void;
  static constexpr int kRows = 64, kCols = 128;
  static constexpr int kWarpsDown = kRows / kTile, kWarpsAcross = kThreads / kWarp / kWarpsDown;
  static constexpr int kAcross = kCols / kWarpsAcross / kTile;  // tiles per warp
  static constexpr int kLinesOfC = kRows * kCols / kLine / kThreads, kLinesAcross = kCols / kLine;

  const BFloat16 *a, *b;
  BFloat16* c;
  std::int64_t m, n, k, col_tiles;

  // Padding of 8 elements puts eight adjacent rows into different banks.
  static constexpr int kLeftStep = kDepth + 8, kRightStep = (kRightByDepth ? kCols : kDepth) + 8;
  struct Operands {
    BFloat16 left[kRows * kLeftStep];
    BFloat16 right[(kRightByDepth ? kDepth : kCols) * kRightStep];
  };
  static constexpr int kSumStep = kCols + 4;
  union Memory {
    Operands operands;
    float sums[kRows * kSumStep];
  };

  // Copies `rows` rows of `cols` elements of an operand to shared memory. Elements outside the operand are 0.
  PRIMUS_DEVICE static void stage(const BFloat16* from, std::int64_t row, std::int64_t all_rows,
                                  std::int64_t col, std::int64_t all_cols, int rows, int cols, BFloat16* to,
                                  int step) {
    const int across = cols / kLine;
    for (int i = thread(); i < rows * across; i += kThreads) {
      const int r = i / across, at = i % across * kLine;
      const bool inside = row + r < all_rows && col + at < all_cols;
      *reinterpret_cast<Bytes16*>(to + r * step + at) =
          inside ? load_line(from + (row + r) * all_cols + col + at) : Bytes16{};
    }
  }

  PRIMUS_DEVICE void operator()() const {
    let_next_begin();
    const std::int64_t row = block() / col_tiles * kRows, col = block() % col_tiles * kCols;
    Memory& memory = shared<Memory>();
    wait_for_previous();
    BFloat16* lines[kLinesOfC];
    Bytes16 previous[kLinesOfC];
    PRIMUS_UNROLL
    for (int i = 0; i < kLinesOfC; ++i) {
      const int line = thread() + i * kThreads;
      const std::int64_t r = row + line / kLinesAcross, at = col + line % kLinesAcross * kLine;
      lines[i] = r < m && at < n ? c + r * n + at : nullptr;
      previous[i] = lines[i] ? load_line_once(lines[i]) : Bytes16{};
    }
    stage(a, row, m, 0, k, kRows, kDepth, memory.operands.left, kLeftStep);
    if constexpr (kRightByDepth) {
      stage(b, 0, k, col, n, kDepth, kCols, memory.operands.right, kRightStep);
    } else {
      stage(b, col, n, 0, k, kCols, kDepth, memory.operands.right, kRightStep);
    }
    barrier();
    const int down = warp() % kWarpsDown * kTile, across = warp() / kWarpsDown * kAcross * kTile;
    Accumulator sums[kAcross];
    PRIMUS_UNROLL
    for (int j = 0; j < kAcross; ++j) sums[j].clear();
    PRIMUS_UNROLL
    for (int d = 0; d < kDepth; d += kTile) {
      const Operand<BFloat16> left = load_left<false>(memory.operands.left + down * kLeftStep + d, kLeftStep);
      PRIMUS_UNROLL
      for (int j = 0; j < kAcross; ++j) {
        const int first = across + j * kTile;
        const BFloat16* const tile =
            memory.operands.right + (kRightByDepth ? d * kRightStep + first : first * kRightStep + d);
        multiply(sums[j], left, load_right<kRightByDepth>(tile, kRightStep));
      }
    }
    barrier();  // all threads have read the operands, whose memory the sums overwrite
    PRIMUS_UNROLL
    for (int j = 0; j < kAcross; ++j) {
      PRIMUS_UNROLL
      for (int i = 0; i < kPerLane; ++i) {
        memory.sums[(down + Accumulator::row(i)) * kSumStep + across + j * kTile + Accumulator::col(i)] =
            sums[j].at[i];
      }
    }
    barrier();
    PRIMUS_UNROLL
    for (int i = 0; i < kLinesOfC; ++i) {
      if (!lines[i]) continue;
      const int line = thread() + i * kThreads;
      const float* const sum = memory.sums + line / kLinesAcross * kSumStep + line % kLinesAcross * kLine;
      const auto before = std::bit_cast<Pack<BFloat16, kLine>>(previous[i]);
      float after[kLine];
      PRIMUS_UNROLL
      for (int j = 0; j < kLine; ++j) after[j] = to_float(before.at[j]) + sum[j];
      store<kLine>(lines[i], after);
    }
  }
};

constexpr std::int64_t kMaxDepth = 64;

template <bool kRightByDepth>
void add(Context& context, const Gemm& call) {
  const auto enqueue = [&](auto depth) {
    using Kernel = ShortSums<decltype(depth)::value, kRightByDepth>;
    const std::int64_t m = call.c.rows(), n = call.c.cols(), col_tiles = blocks_for(n, Kernel::kCols);
    launch(context, blocks_for(m, Kernel::kRows) * col_tiles,
           Kernel{context.data<BFloat16>(call.a), context.data<BFloat16>(call.b),
                  context.data<BFloat16>(call.c), m, n, call.a.cols(), col_tiles});
  };
  if (call.a.cols() <= kTile) return enqueue(std::integral_constant<int, kTile>{});
  if (call.a.cols() <= 2 * kTile) return enqueue(std::integral_constant<int, 2 * kTile>{});
  enqueue(std::integral_constant<int, kMaxDepth>{});
}

}  // namespace

bool is_short_sum(const Gemm& call) {
  const auto suits = [](const Tensor& t) {
    return t.dtype == DType::kBF16 && t.cols() % kLine == 0 && t.elements() > 0 &&
           reinterpret_cast<std::uintptr_t>(t.data) % sizeof(Bytes16) == 0;
  };
  return call.accumulate && call.role != GemmRole::kWeightGradient && call.a.cols() <= kMaxDepth &&
         suits(call.a) && suits(call.b) && suits(call.c);
}

void add_short_sum(Context& context, const Gemm& call) {
#ifdef PRIMUS_GPU_VENDOR
  context.shared().count("products added to a result, of few terms: own kernel");
#endif
  if (call.role == GemmRole::kForward) return add<false>(context, call);
  add<true>(context, call);
}

}  // namespace primus::turbo::PRIMUS_GPU
